//! Accounts for the GPU's bytes, as far as a message shows.

use plimsoll_trace::message::{OutOfMemory, Source};

use crate::shown::Shown;

/// Every CUDA context is at least this large. A smaller figure means that the message does not give the size of the
/// context.
const LEAST_CONTEXT_BYTES: u64 = 32 << 20;
/// The amount of memory that the driver usually reserves.
const USUAL_DRIVER_BYTES: u64 = 256 << 20;

/// A line of text for each part of the GPU's memory.
pub(super) fn lines(message: &OutOfMemory, shown: Shown) -> Vec<String> {
    let device = message.device.map_or_else(|| "the GPU".to_owned(), |device| format!("GPU {device}"));
    let (others, perhaps_own) = (message.true_others(), message.perhaps_own());
    let (outside, outside_name) = outside(message);
    let mut rows = vec![
        (message.capacity_bytes, format!("{device} in total")),
        (message.limit_bytes, "the limit of this process".to_owned()),
        (message.allocated_bytes, "allocated by this process".to_owned()),
        (message.private_bytes, "  of which in private pools (CUDA graphs)".to_owned()),
        (message.cached_bytes(), "reserved by this process, but unallocated".to_owned()),
        (outside, outside_name.to_owned()),
    ];
    rows.extend(others.iter().map(|(process, bytes)| (Some(*bytes), format!("process {process}"))));
    rows.extend(
        perhaps_own
            .iter()
            .map(|(process, bytes)| (Some(*bytes), format!("process {process}, perhaps this one"))),
    );
    let listed: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let elsewhere = message.elsewhere_bytes().map(|bytes| bytes.saturating_sub(listed));
    if let Some(bytes) = elsewhere.filter(|bytes| *bytes > USUAL_DRIVER_BYTES) {
        let more = if listed == 0 { "" } else { "more " };
        rows.push((
            Some(bytes),
            format!("{more}outside this process: other processes, a display, the driver"),
        ));
    }
    rows.push((message.free_bytes, "free".to_owned()));
    let is_gpu = message.source == Source::Allocator && has_figures(message);
    let needed = |name: &str| is_gpu && !name.contains("private") && !name.contains("limit");
    let row = |(bytes, name): (Option<u64>, String)| {
        let size = match bytes {
            Some(bytes) => shown.size(bytes),
            None if needed(&name) => "unknown".to_owned(),
            None => return None,
        };
        Some(format!("  {size:>14}  {name}"))
    };
    rows.into_iter().filter_map(row).collect()
}

/// The bytes that are used outside PyTorch's allocator, and a phrase that says who uses them. The listed processes have
/// separate lines.
fn outside(message: &OutOfMemory) -> (Option<u64>, &'static str) {
    let own = "this process outside PyTorch's allocator: the CUDA context and libraries";
    let all =
        "outside PyTorch's allocator: the CUDA context, libraries, and other processes if there are any";
    let (bytes, name) = match message.own_bytes().zip(message.reserved_bytes) {
        Some((process, reserved)) => (Some(process.saturating_sub(reserved)), own),
        None if !message.perhaps_own().is_empty() => (None, own),
        None => {
            let listed: u64 = message.true_others().iter().map(|(_, bytes)| bytes).sum();
            (message.outside_bytes().map(|bytes| bytes.saturating_sub(listed)), all)
        }
    };
    (bytes.filter(|bytes| *bytes >= LEAST_CONTEXT_BYTES), name)
}

/// Whether a message about a GPU says who uses its memory, or how much is free.
pub(super) fn has_figures(message: &OutOfMemory) -> bool {
    let figures = [
        message.capacity_bytes,
        message.free_bytes,
        message.allocated_bytes,
        message.reserved_bytes,
        message.process_bytes,
    ];
    figures.iter().any(Option::is_some)
}
