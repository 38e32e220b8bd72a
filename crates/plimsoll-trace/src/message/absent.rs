//! Signs, in one line of text, of a program that ended without PyTorch's out-of-memory message.

use crate::error::Absent;

/// Updates the signs found so far with one more line.
pub(super) fn after(known: Absent, line: &str) -> Absent {
    known.max(of(line))
}

fn of(line: &str) -> Absent {
    // Words that shells, containers, Linux and Slurm use.
    let line = line.trim();
    let is_shells = line == "Killed" || line.contains(" Killed  ") || line.starts_with("zsh: killed");
    let is_kernels = KILLERS.iter().any(|words| line.contains(words));
    if line.contains("RESOURCE_EXHAUSTED") {
        Absent::Jax
    } else if let Some((_, absent)) = OTHERS.iter().find(|(words, _)| line.contains(words)) {
        *absent
    } else if SHARED.iter().any(|words| line.contains(words)) {
        Absent::SharedMemory
    } else if is_shells || is_kernels {
        Absent::Killed
    } else {
        Absent::Nothing
    }
}

/// Words that PyTorch, NVIDIA and Linux use for other failures.
const OTHERS: [(&str, Absent); 8] = [
    ("an illegal memory access was encountered", Absent::Illegal),
    ("CUDA error: misaligned address", Absent::Illegal),
    ("device-side assert triggered", Absent::Assert),
    ("CUDA error: unspecified launch failure", Absent::Lost),
    ("CUDA error: uncorrectable ECC error", Absent::Lost),
    ("GPU has fallen off the bus", Absent::Lost),
    ("CUDA error: the launch timed out", Absent::Lost),
    ("Watchdog caught collective operation timeout", Absent::Watchdog),
];

/// PyTorch's words for exhausted shared memory, in the main process and in a DataLoader's worker.
const SHARED: [&str; 4] = [
    "is killed by signal: Bus error",
    "Unexpected bus error encountered in worker",
    "workers are out of shared memory",
    "torch_shm_manager",
];

const KILLERS: [&str; 5] =
    ["oom-kill", "oom_kill", "OOMKilled", "Out of memory: Killed process", "Out of memory: Kill process"];

#[cfg(test)]
mod tests {
    use super::{Absent, after};

    #[test]
    fn the_words_of_shells_and_of_the_kernel() {
        for (line, expected) in [
            ("Killed", Absent::Killed),
            ("./train.sh: line 3:  4242 Killed                  python train.py", Absent::Killed),
            ("[1234.5] Out of memory: Killed process 4242 (python) total-vm:1kB", Absent::Killed),
            ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch", Absent::Killed),
            ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", Absent::Jax),
            ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Absent::Illegal),
            ("RuntimeError: CUDA error: device-side assert triggered", Absent::Assert),
            ("RuntimeError: CUDA error: unspecified launch failure", Absent::Lost),
            (
                "[rank1]:[E1128 02:11:09 ProcessGroupNCCL.cpp:689] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7",
                Absent::Watchdog,
            ),
            (
                "RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's workers are out of \
                 shared memory. Please try to raise your shared memory limit.",
                Absent::SharedMemory,
            ),
            (
                "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
                Absent::SharedMemory,
            ),
            ("Killed 3 workers", Absent::Nothing),
        ] {
            assert_eq!(after(Absent::Nothing, line), expected, "{line}");
        }
        assert_eq!(after(Absent::Jax, "Killed"), Absent::Jax);
    }
}
