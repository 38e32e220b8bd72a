//! Advice in a few sentences: a leak to fix, a setting, or how to reduce the largest category.

use plimsoll_alloc::Category;

use super::{Report, words};
use crate::explain::{Cause, DeviceExplanation};
use crate::whatif::WhatIf;

/// The largest category gets advice only if it is at least this percentage of live memory.
const MUCH_PERCENT: u64 = 25;

/// The advice, the most effective first. `what_if` is the simulation of other settings, if it was made. `size` formats
/// a number of bytes.
pub fn advice(
    report: Report<'_>,
    device: &DeviceExplanation,
    what_if: Option<&WhatIf>,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let mut advice = leak(&report, device, &size);
    advice.extend(words::unused_graph(report.snapshot, device, &size));
    let is_explained = !advice.is_empty();
    let cause = device.failure.map(|failure| failure.cause());
    match (cause, device.held_by_others()) {
        (_, Some(others)) => advice.push(format!(
            "free device memory used outside this program: {} (nvidia-smi lists processes)",
            size(others)
        )),
        (Some(Cause::Capacity { short_bytes }), None) => {
            advice.push(less_at_failure(device, short_bytes, &size));
        }
        _ => advice.extend(what_if.map(|what_if| words::best_setting(what_if, &size))),
    }
    if !is_explained {
        advice.extend(largest(device, report.snapshot.is_own()));
    }
    advice
}

/// A sentence that says how much less memory the program must use, for the failed request and for everything that it
/// still needed afterwards.
fn less_at_failure(device: &DeviceExplanation, short_bytes: u64, size: impl Fn(u64) -> String) -> String {
    let needed = device.still_needed.as_ref().zip(device.failure);
    let all = needed.and_then(|(needed, failure)| Some((needed, needed.short_bytes(&failure)?)));
    match all {
        Some((needed, all_bytes)) => format!(
            "use at least {} less memory: {} for this request, the remainder for {} ({}); no allocator setting can \
             help",
            size(all_bytes),
            size(short_bytes),
            needed.rest.name(),
            needed.confidence
        ),
        None => format!(
            "use at least {} less memory at this request: no allocator setting can help",
            size(short_bytes)
        ),
    }
}

/// Sentences about the pattern of a leak, and about the line that leaks most.
fn leak(report: &Report<'_>, device: &DeviceExplanation, size: impl Fn(u64) -> String) -> Vec<String> {
    if !words::leaks(device) {
        return Vec::new();
    }
    let mut advice = words::patterns(report.snapshot, device);
    advice.extend(device.leaks.leaking().next().map(|line| {
        let place = words::leaking_place(report.snapshot, line);
        format!("{place} keeps {} of each step", size(line.course.growth.usual_bytes))
    }));
    advice
}

/// A sentence about how to reduce the largest category.
fn largest(device: &DeviceExplanation, is_own: bool) -> Option<String> {
    let share = device.owners.by_category.iter().find(|share| share.key.category.purpose().is_some())?;
    let (bytes, all) = (u128::from(share.bytes), u128::from(device.owners.bytes));
    if all == 0 || bytes * 100 < all * u128::from(MUCH_PERCENT) {
        return None;
    }
    let percent = 100.0 * bytes as f64 / all as f64;
    let category = share.key.category.purpose()?;
    let are = if category == Category::OptimizerState { "is" } else { "are" };
    Some(format!(
        "{} {are} {percent:.0} % of live memory: {}",
        category.plural(),
        if is_own { less_in_rust(category) } else { less(category) }
    ))
}

/// How to reduce a category.
fn less(category: Category) -> &'static str {
    match category {
        Category::Parameter => "keep the weights in 16 bits or fewer, or shard them over devices (FSDP)",
        Category::Buffer => "keep buffers in a smaller type, or on the CPU until they are used",
        Category::Gradient => {
            "free them before the next forward pass (zero_grad(set_to_none=True)), or shard them (FSDP)"
        }
        Category::OptimizerState => {
            "use an optimizer with less state (SGD, Adafactor, 8-bit Adam), or shard it (FSDP, ZeRO)"
        }
        Category::Activation => {
            "use a smaller batch or shorter sequences, activation checkpointing (torch.utils.checkpoint), or autocast"
        }
        Category::Temporary => "run the operation in smaller pieces, use a fused one, or a smaller batch",
        Category::Workspace => {
            "set CUBLAS_WORKSPACE_CONFIG to a smaller size, or torch.backends.cudnn.benchmark to False"
        }
        Category::Input => "use a smaller batch, or move less of it to the device at a time",
        Category::Output => "del them before the next step, or keep a copy on the CPU (.detach().cpu())",
    }
}

/// How to reduce a category in programs of our own runtime.
fn less_in_rust(category: Category) -> &'static str {
    match category {
        Category::Parameter => "keep the weights in 16 bits, or use a smaller model",
        Category::Buffer => "keep buffers on the CPU until they are used",
        Category::Gradient => "free them before the next forward pass (Optimizer::zero_grad)",
        Category::OptimizerState => "use an optimizer with less state, such as Sgd without momentum",
        Category::Activation => "use a smaller batch or shorter sequences, plimsoll::checkpoint, or autocast",
        Category::Temporary => "run the operation in smaller pieces, use a fused one, or a smaller batch",
        Category::Workspace => "use a smaller batch",
        Category::Input => "use a smaller batch, or move less of it to the device at a time",
        Category::Output => "drop them before the next step, or keep a copy on the CPU (Tensor::to_device)",
    }
}
