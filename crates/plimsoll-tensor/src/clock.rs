//! The estimated time of a simulated GPU: each stream has a clock, and each kernel advances its stream's clock.
//!
//! A kernel takes a fixed time plus the longer of its arithmetic and its memory traffic; these run at a fraction of the
//! datasheet's rates that depends on the operator's family. A collective takes a fixed time plus the time for its bytes
//! at a fraction of the link's rate. Meanwhile, kernels on other streams take longer, because NCCL's kernels occupy
//! multiprocessors. Events make one clock wait for another. The host is not modelled: the estimate assumes that the
//! host keeps up with its GPU, as in a captured step.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_alloc::StreamId;

use crate::cost::Cost;
use crate::dtype::DType;
use crate::properties::{DeviceProperties, FlopRates};
use crate::tf32;

/// The fraction of a rate that kernels reach, and the time that a launch takes. Fitted to the kernels of GPT-2, Llama
/// and ResNet-50 on an H200.
struct Reached {
    flops: f64,
    bytes: f64,
    fixed_s: f64,
}

/// The rates that the operators of one family reach.
fn reached(op: &str) -> Reached {
    let row = |flops, bytes, fixed_us: f64| Reached { flops, bytes, fixed_s: fixed_us * 1e-6 };
    let is_backward = op.contains("backward");
    match op {
        "matmul" | "addmm" => row(0.74, 0.8, 9.0),
        _ if op.contains("linear") && !is_backward => row(0.74, 0.8, 9.0),
        _ if op.starts_with("conv") => row(0.5, 0.7, 7.0),
        _ if op.contains("attention") && is_backward => row(0.28, 0.6, 22.0),
        _ if op.contains("attention") => row(0.28, 0.6, 9.0),
        _ if op.contains("norm") && is_backward => row(1.0, 0.45, 22.0),
        _ if op.contains("norm") => row(1.0, 0.72, 3.0),
        _ if op.contains("rotary") => row(1.0, 0.3, 3.0),
        _ if is_backward => row(1.0, 0.6, 8.0),
        _ => row(1.0, 0.8, 3.0),
    }
}

/// The fixed time of a collective: NCCL's kernels on NVLink.
const COLLECTIVE_S: f64 = 12e-6;
/// The fraction of a link's rate that a collective reaches: 240 of the 450 GB/s of an H100.
const LINK: f64 = 0.54;
/// The rate of a GPU's network card, for ranks on several hosts: 400 Gbit/s. Nothing was measured across hosts.
const NETWORK_BYTES_PER_S: f64 = 50e9;
/// The fixed time of a copy to or from pinned memory, and the fraction of the rate of PCI Express that it reaches.
const COPY_S: f64 = 8e-6;
const PINNED: f64 = 0.86;
/// How much longer a kernel takes if it begins during a collective.
const BESIDE_A_COLLECTIVE: f64 = 1.6;

/// The estimated seconds that an operator takes on a device; `None` if the device's rates are unknown. `dtype` is the
/// type of its first input.
fn seconds(of: &DeviceProperties, op: &str, cost: &Cost, dtype: Option<DType>) -> Option<f64> {
    let (bandwidth, flops) = (of.bandwidth?, of.flops?);
    if cost.ranks > 1 {
        let rate = match bandwidth.nvlink_bytes_per_s {
            _ if cost.hosts > 1 => NETWORK_BYTES_PER_S,
            Some(nvlink) => LINK * nvlink as f64,
            None => LINK * bandwidth.pcie_bytes_per_s as f64,
        };
        return Some(COLLECTIVE_S + cost.bytes_received as f64 / rate);
    }
    let reached = reached(op);
    let is_tf32 = match op.starts_with("conv") {
        true => tf32::is_allowed_in_convolutions(),
        false => tf32::is_allowed_in_matmul(),
    };
    let arithmetic = cost.flops as f64 / (reached.flops * flops_per_s(&flops, dtype, is_tf32));
    let bytes = (cost.bytes_read + cost.bytes_written) as f64;
    let memory = bytes / (reached.bytes * bandwidth.memory_bytes_per_s as f64);
    Some(reached.fixed_s + arithmetic.max(memory))
}

/// The estimated seconds of a copy between a device and pinned memory; `None` if the device's rates are unknown.
pub(crate) fn copy_seconds(of: &DeviceProperties, bytes: u64) -> Option<f64> {
    Some(COPY_S + bytes as f64 / (PINNED * of.bandwidth?.pcie_bytes_per_s as f64))
}

/// The rate of matrix products of this type. `is_tf32`: whether products of `float32` may be computed in TF32.
fn flops_per_s(of: &FlopRates, dtype: Option<DType>, is_tf32: bool) -> f64 {
    match dtype {
        Some(DType::F64) => of.f64 as f64,
        Some(DType::F16) => of.f16 as f64,
        Some(DType::BF16) => of.bf16.unwrap_or(of.f32) as f64,
        // Without tensor cores, products are further from the peak.
        _ => of.tf32.filter(|_| is_tf32).map_or(0.75 * of.f32 as f64, |tf32| tf32 as f64),
    }
}

thread_local! {
    static METER: Cell<Option<Meter>> = const { Cell::new(None) };
}

/// Seconds that this thread's operators take while [`metered`] runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct Meter {
    pub(crate) seconds: f64,
    pub(crate) without_last_operator: f64,
}

/// For a device with unknown rates: 2 TFLOP/s and 100 GB/s.
const NOMINAL_FLOPS_PER_S: f64 = 2e12;
const NOMINAL_BYTES_PER_S: f64 = 1e11;

/// Runs `f`. Returns its result and the estimated seconds of the operators that it ran on this thread, one after the other. They
/// depend only on sizes and on the device's datasheet.
pub(crate) fn metered<T>(f: impl FnOnce() -> T) -> (T, f64) {
    /// Restores the meter, even if `f` panics.
    struct Outer(Option<Meter>);
    impl Drop for Outer {
        fn drop(&mut self) {
            METER.set(self.0);
        }
    }
    let outer = Outer(METER.replace(Some(Meter::default())));
    let result = f();
    let seconds = METER.get().unwrap_or_default().seconds;
    drop(outer);
    (result, seconds)
}

/// The seconds that this thread's [`metered`] has added up so far.
pub(crate) fn metered_until_now() -> Option<Meter> {
    METER.get()
}

/// Whether this thread is inside [`metered`].
pub(crate) fn is_metered() -> bool {
    METER.get().is_some()
}

/// Adds a run of an operator to the meter, if there is one.
pub(crate) fn meter(on: &DeviceProperties, op: &str, cost: &Cost, dtype: Option<DType>) {
    if let Some(Meter { seconds: sum, .. }) = METER.get() {
        let own = estimated(on, op, cost, dtype);
        METER.set(Some(Meter { seconds: sum + own, without_last_operator: sum }));
    }
}

/// The estimated seconds that an operator takes. On a device with unknown rates, uses those of a nominal device.
pub(crate) fn estimated(on: &DeviceProperties, op: &str, cost: &Cost, dtype: Option<DType>) -> f64 {
    seconds(on, op, cost, dtype).unwrap_or_else(|| {
        let bytes = (cost.bytes_read + cost.bytes_written) as f64;
        (cost.flops as f64 / NOMINAL_FLOPS_PER_S).max(bytes / NOMINAL_BYTES_PER_S)
    })
}

/// One kernel, or one collective, of a simulated GPU: [`Device::record_timeline`](crate::Device::record_timeline).
///
/// ```
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::like("H200")?);
/// let x = Tensor::zeros(&[1024, 1024], &device)?;
/// let (_, spans) = device.record_timeline(|| x.matmul(&x));
/// assert_eq!((spans[0].op, spans[0].stream), ("matmul", 0));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineSpan {
    /// The operator.
    pub op: &'static str,
    /// The number of its stream; the default one has number 0.
    pub stream: u64,
    /// The time from the creation of the device to the beginning of the work.
    pub start: Duration,
    /// The duration of the work.
    pub duration: Duration,
    /// What the work computes, reads, writes and receives.
    pub cost: Cost,
}

/// The clocks of a simulated GPU.
pub(crate) struct Clocks {
    properties: DeviceProperties,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When each stream finishes, in seconds.
    streams: BTreeMap<StreamId, f64>,
    /// The latest collective: its stream, and when it ends.
    collective: Option<(StreamId, f64)>,
    /// When the last copy to the host ends, and the last one to the device.
    links: [f64; 2],
    spans: Option<Vec<TimelineSpan>>,
}

impl Clocks {
    /// `None` if the device's rates are unknown.
    pub(crate) fn new(properties: &DeviceProperties) -> Option<Clocks> {
        properties.bandwidth?;
        properties.flops?;
        Some(Clocks { properties: properties.clone(), state: Mutex::default() })
    }

    /// Adds a run of an operator to a stream. `dtype` is the type of its first input.
    pub(crate) fn run(&self, op: &'static str, cost: Cost, dtype: Option<DType>, on: StreamId) {
        let mut state = self.state();
        let begin = state.streams.get(&on).copied().unwrap_or(0.0);
        let mut seconds = seconds(&self.properties, op, &cost, dtype).unwrap_or(0.0);
        if cost.ranks > 1 {
            state.collective = Some((on, begin + seconds));
        } else if state.collective.is_some_and(|(stream, end)| stream != on && begin < end) {
            seconds *= BESIDE_A_COLLECTIVE;
        }
        state.streams.insert(on, begin + seconds);
        if let Some(spans) = &mut state.spans {
            let (start, duration) = (Duration::from_secs_f64(begin), Duration::from_secs_f64(seconds));
            spans.push(TimelineSpan { op, stream: on.0, start, duration, cost });
        }
    }

    /// Adds a copy between the device and pinned memory to a stream.
    pub(crate) fn copy(&self, to_device: bool, bytes: u64, on: StreamId) {
        let Some(seconds) = copy_seconds(&self.properties, bytes) else { return };
        let mut state = self.state();
        let State { streams, links, spans, .. } = &mut *state;
        // Copies in one direction share the link, whatever their streams.
        let link = &mut links[usize::from(to_device)];
        let begin = streams.get(&on).copied().unwrap_or(0.0).max(*link);
        *link = begin + seconds;
        streams.insert(on, *link);
        if let Some(spans) = spans {
            let (op, cost) = match to_device {
                true => ("copy_to_device", Cost { bytes_written: bytes, ..Cost::default() }),
                false => ("copy_to_host", Cost { bytes_read: bytes, ..Cost::default() }),
            };
            let (start, duration) = (Duration::from_secs_f64(begin), Duration::from_secs_f64(seconds));
            spans.push(TimelineSpan { op, stream: on.0, start, duration, cost });
        }
    }

    /// When a stream finishes, in seconds.
    pub(crate) fn done(&self, stream: StreamId) -> f64 {
        self.state().streams.get(&stream).copied().unwrap_or(0.0)
    }

    /// Makes later work on a stream wait until `at`.
    pub(crate) fn wait(&self, stream: StreamId, at: f64) {
        let mut state = self.state();
        let clock = state.streams.entry(stream).or_default();
        *clock = clock.max(at);
    }

    /// Adds work to a stream that takes this long.
    pub(crate) fn advance(&self, stream: StreamId, seconds: f64) {
        *self.state().streams.entry(stream).or_default() += seconds;
    }

    /// Runs `f`, and turns the clocks back. Returns by how much it advanced a stream, in seconds.
    pub(crate) fn undone<T>(&self, stream: StreamId, f: impl FnOnce() -> T) -> (T, f64) {
        let (streams, collective, links) = {
            let state = self.state();
            (state.streams.clone(), state.collective, state.links)
        };
        let result = f();
        let mut state = self.state();
        let clock = |streams: &BTreeMap<StreamId, f64>| streams.get(&stream).copied().unwrap_or(0.0);
        let seconds = clock(&state.streams) - clock(&streams);
        (state.streams, state.collective, state.links) = (streams, collective, links);
        (result, seconds)
    }

    /// When the last stream finishes.
    pub(crate) fn all_done(&self) -> Duration {
        Duration::from_secs_f64(self.state().streams.values().copied().fold(0.0, f64::max))
    }

    /// Starts recording spans, or stops and returns them.
    pub(crate) fn record(&self, begins: bool) -> Vec<TimelineSpan> {
        std::mem::replace(&mut self.state().spans, begins.then(Vec::new)).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::flops_per_s;
    use crate::{DType, Device, Event, ProcessGroup, SimConfig, Stream, Tensor, with_stream};

    fn ms(device: &Device) -> f64 {
        device.estimated_time().map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }

    #[test]
    fn streams_run_side_by_side_and_wait_for_events() {
        let device = Device::sim(SimConfig::like("H100").unwrap());
        let x = Tensor::empty(&[8192, 8192], DType::BF16, &device).unwrap();
        x.matmul(&x).unwrap();
        let one = ms(&device);
        assert!(one > 1.0);
        let side = Stream::new(&device);
        with_stream(&side, || x.matmul(&x)).unwrap();
        assert_eq!(ms(&device), one, "beside the first");
        with_stream(&side, || x.matmul(&x)).unwrap();
        assert!((ms(&device) - 2.0 * one).abs() < 1e-9);
        let event: Event = side.record_event().unwrap();
        device.current_stream().wait_event(&event).unwrap();
        x.matmul(&x).unwrap();
        assert!((ms(&device) - 3.0 * one).abs() < 1e-9, "after the second on the other stream");
    }

    #[test]
    fn collectives_take_the_time_of_the_link_and_slow_kernels_down() {
        let device = Device::sim(SimConfig::like("H100").unwrap());
        let group = ProcessGroup::simulated(0, 2);
        let buffer = Tensor::empty(&[128 << 20], DType::BF16, &device).unwrap(); // 256 MiB
        let x = Tensor::empty(&[4096, 4096], DType::BF16, &device).unwrap();
        let (_, alone) = device.record_timeline(|| x.matmul(&x).unwrap());
        let side = group.stream(&device);
        side.wait_stream(&device.current_stream()).unwrap();
        let (_, spans) = device.record_timeline(|| {
            let part = buffer.narrow(0, 0, 64 << 20).unwrap();
            with_stream(&side, || group.all_gather_into_tensor(&buffer, &part)).unwrap();
            x.matmul(&x).unwrap()
        });
        // Measured on two H100s: 555 µs.
        let gather = spans.iter().find(|span| span.op == "all_gather").unwrap();
        assert!((gather.duration.as_secs_f64() * 1e6 - 555.0).abs() < 30.0, "{:?}", gather.duration);
        let product = spans.iter().find(|span| span.op == "matmul").unwrap();
        assert_eq!(product.start, gather.start);
        assert!(product.duration > alone[0].duration);
    }

    #[test]
    fn tf32_is_an_option_of_products_of_float32() {
        let rates = Device::sim(SimConfig::like("H200").unwrap()).properties().flops.unwrap();
        let tf32 = flops_per_s(&rates, Some(DType::F32), true);
        assert!(tf32 > 7.0 * flops_per_s(&rates, Some(DType::F32), false));
        let of = |is_tf32| flops_per_s(&rates, Some(DType::BF16), is_tf32);
        assert_eq!(of(true), of(false));
    }

    #[test]
    fn other_devices_have_no_estimate() {
        for device in [Device::cpu(), Device::sim(SimConfig::new(1 << 30))] {
            let (_, spans) = device.record_timeline(|| Tensor::ones(&[4], &device).unwrap());
            assert!(device.estimated_time().is_none() && spans.is_empty());
        }
    }
}
