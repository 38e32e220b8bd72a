//! Memory: address reservations, physical allocations and their mapping, and plain allocation.

use std::ffi::{c_int, c_uint, c_void};

use crate::argument::Out;
use crate::call::{calls, nothing};
use crate::error::{Failure, Outcome};
use crate::gpu::{current_device, setup};
use crate::memory::copy::{
    BY_ADDRESS, DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, Pointer, copy, fill,
};
use crate::memory::{Kind, PAGE_BYTES, memory};
use crate::stream::{StreamHandle, ran_on, work};

/// The first fields of `CUmemAllocationProp`; the location is a kind (1 for a device) and its number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
}

calls! { Driver:
    fn cuMemAddressReserve(address: Out<u64>, bytes: usize, _alignment: usize, _wish: u64, _flags: u64) {
        address.put(memory().reserve(bytes as u64)?)
    }
    fn cuMemAddressFree(address: u64, _bytes: usize) {
        memory().unreserve(address)
    }
    fn cuMemCreate(handle: Out<u64>, bytes: usize, properties: Out<Properties>, _flags: u64) {
        let [_, device] = properties.get()?.location;
        handle.put(memory().create(setup().device(device)?, bytes as u64)?)
    }
    fn cuMemRelease(handle: u64) {
        memory().release(handle)
    }
    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) {
        handle.put(memory().retain(address)?)
    }
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) {
        if offset != 0 {
            return Err(Failure::InvalidValue);
        }
        memory().map(address, bytes as u64, handle)
    }
    fn cuMemUnmap(address: u64, bytes: usize) {
        memory().unmap(address, bytes as u64)
    }
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, _properties: *const c_void, _option: c_int) {
        bytes.put(PAGE_BYTES as usize)
    }
    fn cuMemGetAddressRange_v2(begin: Out<u64>, bytes: Out<usize>, address: u64) {
        let range = memory().find(address).ok_or(Failure::InvalidValue)?;
        begin.offer(range.begin);
        bytes.offer(range.bytes as usize);
        Ok(())
    }
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        let device = current_device()?;
        address.put(memory().allocate(device, bytes as u64, Kind::Device(device))?)
    }
    fn cuMemFree_v2(address: u64) {
        memory().free(address)
    }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (device, mut memory) = (current_device()?, memory());
        memory.uses.enter(device)?;
        free.put(memory.uses.free_bytes(device) as usize)?;
        total.put(setup().memory_bytes() as usize)
    }
    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, _flags: c_uint) {
        address.put(memory().pin(bytes as u64)?)
    }
    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) {
        address.put(memory().pin(bytes as u64)?)
    }
    fn cuMemFreeHost(address: u64) {
        memory().unpin(address)
    }
    fn cuMemHostRegister_v2(address: u64, bytes: usize, _flags: c_uint) {
        memory().register(address, bytes as u64);
        Ok(())
    }
    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, address: u64, _flags: c_uint) {
        device.put(address)
    }
    fn cuMemHostUnregister(address: u64) {
        memory().unregister(address)
    }
    fn cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        copy(to, from, bytes, BY_ADDRESS);
        Ok(())
    }
    fn cuMemcpyDtoH_v2(to: Pointer, from: Pointer, bytes: usize) {
        copy(to, from, bytes, DEVICE_TO_HOST);
        Ok(())
    }
    fn cuMemcpyDtoHAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        copy(to, from, bytes, DEVICE_TO_HOST);
        Ok(())
    }
    fn cuMemcpyHtoD_v2(to: Pointer, from: Pointer, bytes: usize) {
        copy(to, from, bytes, HOST_TO_DEVICE);
        Ok(())
    }
    fn cuMemcpyHtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        copy(to, from, bytes, HOST_TO_DEVICE);
        Ok(())
    }
    fn cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) {
        copy(to, from, bytes, DEVICE_TO_DEVICE);
        Ok(())
    }
    fn cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        copy(to, from, bytes, DEVICE_TO_DEVICE);
        Ok(())
    }
    fn cuMemsetD8_v2(to: Pointer, value: u8, bytes: usize) {
        fill(to, value, bytes);
        Ok(())
    }
    fn cuMemsetD8Async(to: Pointer, value: u8, bytes: usize, stream: StreamHandle) {
        ran_on(stream);
        fill(to, value, bytes);
        Ok(())
    }
    fn cuPointerGetAttribute(value: Out<u8>, attribute: c_int, address: u64) {
        pointer_attribute(value, attribute, address)
    }
}

nothing! { Driver: cuMemSetAccess }

// Fills device memory with words of four bytes; the values are not recorded.
work! { Driver: cuMemsetD32_v2 cuMemsetD32Async cuStreamWriteValue32 cuStreamWriteValue32_v2 cuStreamBatchMemOp_v2 }

/// Queries a property of an address; each attribute has its own size (`CUpointer_attribute`).
fn pointer_attribute(value: Out<u8>, attribute: c_int, address: u64) -> Outcome {
    let range = memory().find(address);
    let device = |kind| match kind {
        Kind::Device(device) | Kind::Pool(device) | Kind::Managed(device) => device as c_int,
        Kind::Reserved | Kind::Host | Kind::Registered => 0,
    };
    let hosts = |kind| matches!(kind, Kind::Host | Kind::Registered);
    match (attribute, range) {
        // Context; memory type, host (1) or device (2); managed; device.
        (1, Some(range)) => value.put_bytes(&(device(range.kind) as u64 + 1).to_ne_bytes()),
        (2, Some(range)) => value.put_bytes(&(if hosts(range.kind) { 1_u32 } else { 2 }).to_ne_bytes()),
        (8, Some(range)) => {
            value.put_bytes(&u32::from(matches!(range.kind, Kind::Managed(_))).to_ne_bytes()[..1])
        }
        (9, Some(range)) => value.put_bytes(&device(range.kind).to_ne_bytes()),
        // The start and the size of the allocation.
        (11, Some(range)) => value.put_bytes(&range.begin.to_ne_bytes()),
        (12, Some(range)) => value.put_bytes(&range.bytes.to_ne_bytes()),
        // The address for kernels: Triton queries it for every pointer, including those that are not CUDA's.
        (3 | 4, _) => value.put_bytes(&address.to_ne_bytes()),
        _ => Err(Failure::InvalidValue),
    }
}
