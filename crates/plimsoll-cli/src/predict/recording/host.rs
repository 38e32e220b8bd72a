//! The memory of one process on the host: [`Process`], read from the file that the preloaded library writes
//! (`../../../host/file.rs`).

use std::fs;
use std::io;
use std::path::Path;

/// The bytes of an event in the recording of PyTorch's allocator, if the process did not measure them.
const EVENT_BYTES: u64 = 620;

/// The phases of a program, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Before the first step. A program without steps stays in this phase.
    Load,
    Step,
    /// After training, such as evaluation and saving.
    After,
}

impl Phase {
    pub(crate) const ALL: [Phase; 3] = [Phase::Load, Phase::Step, Phase::After];

    /// The name of the phase in the library's file and in the JSON report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Step => "step",
            Phase::After => "after",
        }
    }
}

/// The memory of a process in one phase, at the moment when the memory that Linux cannot drop peaked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peak {
    pub(crate) phase: Phase,
    /// Anonymous bytes, excluding pinned memory and the memory of our hooks.
    pub(crate) anonymous_bytes: u64,
    pub(crate) pinned_bytes: u64,
    /// Shared memory without a file.
    pub(crate) shared_bytes: u64,
    /// Pages of files, which Linux can drop.
    pub(crate) file_bytes: u64,
    /// The peak of the job's bytes in `/dev/shm` in the phase.
    pub(crate) shm_bytes: u64,
    /// The owners of large pieces, not counting file pages.
    pub(crate) owners: Vec<(String, u64)>,
    /// The mapped data files.
    pub(crate) files: Vec<(String, u64)>,
}

impl Peak {
    /// The bytes that Linux cannot drop.
    pub(crate) fn must_bytes(&self) -> u64 {
        self.anonymous_bytes + self.pinned_bytes + self.shared_bytes
    }
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    /// The process's rank, or else the rank of the process that started it.
    pub(crate) rank: Option<u32>,
    /// Whether the process is a fork, such as a data loader worker. Only pages that a fork does not share with its
    /// parent are counted.
    pub(crate) is_forked: bool,
    /// When the process began and when it last wrote its file, on a clock that all processes share.
    pub(crate) began_ns: u64,
    pub(crate) ended_ns: u64,
    /// The most pinned memory at any time. At the peak of all memory, less may be pinned.
    pub(crate) pinned_bytes: u64,
    /// The process's peaks, by phase.
    pub(crate) peaks: Vec<Peak>,
}

impl Process {
    /// The processes whose files are in the folder, by ID, without those of this program itself.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn all(folder: &Path) -> io::Result<Vec<Process>> {
        let own = std::env::current_exe().unwrap_or_default();
        let mut processes = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "host") {
                let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
                processes.extend(Process::read(&text).filter(|(_, program)| Path::new(program) != own));
            }
        }
        let mut processes: Vec<Process> = processes.into_iter().map(|(process, _)| process).collect();
        processes.sort_by_key(|process| process.pid);
        Ok(processes)
    }

    /// Reads a file: the process, and the path of its program. `None` if the file is not complete.
    fn read(text: &str) -> Option<(Process, String)> {
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        if lines.last().is_none_or(|line| line != &["end"]) {
            return None;
        }
        let mut found = None;
        let mut event_bytes = 0;
        for line in &lines {
            match (line.as_slice(), &mut found) {
                (["process", pid, parent, rank, forked, program], None) => {
                    let (pid, parent, rank) = (pid.parse().ok()?, parent.parse().ok()?, rank.parse().ok());
                    let (is_forked, peaks) = (*forked == "1", Vec::new());
                    found = Some((
                        Process {
                            pid,
                            parent,
                            rank,
                            is_forked,
                            began_ns: 0,
                            ended_ns: 0,
                            pinned_bytes: 0,
                            peaks,
                        },
                        (*program).to_owned(),
                    ));
                }
                (["figures", _, _, event, began, ended, pinned], Some((process, _))) => {
                    event_bytes = event.parse().ok()?;
                    process.pinned_bytes = pinned.parse().ok()?;
                    (process.began_ns, process.ended_ns) = (began.parse().ok()?, ended.parse().ok()?);
                }
                (["peak", phase, figures @ ..], Some((process, _))) => {
                    let figures: Option<Vec<u64>> = figures.iter().map(|it| it.parse().ok()).collect();
                    let [anonymous, pinned_bytes, shared_bytes, file_bytes, _, events, _, shm_bytes] =
                        *figures?.first_chunk()?;
                    let event_bytes = if event_bytes == 0 { EVENT_BYTES } else { event_bytes };
                    process.peaks.push(Peak {
                        phase: Phase::ALL.into_iter().find(|it| it.name() == *phase)?,
                        anonymous_bytes: anonymous.saturating_sub(events * event_bytes),
                        pinned_bytes,
                        shared_bytes,
                        file_bytes,
                        shm_bytes,
                        owners: Vec::new(),
                        files: Vec::new(),
                    });
                }
                ([kind @ ("owner" | "file"), phase, bytes, name], Some((process, _))) => {
                    let peak = process.peaks.iter_mut().find(|peak| peak.phase.name() == *phase)?;
                    let list = if *kind == "owner" { &mut peak.owners } else { &mut peak.files };
                    list.push(((*name).to_owned(), bytes.parse().ok()?));
                }
                _ => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "process\t7\t5\t1\t0\t/usr/bin/python\nfigures\t900\t800\t0\t3\t9\t5\n\
                        peak\tload\t10000\t200\t0\t50\t9\t10\t1\t64\nowner\tload\t3\ttorch.load at a.py:1\n\
                        owner\tload\t4\tCPU tensors\npeak\tstep\t500\t0\t30\t50\t9\t0\t2\t0\nfile\tstep\t40\tw.safetensors\nend\n";

    #[test]
    fn a_file_has_the_peaks_of_each_phase_without_our_recording() {
        let (process, program) = Process::read(TEXT).expect("a complete file");
        assert_eq!(
            (process.pid, process.parent, process.rank, process.peaks[0].shm_bytes),
            (7, 5, Some(1), 64)
        );
        assert_eq!((process.began_ns, process.ended_ns), (3, 9));
        assert_eq!(program, "/usr/bin/python");
        let must: Vec<u64> = process.peaks.iter().map(Peak::must_bytes).collect();
        assert_eq!(must, [10_000 - 10 * EVENT_BYTES + 200, 530]);
        assert_eq!(process.peaks[0].owners[1], ("CPU tensors".to_owned(), 4));
        assert_eq!(process.peaks[1].files, [("w.safetensors".to_owned(), 40)]);
    }

    #[test]
    fn a_file_that_was_not_finished_is_left_out() {
        assert_eq!(Process::read(TEXT.trim_end_matches("end\n")), None);
        assert_eq!(Process::read(""), None);
    }
}
