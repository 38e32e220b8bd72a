//! Device and host memory; copies; memory pools.

use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, nothing};
use crate::error::{Failure, Outcome};
use crate::gpu::{current_device, setup};
use crate::memory::copy::{DEVICE_TO_DEVICE, Pointer, copy, copy_rows, fill};
use crate::memory::{Kind, PoolUse, memory};
use crate::stream::{StreamHandle, ran_on, work};

calls! { Runtime:
    fn cudaMalloc(address: Out<u64>, bytes: usize) {
        let device = current_device()?;
        allocate(address, device, bytes, Kind::Device(device))
    }
    fn cudaMallocManaged(address: Out<u64>, bytes: usize, _flags: u32) {
        let device = current_device()?;
        allocate(address, device, bytes, Kind::Managed(device))
    }
    fn cudaMallocAsync(address: Out<u64>, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        let device = current_device()?;
        allocate(address, device, bytes, Kind::Pool(device))
    }
    fn cudaMallocFromPoolAsync(address: Out<u64>, bytes: usize, pool: u64, stream: StreamHandle) {
        ran_on(stream);
        let device = pool_device(pool)?;
        allocate(address, device, bytes, Kind::Pool(device))
    }
    fn cudaFree(address: u64) {
        memory().free(address)
    }
    fn cudaFreeAsync(address: u64, stream: StreamHandle) {
        ran_on(stream);
        memory().free(address)
    }
    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        let (device, mut memory) = (current_device()?, memory());
        memory.uses.enter(device)?;
        let bytes = memory.uses.free_bytes(device);
        free.put(size(bytes))?;
        total.put(size(setup().memory_bytes()))
    }
    fn cudaHostAlloc(address: Out<u64>, bytes: usize, _flags: u32) {
        address.put(memory().pin(bytes as u64)?)
    }
    fn cudaMallocHost(address: Out<u64>, bytes: usize) {
        address.put(memory().pin(bytes as u64)?)
    }
    fn cudaFreeHost(address: u64) {
        memory().unpin(address)
    }
    fn cudaHostRegister(address: u64, bytes: usize, _flags: u32) {
        memory().register(address, bytes as u64);
        Ok(())
    }
    fn cudaHostUnregister(address: u64) {
        memory().unregister(address)
    }
    fn cudaHostGetDevicePointer(device: Out<u64>, host: u64, _flags: u32) {
        device.put(host)
    }
    /// Type (0 not CUDA's, 1 host, 2 device, 3 managed), device, device address, host address: the 24 bytes that CUDA
    /// 12's and 13's structures share.
    fn cudaPointerGetAttributes(attributes: Out<u8>, address: u64) {
        let (kind, device) = known(address);
        let on_device = if kind == 0 { 0 } else { address };
        let on_host = if kind == 2 { 0 } else { address };
        let mut bytes = [kind.to_ne_bytes(), device.to_ne_bytes()].concat();
        bytes.extend([on_device.to_ne_bytes(), on_host.to_ne_bytes()].concat());
        attributes.put_bytes(&bytes)
    }
    fn cudaMemcpy(to: Pointer, from: Pointer, bytes: usize, direction: c_int) {
        copy(to, from, bytes, direction);
        Ok(())
    }
    fn cudaMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, direction: c_int, stream: StreamHandle) {
        ran_on(stream);
        copy(to, from, bytes, direction);
        Ok(())
    }
    fn cudaMemcpy2DAsync(
        to: Pointer, to_pitch: usize, from: Pointer, from_pitch: usize, width: usize, rows: usize,
        direction: c_int,
        stream: StreamHandle,
    ) {
        ran_on(stream);
        copy_rows((to, to_pitch), (from, from_pitch), (width, rows), direction);
        Ok(())
    }
    fn cudaMemcpy2D(
        to: Pointer, to_pitch: usize, from: Pointer, from_pitch: usize, width: usize, rows: usize,
        direction: c_int,
    ) {
        copy_rows((to, to_pitch), (from, from_pitch), (width, rows), direction);
        Ok(())
    }
    fn cudaMemcpyPeerAsync(
        to: Pointer, _to_device: c_int, from: Pointer, _from_device: c_int, bytes: usize,
        stream: StreamHandle,
    ) {
        ran_on(stream);
        copy(to, from, bytes, DEVICE_TO_DEVICE);
        Ok(())
    }
    fn cudaMemset(to: Pointer, value: c_int, bytes: usize) {
        fill(to, value.to_le_bytes()[0], bytes);
        Ok(())
    }
    fn cudaMemsetAsync(to: Pointer, value: c_int, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        fill(to, value.to_le_bytes()[0], bytes);
        Ok(())
    }
    fn cudaDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int) {
        pool.put(POOLS + setup().device(device)? as u64)
    }
    fn cudaDeviceGetMemPool(pool: Out<u64>, device: c_int) {
        pool.put(POOLS + setup().device(device)? as u64)
    }
    /// A pool's use is known; its settings are all zero.
    fn cudaMemPoolGetAttribute(pool: u64, attribute: c_int, value: Out<u64>) {
        let PoolUse { current_bytes, high_bytes } = *memory().pool(pool_device(pool)?);
        match attribute {
            RESERVED_CURRENT | USED_CURRENT => value.put(current_bytes),
            RESERVED_HIGH | USED_HIGH => value.put(high_bytes),
            RELEASE_THRESHOLD => value.put(0),
            // The other attributes are of type `int`.
            _ => value.put_bytes(&[0; 4]),
        }
    }
    /// Setting a high-water mark to any value resets it to the current use.
    fn cudaMemPoolSetAttribute(pool: u64, attribute: c_int, _value: *const c_void) {
        let mut memory = memory();
        let pool = memory.pool(pool_device(pool)?);
        if matches!(attribute, RESERVED_HIGH | USED_HIGH) {
            pool.high_bytes = pool.current_bytes;
        }
        Ok(())
    }
}

work! { Runtime: cudaMemset2DAsync }

nothing! { Runtime:
    cudaMemcpyToSymbol cudaMemcpyToSymbolAsync cudaMemPoolTrimTo cudaMemPoolSetAccess
    cudaMemPrefetchAsync cudaMemAdvise
}

/// The handle of device 0's pool; those of the other devices follow.
const POOLS: u64 = 0x10;

/// Attributes of a pool: `cudaMemPoolAttr`.
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_CURRENT: c_int = 5;
const RESERVED_HIGH: c_int = 6;
const USED_CURRENT: c_int = 7;
const USED_HIGH: c_int = 8;

fn pool_device(pool: u64) -> Outcome<usize> {
    let number = pool.checked_sub(POOLS).and_then(|number| i32::try_from(number).ok());
    setup().device(number.ok_or(Failure::InvalidValue)?)
}

fn allocate(address: Out<u64>, device: usize, bytes: usize, kind: Kind) -> Outcome {
    // Null if no bytes are requested, and null on failure.
    address.put(0)?;
    if bytes == 0 { Ok(()) } else { address.put(memory().allocate(device, bytes as u64, kind)?) }
}

/// An address's `cudaMemoryType` and device.
fn known(address: u64) -> (c_int, c_int) {
    let number = |device| c_int::try_from(device).unwrap_or(c_int::MAX);
    match memory().find(address).map(|range| range.kind) {
        None => (0, -2),
        Some(Kind::Host | Kind::Registered) => (1, 0),
        Some(Kind::Device(device) | Kind::Pool(device)) => (2, number(device)),
        Some(Kind::Reserved) => (2, current_device().map_or(0, number)),
        Some(Kind::Managed(device)) => (3, number(device)),
    }
}

/// A C size as a number; on the 64-bit systems that CUDA supports, every size fits.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
