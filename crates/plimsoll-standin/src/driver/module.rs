//! Kernels: they can be loaded, queried and launched; a launch does nothing.

use std::ffi::{c_int, c_uint, c_void};

use crate::argument::Out;
use crate::call::{calls, makers, nothing};
use crate::gpu::setup;
use crate::runtime::{BLOCKS_PER_MULTIPROCESSOR, REGISTERS, THREADS_PER_BLOCK};
use crate::stream::{StreamHandle, kernel_on};

/// The first fields of `CUlaunchConfig`; attributes follow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Launch {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: StreamHandle,
}

calls! { Driver:
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, _kernel: u64) {
        let (major, minor) = setup().gpu.capability;
        value.put(match attribute {
            0 => THREADS_PER_BLOCK,
            4 => REGISTERS,
            5 | 6 => major * 10 + minor,
            _ => 0,
        })
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, _kernel: u64, _threads: c_int, _shared: usize,
    ) {
        blocks.put(BLOCKS_PER_MULTIPROCESSOR)
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, _kernel: u64, _threads: c_int, _shared: usize, _flags: c_uint,
    ) {
        blocks.put(BLOCKS_PER_MULTIPROCESSOR)
    }
    fn cuOccupancyMaxActiveClusters(clusters: Out<c_int>, _kernel: u64, _launch: *const c_void) {
        clusters.put(1)
    }
    fn cuLaunchKernel(
        _kernel: u64, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint,
        stream: StreamHandle,
    ) {
        kernel_on(stream);
        Ok(())
    }
    fn cuLaunchCooperativeKernel(
        _kernel: u64, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint,
        stream: StreamHandle,
    ) {
        kernel_on(stream);
        Ok(())
    }
    fn cuLaunchKernelEx(launch: Out<Launch>, _kernel: u64) {
        kernel_on(launch.get()?.stream);
        Ok(())
    }
    /// Linking a module produces one byte, which nothing reads.
    fn cuLinkComplete(_link: u64, image: Out<*const c_void>, bytes: Out<usize>) {
        image.put(c"".as_ptr().cast())?;
        bytes.put(1)
    }
    fn cuLinkCreate_v2(_count: c_uint, _options: *const c_void, _values: *const c_void, link: Out<u64>) {
        link.put(crate::call::new_handle())
    }
}

makers! { Driver:
    cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleGetFunction
    cuLibraryLoadData
    cuLibraryLoadFromFile cuLibraryGetKernel cuLibraryGetModule cuKernelGetFunction
}

nothing! { Driver:
    cuModuleUnload cuLibraryUnload cuFuncSetAttribute cuFuncSetCacheConfig cuFuncLoad cuKernelSetAttribute
    cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkDestroy cuTensorMapEncodeTiled cuTensorMapEncodeIm2col
}
