//! The next command, for the GPU and the program that a text names.

use std::path::Path;

use plimsoll_gpu::{GPUS, Gpu};
use plimsoll_trace::message::Traceback;

use crate::page::quoted;

/// The program's command: `python train.py`; with a placeholder where the text does not name it.
pub(super) fn program(traceback: &Traceback) -> String {
    traceback
        .program()
        .map_or_else(|| "python FILE".to_owned(), |file| format!("python {}", quoted(Path::new(file))))
}

/// `--gpu` of a GPU with so much memory: its name if only one has it, else the size.
pub(super) fn gpu(capacity_bytes: Option<u64>) -> String {
    let Some(bytes) = capacity_bytes else { return "GPU".to_owned() };
    let size = || format!("{:.2}GiB", bytes as f64 / f64::from(1 << 30));
    of_memory(bytes).map_or_else(size, |gpu| gpu.name.to_owned())
}

/// The only GPU with this much memory, to a percent; `None` if there are several, or none.
fn of_memory(memory_bytes: u64) -> Option<&'static Gpu> {
    let mut found =
        GPUS.iter().filter(|gpu| gpu.memory_bytes.abs_diff(memory_bytes) < gpu.memory_bytes / 100);
    found.next().filter(|_| found.next().is_none())
}

/// The search for what fits.
pub(super) fn plan(capacity_bytes: Option<u64>, program: &str) -> String {
    format!("plimsoll plan --gpu {} -- {program}", gpu(capacity_bytes))
}

/// A run that records, and explains if memory runs out again.
pub(super) fn run(program: &str) -> String {
    format!("plimsoll run -- {program}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_where_only_one_has_its_memory() {
        assert_eq!(gpu(Some(42_477_223_116)), "A100-40GB"); // "39.56 GiB"
        assert_eq!(gpu(Some(24 << 30)), "24.00GiB");
        assert_eq!(gpu(None), "GPU");
    }
}
