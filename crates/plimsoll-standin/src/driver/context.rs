//! Devices and their contexts, one per device; error names; function lookup by name.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::ContextHandle;
use crate::argument::{Out, Text, put_text};
use crate::call::{calls, new_handle, nothing};
use crate::error::{Failure, Outcome};
use crate::gpu::{self, current_device, set_current_device, setup};
use crate::memory::memory;
use crate::runtime::{Symbol, address_of};
use crate::version;

calls! { Driver:
    fn cuDriverGetVersion(version: Out<c_int>) {
        version.put(version::DRIVER)
    }
    fn cuDeviceGet(device: Out<c_int>, number: c_int) {
        setup().device(number)?;
        device.put(number)
    }
    fn cuDeviceGetCount(count: Out<c_int>) {
        count.put(c_int::try_from(setup().devices()).unwrap_or(c_int::MAX))
    }
    fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: c_int) {
        setup().device(device)?;
        put_text(name, usize::try_from(length).unwrap_or(0), setup().gpu.card)
    }
    fn cuDeviceGetUuid(uuid: Out<u8>, device: c_int) {
        uuid.put_bytes(&setup().uuid(setup().device(device)?))
    }
    fn cuDeviceGetUuid_v2(uuid: Out<u8>, device: c_int) {
        uuid.put_bytes(&setup().uuid(setup().device(device)?))
    }
    fn cuDeviceGetPCIBusId(address: Out<c_char>, length: c_int, device: c_int) {
        let text = setup().pci(setup().device(device)?);
        put_text(address, usize::try_from(length).unwrap_or(0), &text)
    }
    fn cuDeviceTotalMem_v2(bytes: Out<u64>, device: c_int) {
        setup().device(device)?;
        bytes.put(setup().memory_bytes())
    }
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        value.put(gpu::attribute(setup(), setup().device(device)?, attribute))
    }
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let two = setup().device(device)? != setup().device(peer)?;
        can.put(c_int::from(two))
    }
    fn cuDevicePrimaryCtxRetain(context: Out<ContextHandle>, device: c_int) {
        let device = setup().device(device)?;
        memory().uses.enter(device)?;
        context.put(context_of(device))
    }
    /// Flags (none), and whether the context is active (always).
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        setup().device(device)?;
        flags.offer(0);
        active.put(1)
    }
    fn cuCtxGetCurrent(context: Out<ContextHandle>) {
        context.put(context_of(current_device()?))
    }
    fn cuCtxSetCurrent(context: ContextHandle) {
        make_current(context)
    }
    fn cuCtxPushCurrent_v2(context: ContextHandle) {
        make_current(context)
    }
    fn cuCtxPopCurrent_v2(context: Out<ContextHandle>) {
        context.offer(context_of(current_device()?));
        Ok(())
    }
    fn cuCtxGetDevice(device: Out<c_int>) {
        device.put(c_int::try_from(current_device()?).unwrap_or(c_int::MAX))
    }
    fn cuCtxGetLimit(bytes: Out<usize>, _limit: c_int) {
        bytes.put(0)
    }
    fn cuCtxGetApiVersion(_context: ContextHandle, version: Out<c_uint>) {
        version.put(version::DRIVER.unsigned_abs())
    }
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }
    fn cuGetErrorString(_error: c_int, text: Out<*const c_char>) {
        text.put(c"an error of the stand-in device".as_ptr())
    }
    fn cuGetErrorName(error: c_int, text: Out<*const c_char>) {
        text.put(name_of(error).as_ptr())
    }
    fn cuGetProcAddress(name: Text, address: Out<Symbol>, _version: c_int, _flags: u64) {
        address.put(address_of(&name.read()?)?)
    }
    fn cuGetProcAddress_v2(
        name: Text, address: Out<Symbol>, _version: c_int, _flags: u64, result: Out<c_int>,
    ) {
        result.offer(0);
        address.put(address_of(&name.read()?)?)
    }
    /// Does nothing, because there is no log.
    fn cuLogsRegisterCallback(_callback: *const c_void, _data: *const c_void, handle: Out<u64>) {
        handle.put(new_handle())
    }
}

nothing! { Driver:
    cuLogsUnregisterCallback cuInit cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags_v2 cuCtxSetLimit
    cuCtxSynchronize
    cuCtxEnablePeerAccess cuCtxDisablePeerAccess cuProfilerStart cuProfilerStop
}

fn context_of(device: usize) -> ContextHandle {
    device as ContextHandle + 1
}

/// Sets this thread's context; null leaves the current one.
fn make_current(context: ContextHandle) -> Outcome {
    match context.checked_sub(1) {
        None => Ok(()),
        Some(device) => set_current_device(c_int::try_from(device).map_err(|_| Failure::InvalidDevice)?),
    }
}

/// The driver's name for an error that the stand-in returns.
fn name_of(error: c_int) -> &'static std::ffi::CStr {
    match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        _ => c"CUDA_ERROR_UNKNOWN",
    }
}
