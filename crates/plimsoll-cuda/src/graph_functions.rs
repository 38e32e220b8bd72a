//! The driver's functions for CUDA graphs.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::Handle;
use crate::library::functions;

functions! {
    /// The functions, under the names that the library exports.
    Functions {
        cuStreamBeginCapture_v2(Handle, c_int);
        cuStreamEndCapture(Handle, *mut Handle);
        cuStreamGetCaptureInfo_v2(
            Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle, *mut usize,
        );
        cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        cuGraphLaunch(Handle, Handle);
        cuGraphExecKernelNodeSetParams_v2(Handle, Handle, *const KernelNode);
        cuGraphExecDestroy(Handle);
        cuGraphDestroy(Handle);
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: Handle,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) arguments: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    pub(crate) kernel: Handle,
    pub(crate) context: Handle,
}

const _: () = assert!(size_of::<KernelNode>() == 72);
