//! Kernels: registration and launches, which do nothing.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use super::images::{self, Versions};
use crate::argument::Out;
use crate::call::{calls, nothing};
use crate::error::Outcome;
use crate::memory::{PAGE_BYTES, memory, reads};
use crate::stream::{StreamHandle, kernel_on};
use crate::{notice, outside};

/// The three numbers of a grid or block: `dim3`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Three([c_uint; 3]);

/// The reported number of resident blocks per multiprocessor.
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: c_int = 2;
/// The reported number of registers of a kernel.
pub(crate) const REGISTERS: c_int = 32;
/// The reported threads per block of a kernel.
pub(crate) const THREADS_PER_BLOCK: c_int = 1024;

/// The first fields of `cudaLaunchConfig_t`; attributes follow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Launch {
    grid: Three,
    block: Three,
    shared_bytes: usize,
    stream: StreamHandle,
}

thread_local! {
    /// Grid, block, shared bytes and stream of this thread's next launch.
    static CONFIGURATION: Cell<(Three, Three, usize, StreamHandle)> =
        const { Cell::new((Three([1; 3]), Three([1; 3]), 0, 0)) };
}

calls! { Runtime:
    fn cudaLaunchKernel(
        kernel: *const c_void, _grid: Three, _block: Three, _arguments: *const c_void, _shared: usize,
        stream: StreamHandle,
    ) {
        launch(kernel, stream)
    }
    /// CUDA 13's form of `cudaLaunchKernel`.
    fn __cudaLaunchKernel(
        kernel: *const c_void, _grid: Three, _block: Three, _arguments: *const c_void, _shared: usize,
        stream: StreamHandle,
    ) {
        launch(kernel, stream)
    }
    fn cudaLaunchCooperativeKernel(
        kernel: *const c_void, _grid: Three, _block: Three, _arguments: *const c_void, _shared: usize,
        stream: StreamHandle,
    ) {
        launch(kernel, stream)
    }
    fn cudaLaunchKernelExC(settings: Out<Launch>, kernel: *const c_void, _arguments: *const c_void) {
        launch(kernel, settings.get()?.stream)
    }
    fn __cudaGetKernel(kernel: Out<u64>, function: u64) {
        kernel.put(function)
    }
    /// `cudaFuncAttributes`: three sizes, sixteen numbers and reserved fields, 144 bytes.
    fn cudaFuncGetAttributes(attributes: Out<u8>, kernel: *const c_void) {
        let Versions { ptx, binary } = images::versions(kernel)?;
        // Maximum threads per block, registers, PTX and binary version.
        let numbers = [THREADS_PER_BLOCK, REGISTERS, ptx, binary];
        let mut bytes = vec![0; 24];
        bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.resize(144, 0);
        attributes.put_bytes(&bytes)
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>, _kernel: *const c_void, _threads: c_int, _shared: usize,
    ) {
        blocks.put(BLOCKS_PER_MULTIPROCESSOR)
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>, _kernel: *const c_void, _threads: c_int, _shared: usize, _flags: c_uint,
    ) {
        blocks.put(BLOCKS_PER_MULTIPROCESSOR)
    }
    fn cudaOccupancyMaxActiveClusters(clusters: Out<c_int>, _kernel: *const c_void, _launch: *const c_void) {
        clusters.put(1)
    }
    /// All device variables share one address, which belongs to no allocation.
    fn cudaGetSymbolAddress(address: Out<u64>, _symbol: *const c_void) {
        address.put(variables())
    }
    fn cudaGetSymbolSize(bytes: Out<usize>, _symbol: *const c_void) {
        bytes.put(0)
    }
    /// `kernel<<<grid, block, shared, stream>>>` compiles to this call, followed by the kernel's stub ...
    fn __cudaPushCallConfiguration(grid: Three, block: Three, shared: usize, stream: StreamHandle) {
        CONFIGURATION.set((grid, block, shared, stream));
        Ok(())
    }
    /// ... which reads the configuration back and launches.
    fn __cudaPopCallConfiguration(grid: Out<Three>, block: Out<Three>, shared: Out<usize>, stream: Out<u64>) {
        let said = CONFIGURATION.get();
        grid.put(said.0)?;
        block.put(said.1)?;
        shared.put(said.2)?;
        stream.put(said.3)
    }
}

nothing! { Runtime:
    __cudaRegisterFatBinaryEnd __cudaUnregisterFatBinary __cudaRegisterVar __cudaRegisterManagedVar
    cudaFuncSetAttribute cudaFuncSetCacheConfig cudaKernelSetAttributeForDevice
}

/// CUDA 12: whether the module is initialized.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_module: *const c_void) -> std::ffi::c_char {
    1
}

/// Launches a kernel.
///
/// # Errors
///
/// `NoKernelImage` if it is compiled only for other devices; `OutOfMemory` if PyTorch's module does not fit.
fn launch(kernel: *const c_void, stream: StreamHandle) -> Outcome {
    // If a listener for reads is registered, its report is better, because it has the line and the count.
    if images::launched(kernel)? && !reads::is_watched() {
        notice::select();
    }
    outside::launched()?;
    kernel_on(stream);
    Ok(())
}

/// The address of every device variable: a reserved page without memory.
fn variables() -> u64 {
    use std::sync::OnceLock;
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| memory().reserve(PAGE_BYTES).unwrap_or(PAGE_BYTES))
}
