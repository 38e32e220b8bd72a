//! Explains why a signal ended a program, if the program could not explain this itself: Linux killed it because the
//! host was short of memory, C++ code aborted it (for example NCCL's watchdog), or it crashed. While the program runs,
//! [`Ends`] records how much host memory each process uses.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::getpid;
use signal_hook::consts::{SIGABRT, SIGBUS, SIGKILL, SIGSEGV};

use crate::bytes;
use crate::processes;

/// How often to check the processes.
const PAUSE: Duration = Duration::from_secs(1);

/// If a signal ended a command, a shell reports this number plus the signal's number.
const BY_SIGNAL: i32 = 128;

/// The maximum number of processes to list.
const MOST: usize = 4;

/// Observations made while the program ran.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// The number of out-of-memory kills that Linux had counted at the start; `None` if this Linux has no such counter.
    kills: Option<u64>,
    looked: Option<Instant>,
    /// The processes at the last check, by process ID.
    processes: BTreeMap<i32, Host>,
}

/// The host memory of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    command: String,
    resident_bytes: u64,
    pinned_bytes: u64,
}

impl Ends {
    /// The state before the program starts.
    pub(super) fn begin() -> Ends {
        Ends { kills: kills(), ..Ends::default() }
    }

    /// Records the memory of the processes, once a second.
    pub(super) fn look(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < PAUSE) {
            return;
        }
        self.looked = Some(Instant::now());
        let all = processes::below(getpid()).into_iter().map(|it| it.as_raw_nonzero().get());
        let found: BTreeMap<i32, Host> = all.filter_map(|it| Some((it, Host::of(it)?))).collect();
        if !found.is_empty() {
            self.processes = found;
        }
    }

    /// Lines that explain how the program ended. Empty if the program has explained this itself.
    pub(super) fn of(&self, status: ExitStatus) -> Vec<String> {
        let of_shell = status.code().map(|code| code - BY_SIGNAL).filter(|signal| *signal > 0);
        let killed = self.kills.zip(kills()).map(|(before, after)| after > before);
        let said = sentences(status.signal().or(of_shell), status.success(), killed);
        let rows = if killed == Some(true) && !said.is_empty() { self.rows() } else { Vec::new() };
        said.into_iter().map(str::to_owned).chain(rows).collect()
    }

    /// The processes with the most memory, one line each.
    fn rows(&self) -> Vec<String> {
        let mut rows: Vec<(&i32, &Host)> = self.processes.iter().collect();
        rows.sort_by_key(|(_, host)| std::cmp::Reverse(host.resident_bytes));
        let row = |(number, host): (&i32, &Host)| {
            let size = |bytes| bytes::shown(bytes, false);
            let pinned = match host.pinned_bytes {
                0 => String::new(),
                pinned => format!(", of which {} pinned", size(pinned)),
            };
            format!("process {number} had {} resident{pinned}: {}", size(host.resident_bytes), host.command)
        };
        rows.into_iter().take(MOST).map(row).collect()
    }
}

/// Why the program ended, and what to do. `killed` says whether Linux killed a process on this machine for lack of
/// memory during the run, if this is known.
fn sentences(signal: Option<i32>, is_well: bool, killed: Option<bool>) -> Vec<&'static str> {
    match (signal, killed) {
        _ if is_well => Vec::new(),
        (Some(SIGKILL), Some(true)) => vec![
            "killed by the kernel, because the host ran out of memory; the GPU's memory was not the cause",
            "use fewer DataLoader workers, prefetch and pin less, or request more memory for the job",
        ],
        (_, Some(true)) => vec![
            "the kernel killed a process on this machine during the run, because the host ran out of memory: perhaps a \
             process of this program",
        ],
        (Some(SIGKILL), known) => vec![
            "ended by SIGKILL: a scheduler, a container or a person killed it",
            if known.is_some() {
                "the kernel killed no process for lack of host memory during the run"
            } else {
                "whether the host ran out of memory is unknown here: see the kernel's log (dmesg)"
            },
        ],
        (Some(SIGABRT), _) => vec![
            "ended by SIGABRT: C++ code aborted, and the lines above say why; memory was the cause only if they say so",
            "\"Watchdog caught collective operation timeout\" is NCCL's: look at the first rank that failed; if none \
             failed, a rank hung or called a different collective: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 records the calls",
        ],
        (Some(SIGBUS), _) => vec![
            "ended by SIGBUS: most often /dev/shm is full (DataLoader workers send batches through it); the GPU's memory was not the cause",
            "use fewer workers, a larger /dev/shm (docker run --shm-size), or multiprocessing.set_sharing_strategy(\"file_system\")",
        ],
        (Some(SIGSEGV), _) => vec![
            "ended by SIGSEGV: native code crashed; a lack of memory was not the cause",
            "python -X faulthandler prints the line",
        ],
        _ => Vec::new(),
    }
}

impl Host {
    /// The memory of a process; `None` if it has ended.
    fn of(process: i32) -> Option<Host> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        Some(Host::read(processes::command_line(process)?, &status))
    }

    /// Parses the text of `/proc/PID/status`.
    fn read(command: String, status: &str) -> Host {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        Host { command, resident_bytes: bytes("VmRSS"), pinned_bytes: bytes("VmPin") + bytes("VmLck") }
    }
}

/// The number of processes that Linux has killed for lack of memory since it was booted; `None` if this Linux has no
/// such counter.
fn kills() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_named_by_the_signal_and_the_kernels_counter() {
        let first = |signal, killed| sentences(signal, false, killed).first().copied().unwrap_or_default();
        for (signal, killed, said) in [
            (Some(SIGKILL), Some(true), "killed by the kernel, because the host ran out of memory"),
            (Some(SIGKILL), Some(false), "ended by SIGKILL"),
            (Some(SIGKILL), None, "ended by SIGKILL"),
            (None, Some(true), "the kernel killed a process on this machine"),
            (Some(SIGABRT), Some(false), "ended by SIGABRT"),
            (Some(SIGBUS), Some(false), "ended by SIGBUS"),
            (Some(SIGSEGV), Some(false), "ended by SIGSEGV"),
        ] {
            assert!(
                first(signal, killed).starts_with(said),
                "{signal:?} {killed:?}: {}",
                first(signal, killed)
            );
        }
        assert_eq!((first(None, Some(false)), first(Some(15), None)), ("", ""));
        assert!(sentences(None, true, Some(true)).is_empty());
    }

    #[test]
    fn the_memory_of_the_largest_processes_is_listed() {
        let status = "Name:\tpython\nVmPin:\t    2048 kB\nVmRSS:\t 1048576 kB\n";
        let host = |status| Host::read("python train.py".to_owned(), status);
        let ends =
            Ends { processes: [(7, host("Name:\tsh\n")), (8, host(status))].into(), ..Ends::default() };
        let rows = ends.rows();
        assert_eq!(rows[0], "process 8 had 1024.00 MiB resident, of which 2.00 MiB pinned: python train.py");
        assert_eq!(rows.len(), 2);
    }
}
