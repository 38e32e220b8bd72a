//! `libnvidia-ml`: the queries that PyTorch makes to count devices and to explain an out-of-memory error. As inside a container,
//! no process is listed.

use std::ffi::{c_char, c_int, c_uint};

use plimsoll_gpu::Pool;

use crate::argument::{Out, Text, put_text};
use crate::call::{calls, nothing, unknown};
use crate::error::{Failure, Outcome};
use crate::gpu::setup;
use crate::memory::memory;
use crate::version;

pub(crate) mod idle;

/// The driver's version; it supports CUDA 13.2.
pub(crate) const DRIVER: &str = "595.00";

/// NVML's handle of a device, which is its index in the machine plus 1. `CUDA_VISIBLE_DEVICES` hides no device from NVML.
type DeviceHandle = u64;

calls! { Nvml:
    fn nvmlDeviceGetCount(count: Out<c_uint>) {
        count.put(setup().in_the_machine as c_uint)
    }
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) {
        count.put(setup().in_the_machine as c_uint)
    }
    fn nvmlDeviceGetHandleByIndex(number: c_uint, device: Out<DeviceHandle>) {
        device.put(handle(number)?)
    }
    fn nvmlDeviceGetHandleByIndex_v2(number: c_uint, device: Out<DeviceHandle>) {
        device.put(handle(number)?)
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(address: Text, device: Out<DeviceHandle>) {
        let found = setup().at_pci(&address.read()?).ok_or(Failure::InvalidValue)?;
        device.put(handle(setup().in_machine(found) as c_uint)?)
    }
    fn nvmlDeviceGetIndex(device: DeviceHandle, number: Out<c_uint>) {
        number.put(setup().in_machine(of(device)?) as c_uint)
    }
    fn nvmlDeviceGetName(device: DeviceHandle, name: Out<c_char>, length: c_uint) {
        of(device)?;
        put_text(name, length as usize, setup().gpu.card)
    }
    fn nvmlDeviceGetUUID(device: DeviceHandle, uuid: Out<c_char>, length: c_uint) {
        put_text(uuid, length as usize, &uuid_text(of(device)?))
    }
    /// Total, free and used bytes. Total and used include the driver's reserve.
    fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, info: Out<[u64; 3]>) {
        has_memory()?;
        let free = memory().uses.free_bytes(of(device)?);
        let total = setup().memory_bytes() + setup().reserve_bytes();
        info.put([total, free, total - free])
    }
    fn nvmlDeviceGetCudaComputeCapability(device: DeviceHandle, major: Out<c_int>, minor: Out<c_int>) {
        of(device)?;
        major.put(setup().gpu.capability.0)?;
        minor.put(setup().gpu.capability.1)
    }
    fn nvmlDeviceGetComputeRunningProcesses(_device: DeviceHandle, count: Out<c_uint>, _processes: Out<u8>) {
        count.put(0)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        _device: DeviceHandle, count: Out<c_uint>, _processes: Out<u8>,
    ) {
        count.put(0)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(_device: DeviceHandle, count: Out<c_uint>, _processes: Out<u8>) {
        count.put(0)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        _device: DeviceHandle, count: Out<c_uint>, _processes: Out<u8>,
    ) {
        count.put(0)
    }
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        version.put(version::DRIVER)
    }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.put(version::DRIVER)
    }
    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        put_text(version, length as usize, DRIVER)
    }
}

nothing! { Nvml: nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlShutdown }

unknown! { Nvml:
    nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetNumaNodeId nvmlDeviceGetVirtualizationMode nvmlDeviceGetP2PStatus nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkCapability
}

/// The message for an error code.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(error: c_int) -> *const c_char {
    if error == 0 { c"Success".as_ptr() } else { c"an error of the stand-in device".as_ptr() }
}

/// A device's UUID in NVML's format.
pub(crate) fn uuid_text(device: usize) -> String {
    let bytes = setup().uuid(device);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].map(hex);
    format!("GPU-{}", parts.join("-"))
}

fn handle(number: c_uint) -> Outcome<DeviceHandle> {
    let number = number as usize;
    if number < setup().in_the_machine { Ok(number as DeviceHandle + 1) } else { Err(Failure::InvalidDevice) }
}

/// A GPU that shares the host's memory supports no query about memory of its own.
fn has_memory() -> Outcome {
    if setup().gpu.pool == Pool::Host { Err(Failure::NotSupported) } else { Ok(()) }
}

/// CUDA's number of a device. Queries about a device that this process does not see fail.
fn of(handle: DeviceHandle) -> Outcome<usize> {
    let number = handle.checked_sub(1).and_then(|number| usize::try_from(number).ok());
    setup().seen_as(number.ok_or(Failure::InvalidHandle)?).ok_or(Failure::InvalidDevice)
}
