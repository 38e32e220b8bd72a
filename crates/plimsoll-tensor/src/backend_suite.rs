//! Checks that every device must pass: [`check_backend`].

use crate::autograd::no_grad;
use crate::capture::Graph;
use crate::device::Device;
use crate::dtype::{DType, Element, by_dtype};
use crate::error::Result;
use crate::facts::DeviceKind;
use crate::sim::SimConfig;
use crate::stream::{Stream, with_stream};
use crate::suite::{Case, Comparison, compare_cases, same_requests};
use crate::tensor::Tensor;

/// Checks a device that has values, for example the device of your own [`Backend`](crate::backend::Backend):
///
/// - the cases and their derivatives compute the host's values, up to rounding: see [`compare_cases`];
/// - they request the memory that a simulated device requests, so that a simulation predicts the device; this holds for the
///   default settings of the allocator and [`kernel_type`](crate::backend::Backend::kernel_type);
/// - values of every type arrive on the device and come back, and copies from pinned memory do;
/// - on a device with queues, work that events order across streams is done in that order, and a captured function computes
///   in each replay what the function computes.
///
/// Nothing else may use the device at the same time. The operators' own cases are in [`OPERATORS`](crate::OPERATORS):
///
/// ```
/// use plimsoll_tensor::suite::Case;
/// use plimsoll_tensor::{Device, OPERATORS, check_backend};
/// let softmax = OPERATORS.iter().filter(|(file, _)| *file == "softmax");
/// let cases: Vec<Case> = softmax.flat_map(|(_, cases)| cases()).collect();
/// let found = check_backend(&cases, &Device::cpu_with(Default::default()));
/// assert!(found.differ.is_empty(), "{:#?}", found.differ);
/// ```
pub fn check_backend(cases: &[Case], device: &Device) -> Comparison {
    let mut found = compare_cases(cases, device);
    let mut check = |what: &str, done: std::result::Result<(), String>| match done {
        Ok(()) => found.agree += 1,
        Err(why) => found.differ.push(format!("{what}: {why}")),
    };
    for case in cases {
        // A simulated GPU makes the requests of NVIDIA's kernels.
        if device.facts().kind == DeviceKind::Cpu {
            check(&case.name, requests(case, device));
        }
    }
    for dtype in DType::ALL {
        check(&format!("values of {dtype}"), said(moved(dtype, device)));
    }
    check("copies from pinned memory", said(pinned(device)));
    if device.queues().is_some() {
        check("two streams and an event", said(two_streams(device)));
        check("a captured function", said(captured(device)));
    }
    found
}

/// `Ok(None)` is a check that holds.
fn said(done: Result<Option<String>>) -> std::result::Result<(), String> {
    match done {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(why),
        Err(error) => Err(format!("an error: {error}")),
    }
}

fn requests(case: &Case, device: &Device) -> std::result::Result<(), String> {
    same_requests(case, device, &Device::sim(SimConfig::new(1 << 36)))
}

fn differs<T: PartialEq + std::fmt::Debug>(got: &T, expected: &T) -> Option<String> {
    (got != expected).then(|| format!("{got:?}, not {expected:?}"))
}

fn moved(dtype: DType, device: &Device) -> Result<Option<String>> {
    by_dtype!(dtype, T => {
        let values: Vec<T> = (0..77).map(|x| T::from_f64(f64::from(x % 2))).collect();
        let there = Tensor::from_slice(&values, &[7, 11], device)?;
        let back = there.t()?.contiguous()?.to_device(&Device::cpu())?.t()?.contiguous()?;
        Ok(differs(&back.to_vec::<T>()?, &values))
    })
}

fn pinned(device: &Device) -> Result<Option<String>> {
    let values: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let here = Tensor::from_slice(&values, &[1000], &Device::cpu())?.pin_memory()?;
    Ok(differs(&here.to_device(device)?.mul_scalar(2.0)?.mul_scalar(0.5)?.to_vec::<f32>()?, &values))
}

fn two_streams(device: &Device) -> Result<Option<String>> {
    let (first, second) = (Stream::new(device), Stream::new(device));
    let mut x = Tensor::zeros(&[1 << 16], device)?;
    first.wait_stream(&device.current_stream())?;
    for round in 0..20 {
        let on = if round % 2 == 0 { &first } else { &second };
        x = with_stream(on, || no_grad(|| x.add_scalar(1.0)?.mul_scalar(2.0)?.sub_scalar(1.0)))?;
        let event = on.record_event()?;
        let next = if round % 2 == 0 { &second } else { &first };
        next.wait_event(&event)?;
    }
    device.current_stream().wait_stream(&first)?;
    let values = x.to_vec::<f32>()?;
    // x ← 2x + 1, twenty times.
    Ok(differs(&values, &vec![(1u32 << 20) as f32 - 1.0; 1 << 16]))
}

fn captured(device: &Device) -> Result<Option<String>> {
    let x = Tensor::zeros(&[64, 64], device)?;
    let f = || no_grad(|| x.matmul(&x)?.add_scalar(1.0)?.relu());
    let (mut graph, y) = Graph::capture(device, None, f)?;
    for value in [1.0, -2.0, 3.0] {
        x.fill_(value)?;
        graph.replay()?;
        let replayed = y.to_vec::<f32>()?;
        if let Some(why) = differs(&replayed, &f()?.to_vec::<f32>()?) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}
