//! Kernels: registered and launched, and nothing happens.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use super::images::{self, Versions};
use crate::argument::Out;
use crate::call::{calls, nothing};
use crate::error::Outcome;
use crate::memory::{PAGE_BYTES, memory, reads};
use crate::notice;
use crate::stream::{StreamHandle, kernel_on};

/// A grid's or block's three numbers: `dim3`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Three([c_uint; 3]);

/// How many blocks of a kernel a multiprocessor is said to hold.
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: c_int = 2;
/// How many registers a kernel is said to use.
pub(crate) const REGISTERS: c_int = 32;
/// How many threads a block of a kernel is said to take.
pub(crate) const THREADS_PER_BLOCK: c_int = 1024;

/// What begins a `cudaLaunchConfig_t`; attributes follow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Launch {
    grid: Three,
    block: Three,
    shared_bytes: usize,
    stream: StreamHandle,
}

thread_local! {
    /// Grid, block, shared bytes and stream of the launch that this thread is about to make.
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
    /// CUDA 13's form of the same.
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
    /// `cudaFuncAttributes`: three sizes, sixteen numbers and what is reserved, 144 bytes.
    fn cudaFuncGetAttributes(attributes: Out<u8>, kernel: *const c_void) {
        let Versions { ptx, binary } = images::versions(kernel)?;
        // Most threads per block, registers, version of the intermediate and of the binary code.
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
    /// All variables of the device are at one address, which is nobody's.
    fn cudaGetSymbolAddress(address: Out<u64>, _symbol: *const c_void) {
        address.put(variables())
    }
    fn cudaGetSymbolSize(bytes: Out<usize>, _symbol: *const c_void) {
        bytes.put(0)
    }
    /// `kernel<<<grid, block, shared, stream>>>` is compiled to this call, and one of the kernel's own ...
    fn __cudaPushCallConfiguration(grid: Three, block: Three, shared: usize, stream: StreamHandle) {
        CONFIGURATION.set((grid, block, shared, stream));
        Ok(())
    }
    /// ... which asks what was said in the other, and launches.
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

/// CUDA 12's: whether the module is ready.
#[unsafe(no_mangle)]
extern "C" fn __cudaInitModule(_module: *const c_void) -> std::ffi::c_char {
    1
}

/// Launches a kernel.
///
/// # Errors
///
/// `NoKernelImage` if it is compiled for other devices alone.
fn launch(kernel: *const c_void, stream: StreamHandle) -> Outcome {
    // Who hears of reads knows more of it: the line, and what was counted.
    if images::launched(kernel)? && !reads::is_watched() {
        notice::select();
    }
    kernel_on(stream);
    Ok(())
}

/// The address of every variable of the device: a page of addresses that counts as no memory.
fn variables() -> u64 {
    use std::sync::OnceLock;
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| memory().reserve(PAGE_BYTES).unwrap_or(PAGE_BYTES))
}
