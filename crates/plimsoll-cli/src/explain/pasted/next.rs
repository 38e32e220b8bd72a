//! The next command, for the GPU and the program that a text names.

use std::path::Path;

use plimsoll_gpu::{GPUS, Gpu};
use plimsoll_trace::message::{OutOfMemory, Traceback};

use crate::page::quoted;

/// The program's command, such as `python train.py`, with a placeholder if the text does not name it.
pub(super) fn program(traceback: &Traceback) -> String {
    traceback
        .program()
        .map_or_else(|| format!("python {FILE}"), |file| format!("python {}", quoted(Path::new(file))))
}

/// The placeholder for a program that the text does not name.
const FILE: &str = "FILE";
/// The placeholder for a GPU that the text does not name.
const NAME: &str = "NAME";

/// Instructions for filling in the placeholders of the commands, one per line.
pub(super) fn to_fill_in(commands: &[String]) -> Vec<&'static str> {
    let has = |word: &str| commands.iter().any(|command| command.split(' ').any(|it| it == word));
    let gpu = "NAME is your GPU: its name (`plimsoll predict --list`) or its memory size, such as 24GiB";
    let record = "plimsoll record prints code for your program: the code records a snapshot, which plimsoll explain reads";
    let rows = [(NAME, gpu), (FILE, "FILE is your program, with its arguments"), ("record", record)];
    rows.into_iter().filter(|(word, _)| has(word)).map(|(_, meaning)| meaning).collect()
}

/// The value of `--gpu` for a GPU with this much memory: the name of the GPU if only one GPU has this much memory,
/// otherwise the size.
pub(super) fn gpu(capacity_bytes: Option<u64>) -> String {
    let Some(bytes) = capacity_bytes else { return NAME.to_owned() };
    let size = || format!("{:.2}GiB", bytes as f64 / f64::from(1 << 30));
    of_memory(bytes).map_or_else(size, |gpu| gpu.name.to_owned())
}

/// The only GPU with this much memory, within 1 %; `None` if several GPUs have this much memory, or no GPU has.
fn of_memory(memory_bytes: u64) -> Option<&'static Gpu> {
    let mut found =
        GPUS.iter().filter(|gpu| gpu.memory_bytes.abs_diff(memory_bytes) < gpu.memory_bytes / 100);
    found.next().filter(|_| found.next().is_none())
}

/// The `plimsoll plan` command, which searches for techniques that make the program fit.
pub(super) fn plan(capacity_bytes: Option<u64>, program: &str) -> String {
    format!("plimsoll plan --gpu {} -- {program}", gpu(capacity_bytes))
}

/// The manufacturer of the GPU that a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vendor {
    Nvidia,
    Amd,
    Intel,
}

pub(super) fn vendor(message: &OutOfMemory) -> Vendor {
    match &*message.name {
        name if name.contains("HIP") || name.contains("roc") => Vendor::Amd,
        "XPU" => Vendor::Intel,
        _ => Vendor::Nvidia,
    }
}

pub(super) fn is_nvidias(message: &OutOfMemory) -> bool {
    vendor(message) == Vendor::Nvidia
}

/// The environment variable with the allocator's settings.
pub(super) fn settings(message: &OutOfMemory) -> &'static str {
    match vendor(message) {
        Vendor::Nvidia => "PYTORCH_CUDA_ALLOC_CONF",
        Vendor::Amd => "PYTORCH_HIP_ALLOC_CONF",
        Vendor::Intel => "PYTORCH_ALLOC_CONF",
    }
}

/// The `plimsoll run` command, which records memory, and explains the failure if memory runs out again.
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
        assert_eq!(gpu(None), "NAME");
    }

    #[test]
    fn placeholders_are_explained_where_there_are_some() {
        let unnamed = [plan(None, "python FILE")];
        assert_eq!(to_fill_in(&unnamed).len(), 2, "{unnamed:?}");
        assert!(to_fill_in(&[plan(Some(24 << 30), "python FILENAME.py")]).is_empty());
    }
}
