//! Advice in a line or two, and the next command.

use plimsoll_trace::explain::leaks::Verdict;
use plimsoll_trace::explain::{Cause, DeviceExplanation};
use plimsoll_trace::render::help;

use crate::explained::Explained;
use crate::page::quoted;

/// The maximum number of sentences of advice.
const MOST: usize = 3;

/// Advice, the most effective first, and the next command. Empty if nothing is wrong or large.
pub(crate) fn lines(
    explained: &Explained,
    device: &DeviceExplanation,
    size: impl Fn(u64) -> String,
) -> Vec<String> {
    let mut lines = help::advice(explained.report(), device, device.what_if.as_ref(), size);
    lines.truncate(MOST);
    if device.leaks.whole.verdict == Verdict::Leaking {
        lines.push(format!("Next: plimsoll leaks {}", quoted(explained.file.as_ref())));
    } else if matches!(device.failure.map(|failure| failure.cause()), Some(Cause::Capacity { .. })) {
        lines.push(format!("Next: plimsoll plan --gpu {} -- COMMAND", gpu(device)));
    }
    lines
}

/// The `--gpu` option with the GPU's size, if the recording contains the size.
fn gpu(device: &DeviceExplanation) -> String {
    device.ledger.device.total.map_or_else(|| "NAME".to_owned(), |bytes| format!("{}MiB", bytes >> 20))
}
