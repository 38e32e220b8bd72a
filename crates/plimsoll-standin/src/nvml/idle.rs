//! The state of a device that NVML reports: an idle GPU with a context. Nothing runs, and the clocks are at their maximum.

use std::ffi::{c_char, c_int, c_uint};

use super::{DRIVER, DeviceHandle, has_memory, of, uuid_text};
use crate::argument::{Out, Text, put_text};
use crate::call::calls;
use crate::error::Failure;
use crate::gpu::setup;
use crate::memory::memory;

/// The temperature in degrees Celsius.
pub(crate) const TEMPERATURE: c_uint = 30;

/// An idle device's power in milliwatts: a tenth of the limit.
pub(crate) fn power_mw() -> c_uint {
    setup().gpu.power_watts * 100
}

/// The frequency of a clock in MHz. `kind` is an `nvmlClockType_t`: graphics, multiprocessors, memory or video.
pub(crate) fn clock_mhz(kind: c_int) -> Result<c_uint, Failure> {
    let gpu = &setup().gpu;
    let khz = match kind {
        0 | 1 | 3 => gpu.clock_khz,
        2 => gpu.memory_clock_khz,
        _ => return Err(Failure::InvalidValue),
    };
    Ok(khz.unsigned_abs() / 1000)
}

/// The architecture of a compute capability, as an `nvmlDeviceArchitecture_t`.
fn architecture((major, minor): (i32, i32)) -> c_uint {
    match (major, minor) {
        (6, _) => 4,
        (7, 0) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        _ => 10,
    }
}

calls! { Nvml:
    /// The utilization of the multiprocessors and of memory, in percent of the time.
    fn nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: Out<[c_uint; 2]>) {
        of(device)?;
        rates.put([0, 0])
    }
    fn nvmlDeviceGetEncoderUtilization(device: DeviceHandle, percent: Out<c_uint>, period_us: Out<c_uint>) {
        of(device)?;
        period_us.offer(1_000_000);
        percent.put(0)
    }
    fn nvmlDeviceGetDecoderUtilization(device: DeviceHandle, percent: Out<c_uint>, period_us: Out<c_uint>) {
        of(device)?;
        period_us.offer(1_000_000);
        percent.put(0)
    }
    fn nvmlDeviceGetTemperature(device: DeviceHandle, _sensor: c_int, degrees: Out<c_uint>) {
        of(device)?;
        degrees.put(TEMPERATURE)
    }
    /// Version, sensor, temperature.
    fn nvmlDeviceGetTemperatureV(device: DeviceHandle, value: Out<[c_uint; 3]>) {
        of(device)?;
        let [version, sensor, _] = value.get()?;
        value.put([version, sensor, TEMPERATURE])
    }
    fn nvmlDeviceGetPowerUsage(device: DeviceHandle, milliwatts: Out<c_uint>) {
        of(device)?;
        milliwatts.put(power_mw())
    }
    fn nvmlDeviceGetPowerManagementLimit(device: DeviceHandle, milliwatts: Out<c_uint>) {
        of(device)?;
        milliwatts.put(setup().gpu.power_watts * 1000)
    }
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: DeviceHandle, milliwatts: Out<c_uint>) {
        of(device)?;
        milliwatts.put(setup().gpu.power_watts * 1000)
    }
    fn nvmlDeviceGetEnforcedPowerLimit(device: DeviceHandle, milliwatts: Out<c_uint>) {
        of(device)?;
        milliwatts.put(setup().gpu.power_watts * 1000)
    }
    fn nvmlDeviceGetTotalEnergyConsumption(device: DeviceHandle, millijoules: Out<u64>) {
        of(device)?;
        millijoules.put(0)
    }
    fn nvmlDeviceGetFanSpeed(device: DeviceHandle, percent: Out<c_uint>) {
        of(device)?;
        percent.put(0)
    }
    fn nvmlDeviceGetClockInfo(device: DeviceHandle, kind: c_int, mhz: Out<c_uint>) {
        of(device)?;
        mhz.put(clock_mhz(kind)?)
    }
    fn nvmlDeviceGetMaxClockInfo(device: DeviceHandle, kind: c_int, mhz: Out<c_uint>) {
        of(device)?;
        mhz.put(clock_mhz(kind)?)
    }
    fn nvmlDeviceGetApplicationsClock(device: DeviceHandle, kind: c_int, mhz: Out<c_uint>) {
        of(device)?;
        mhz.put(clock_mhz(kind)?)
    }
    fn nvmlDeviceGetClock(device: DeviceHandle, kind: c_int, _which: c_int, mhz: Out<c_uint>) {
        of(device)?;
        mhz.put(clock_mhz(kind)?)
    }
    /// The reason for lowered clocks. 1 means that the GPU is idle.
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: DeviceHandle, reasons: Out<u64>) {
        of(device)?;
        reasons.put(1)
    }
    fn nvmlDeviceGetCurrentClocksEventReasons(device: DeviceHandle, reasons: Out<u64>) {
        of(device)?;
        reasons.put(1)
    }
    /// P0, the fastest.
    fn nvmlDeviceGetPerformanceState(device: DeviceHandle, state: Out<c_int>) {
        of(device)?;
        state.put(0)
    }
    fn nvmlDeviceGetMinorNumber(device: DeviceHandle, number: Out<c_uint>) {
        number.put(setup().bus(of(device)?).unsigned_abs() - 1)
    }
    fn nvmlDeviceGetPersistenceMode(device: DeviceHandle, mode: Out<c_int>) {
        of(device)?;
        mode.put(1)
    }
    fn nvmlDeviceGetComputeMode(device: DeviceHandle, mode: Out<c_int>) {
        of(device)?;
        mode.put(0)
    }
    fn nvmlDeviceGetDisplayMode(device: DeviceHandle, mode: Out<c_int>) {
        of(device)?;
        mode.put(0)
    }
    fn nvmlDeviceGetDisplayActive(device: DeviceHandle, active: Out<c_int>) {
        of(device)?;
        active.put(0)
    }
    /// MIG is off, now and after a reset.
    fn nvmlDeviceGetMigMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) {
        of(device)?;
        pending.offer(0);
        current.put(0)
    }
    fn nvmlDeviceGetArchitecture(device: DeviceHandle, number: Out<c_uint>) {
        of(device)?;
        number.put(architecture(setup().gpu.capability))
    }
    fn nvmlDeviceGetMemoryBusWidth(device: DeviceHandle, bits: Out<c_uint>) {
        of(device)?;
        bits.put(setup().gpu.bus_bits.unsigned_abs())
    }
    fn nvmlDeviceGetPcieThroughput(device: DeviceHandle, _counter: c_int, kilobytes_per_s: Out<c_uint>) {
        of(device)?;
        kilobytes_per_s.put(0)
    }
    /// Version, then total, reserved, free and used bytes.
    fn nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, info: Out<[u64; 5]>) {
        has_memory()?;
        let (total, free) = (setup().memory_bytes(), memory().uses.free_bytes(of(device)?));
        let [version, ..] = info.get()?;
        let reserve = setup().reserve_bytes();
        info.put([version, total + reserve, reserve, free, total - free])
    }
    /// BAR1 memory, through which the host accesses the device: total, free and used bytes.
    fn nvmlDeviceGetBAR1MemoryInfo(device: DeviceHandle, info: Out<[u64; 3]>) {
        of(device)?;
        has_memory()?;
        info.put([setup().memory_bytes().next_power_of_two(), setup().memory_bytes().next_power_of_two(), 0])
    }
    /// The legacy address (16 bytes), the domain, bus, device and two device IDs, and the address (32 bytes).
    fn nvmlDeviceGetPciInfo_v3(device: DeviceHandle, info: Out<u8>) {
        let number = of(device)?;
        let mut bytes = vec![0; 68];
        let (short, long) = (setup().pci(number), format!("0000{}", setup().pci(number).to_uppercase()));
        bytes[..short.len()].copy_from_slice(short.as_bytes());
        bytes[20..24].copy_from_slice(&setup().bus(number).to_ne_bytes());
        bytes[36..36 + long.len()].copy_from_slice(long.as_bytes());
        info.put_bytes(&bytes)
    }
    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<DeviceHandle>) {
        let wanted = uuid.read()?;
        let found = (0..setup().devices()).find(|device| uuid_text(*device) == wanted);
        device.put(setup().in_machine(found.ok_or(Failure::InvalidValue)?) as DeviceHandle + 1)
    }
    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        put_text(version, length as usize, &format!("13.{DRIVER}"))
    }
}
