//! Kernels, which can be loaded, queried and launched. A launch computes nothing; it only grows the context's pool of local
//! memory if the kernel's stack requires it.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{cubin, ptx};
use crate::argument::{Out, Text};
use crate::call::{calls, makers, new_handle, nothing};
use crate::error::{Failure, Outcome};
use crate::gpu::{current_device, setup};
use crate::lock::locked;
use crate::outside;
use crate::runtime::{BLOCKS_PER_MULTIPROCESSOR, REGISTERS, THREADS_PER_BLOCK};
use crate::stream::{StreamHandle, kernel_on};

/// The first fields of `CUlaunchConfig`. Attributes follow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Launch {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: StreamHandle,
}

/// The kernels that have a stack: by name for each module, and by handle for those that the program has looked up.
#[derive(Default)]
struct Known {
    modules: HashMap<u64, Vec<(String, u32)>>,
    kernels: HashMap<u64, u32>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// Whether any kernel has a stack. Launches check this first.
static HAS_STACKS: AtomicBool = AtomicBool::new(false);

/// Creates a module. `stacks` lists its kernels that need a stack.
fn module(stacks: Vec<(String, u32)>) -> u64 {
    let handle = new_handle();
    if !stacks.is_empty() {
        HAS_STACKS.store(true, Ordering::Relaxed);
        locked(&KNOWN).get_or_insert_default().modules.insert(handle, stacks);
    }
    handle
}

/// Creates a module from an image in memory.
fn module_of(image: *const c_void) -> u64 {
    // SAFETY: the callers of `cuModuleLoadData` and similar functions pass a valid image.
    let (cubin, text) = unsafe { (cubin::in_memory(image), ptx::in_memory(image)) };
    module(cubin.map(cubin::stacks).or(text.map(ptx::stacks)).unwrap_or_default())
}

/// Creates a handle for a kernel of a module.
fn kernel_of(module: u64, name: &str) -> u64 {
    let handle = new_handle();
    if HAS_STACKS.load(Ordering::Relaxed) {
        let mut known = locked(&KNOWN);
        let Known { modules, kernels } = known.get_or_insert_default();
        let found = modules.get(&module).and_then(|all| all.iter().find(|(it, _)| it == name));
        kernels.extend(found.map(|(_, stack_bytes)| (handle, *stack_bytes)));
    }
    handle
}

/// A kernel's stack size per thread; 0 if it has no stack.
fn stack_bytes(kernel: u64) -> u32 {
    if !HAS_STACKS.load(Ordering::Relaxed) {
        return 0;
    }
    locked(&KNOWN).as_ref().and_then(|known| known.kernels.get(&kernel).copied()).unwrap_or(0)
}

/// Launches a kernel.
///
/// # Errors
///
/// `OutOfMemory` if its stack does not fit.
fn launch(kernel: u64, stream: StreamHandle) -> Outcome {
    let stack_bytes = stack_bytes(kernel);
    if stack_bytes > 0 {
        outside::stack(current_device()?, stack_bytes)?;
    }
    kernel_on(stream);
    Ok(())
}

calls! { Driver:
    fn cuModuleLoad(loaded: Out<u64>, path: Text) {
        let image = std::fs::read(path.read()?).map_err(|_| Failure::NotFound)?;
        loaded.put(module(cubin::stacks(&image)))
    }
    fn cuModuleLoadData(module: Out<u64>, image: *const c_void) {
        module.put(module_of(image))
    }
    fn cuModuleLoadDataEx(module: Out<u64>, image: *const c_void) {
        module.put(module_of(image))
    }
    fn cuLibraryLoadData(library: Out<u64>, image: *const c_void) {
        library.put(module_of(image))
    }
    fn cuModuleGetFunction(kernel: Out<u64>, module: u64, name: Text) {
        kernel.put(kernel_of(module, &name.read()?))
    }
    fn cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) {
        kernel.put(kernel_of(library, &name.read()?))
    }
    /// A library and its module share one handle, as do a kernel and its function.
    fn cuLibraryGetModule(module: Out<u64>, library: u64) {
        module.put(library)
    }
    fn cuKernelGetFunction(function: Out<u64>, kernel: u64) {
        function.put(kernel)
    }
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, kernel: u64) {
        let (major, minor) = setup().gpu.capability;
        value.put(match attribute {
            0 => THREADS_PER_BLOCK,
            3 => c_int::try_from(stack_bytes(kernel)).unwrap_or(c_int::MAX),
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
        kernel: u64, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint,
        stream: StreamHandle,
    ) {
        launch(kernel, stream)
    }
    fn cuLaunchCooperativeKernel(
        kernel: u64, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint,
        stream: StreamHandle,
    ) {
        launch(kernel, stream)
    }
    fn cuLaunchKernelEx(configuration: Out<Launch>, kernel: u64) {
        launch(kernel, configuration.get()?.stream)
    }
    /// Linking a module produces one byte, which nothing reads.
    fn cuLinkComplete(_link: u64, image: Out<*const c_void>, bytes: Out<usize>) {
        image.put(c"".as_ptr().cast())?;
        bytes.put(1)
    }
    fn cuLinkCreate_v2(_count: c_uint, _options: *const c_void, _values: *const c_void, link: Out<u64>) {
        link.put(new_handle())
    }
}

makers! { Driver: cuModuleLoadFatBinary cuLibraryLoadFromFile }

nothing! { Driver:
    cuModuleUnload cuLibraryUnload cuFuncSetAttribute cuFuncSetCacheConfig cuFuncLoad cuKernelSetAttribute
    cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkDestroy cuTensorMapEncodeTiled cuTensorMapEncodeIm2col
}
