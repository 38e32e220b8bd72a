//! The memory of the machine on which the program runs: [`Node`], the sum over all of its processes.
//!
//! Ranks reach their peaks at about the same time, so their peaks are added for each phase. Workers and helpers (launchers,
//! compilers) count in all phases. Of these, only processes that run at the same time are added. Pages of a file exist
//! only once, no matter how many processes map them.

use std::collections::BTreeMap;

use plimsoll_gpu::outside::{CUBLAS_HANDLE_BYTES, Library};

use crate::predict::node::Machine;
use crate::predict::recording::host::{Peak, Phase, Process};
use crate::protocol::Report;

/// The size of `/dev/shm` that is assumed for a container if none is given: Docker's default.
pub(crate) const CONTAINERS_SHM_BYTES: u64 = 64 << 20;

/// NCCL's own memory on the host, for each process and for each communicator, measured on two H100s with NCCL 2.28.9.
const NCCL_BYTES: u64 = 360_000_000;
const NCCL_COMMUNICATOR_BYTES: u64 = 1_179_652;

/// The driver's memory on the host for each library that a process uses on the GPU, by the library's name in the report, and for each
/// further handle of cuBLAS. Measured on an H200 with driver 580.159.04 and PyTorch 2.11 for CUDA 13.0. cuDNN loads a kernel for each kind of
/// convolution: one needed 75 MB, networks 120 to 360 MB.
const DRIVER_BYTES: [(&str, u64); 6] = [
    ("context", 32_000_000),
    ("PyTorch's kernels", 19_000_000),
    ("cuBLAS", 100_000_000),
    ("cuDNN", 200_000_000),
    ("cuFFT", 9_000_000),
    ("cuSOLVER", 28_000_000),
];
const HANDLE_BYTES: u64 = 120_000_000;

/// The same for the kernels of an optimizer.
const OPTIMIZER_BYTES: u64 = 60_000_000;

/// A process that uses the GPU, with its workers: a rank, or the program itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) pid: u32,
    pub(crate) rank: Option<u32>,
    /// The most pinned memory of the group's main process, at any time.
    pub(crate) pinned_bytes: u64,
    /// The group's memory in each phase that it reached.
    pub(crate) phases: Vec<Part>,
}

/// The memory of a group in one phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The peak of the group's main process.
    pub(crate) peak: Peak,
    pub(crate) workers: Together,
    /// The host memory that NCCL would use. It is added as a measured figure, because the simulated GPU
    /// (plimsoll-standin) runs no NCCL.
    pub(crate) nccl_bytes: u64,
    /// The same for the driver of the GPU.
    pub(crate) driver_bytes: u64,
}

impl Part {
    /// The bytes that Linux cannot drop.
    pub(crate) fn must_bytes(&self) -> u64 {
        self.peak.must_bytes() + self.workers.bytes + self.nccl_bytes + self.driver_bytes
    }
}

impl Group {
    pub(crate) fn part(&self, phase: Phase) -> Option<&Part> {
        self.phases.iter().find(|part| part.peak.phase == phase)
    }

    fn must_bytes(&self, phase: Phase) -> u64 {
        self.part(phase).map_or(0, Part::must_bytes)
    }
}

/// The processes of a kind that run at the same time, when they use the most memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Together {
    /// The number of these processes, and their bytes.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Together {
    fn of<'job>(processes: impl Iterator<Item = &'job Process>) -> Together {
        let processes: Vec<&Process> = processes.collect();
        let bytes = |it: &Process| it.peaks.iter().map(Peak::must_bytes).max().unwrap_or(0);
        let at = |time: u64| {
            let running = processes.iter().copied();
            let running = running.filter(|it| (it.began_ns..=it.ended_ns).contains(&time));
            running.fold(Together::default(), |sum, it| Together {
                count: sum.count + 1,
                bytes: sum.bytes + bytes(it),
            })
        };
        // The sum can only reach its maximum just after a process has started.
        processes.iter().map(|it| at(it.began_ns)).max_by_key(|it| it.bytes).unwrap_or_default()
    }
}

/// The machine's memory at the program's peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) machine: Machine,
    /// By rank, then by process ID.
    pub(crate) groups: Vec<Group>,
    /// Other processes, such as launchers and compilers.
    pub(crate) helpers: Together,
    /// The phase that needs the most memory.
    pub(crate) phase: Phase,
    /// The largest number of bytes in `/dev/shm` in each phase.
    shm: [u64; 3],
    /// Pages of files.
    pub(crate) file_bytes: u64,
}

/// The peak after the steps, including the results of batches that loops did not get.
fn with_cut_loops(peak: &Peak, report: Option<&Report>) -> Peak {
    let mut peak = peak.clone();
    let loops = report.filter(|_| peak.phase == Phase::After).map_or(&[][..], |report| &report.loops);
    let left_bytes: u64 = loops.iter().map(|cut| cut.host_bytes * cut.left).max().unwrap_or(0);
    if left_bytes > 0 {
        peak.anonymous_bytes += left_bytes;
        peak.owners.push(("batches that an evaluation did not get, computed".to_owned(), left_bytes));
    }
    peak
}

impl Node {
    /// The sum over the processes of a run; `None` if nothing is known about these processes. The reports say which
    /// processes use NCCL.
    pub(crate) fn of(processes: &[Process], reports: &[Report], machine: Machine) -> Option<Node> {
        let by_pid: BTreeMap<u32, &Process> = processes.iter().map(|it| (it.pid, it)).collect();
        // A forked process belongs to the group of its parent.
        let leader = |process: &Process| {
            let mut leader = process;
            while leader.is_forked
                && let Some(parent) = by_pid.get(&leader.parent)
            {
                leader = parent;
            }
            leader.pid
        };
        let report = |process: &Process| reports.iter().find(|report| report.pid == process.pid);
        let is_main = |process: &&Process| {
            let uses_gpu = report(process).is_some_and(|report| report.started || report.steps > 0);
            uses_gpu && leader(process) == process.pid
        };
        let mut mains: Vec<&Process> = processes.iter().filter(is_main).collect();
        if mains.is_empty() {
            let most = |it: &&Process| it.peaks.iter().map(Peak::must_bytes).max();
            mains.extend(processes.iter().filter(|it| leader(it) == it.pid).max_by_key(most));
        }
        let is_known = |pid: u32| mains.iter().any(|main| main.pid == pid);
        let part = |main: &Process, peak: &Peak| {
            let is_fork = |it: &&Process| it.pid != main.pid && leader(it) == main.pid;
            let forks = processes.iter().filter(is_fork);
            // A fork begins in its parent's phase, and is in no other phase.
            let forks = forks.filter(|it| it.peaks.iter().any(|its| its.phase == peak.phase));
            // A program without steps computes in its first phase, too.
            let used = report(main).filter(|_| peak.phase != Phase::Load || main.peaks.len() == 1);
            let (nccl_bytes, driver_bytes) = (used.map_or(0, nccl_bytes), used.map_or(0, driver_bytes));
            Part { peak: peak.clone(), workers: Together::of(forks), nccl_bytes, driver_bytes }
        };
        let group = |main: &&Process| Group {
            pid: main.pid,
            rank: main.rank,
            pinned_bytes: main.pinned_bytes,
            phases: main.peaks.iter().map(|peak| part(main, &with_cut_loops(peak, report(main)))).collect(),
        };
        let helpers = Together::of(processes.iter().filter(|it| !is_known(leader(it))));
        let mut groups: Vec<Group> = mains.iter().map(group).collect();
        groups.sort_by_key(|group| (group.rank, group.pid));
        let peaks = processes.iter().flat_map(|process| &process.peaks);
        let file_bytes = peaks.clone().map(|peak| peak.file_bytes).max()?;
        let shm = |phase: Phase| {
            let of_phase = peaks.clone().filter(|peak| peak.phase == phase);
            u64::from(machine.alike.unwrap_or(1)) * of_phase.map(|peak| peak.shm_bytes).max().unwrap_or(0)
        };
        let shm = Phase::ALL.map(shm);
        let mut node = Node { machine, groups, helpers, phase: Phase::Load, shm, file_bytes };
        // If several phases need the same amount, the first one counts.
        let most = Phase::ALL.into_iter().rev().max_by_key(|phase| node.must_bytes_in(*phase));
        node.phase = most.unwrap_or(Phase::Load);
        Some(node)
    }

    /// The number of processes that a group represents: all ranks of the machine, if one rank was simulated.
    fn alike(&self, group: &Group) -> u64 {
        u64::from(self.machine.alike.filter(|_| group.rank.is_some()).unwrap_or(1))
    }

    /// The bytes that Linux cannot drop in a phase: those of all processes and of `/dev/shm`.
    pub(crate) fn must_bytes_in(&self, phase: Phase) -> u64 {
        let groups: u64 = self.groups.iter().map(|group| self.alike(group) * group.must_bytes(phase)).sum();
        groups + self.helpers.bytes + self.shm[phase as usize]
    }

    /// The bytes that Linux cannot drop, at the peak.
    pub(crate) fn must_bytes(&self) -> u64 {
        self.must_bytes_in(self.phase)
    }

    /// The peak of bytes in `/dev/shm`.
    pub(crate) fn shm_bytes(&self) -> u64 {
        self.shm.into_iter().max().unwrap_or(0)
    }

    /// The bytes that Linux cannot drop, plus all file pages.
    pub(crate) fn may_bytes(&self) -> u64 {
        self.must_bytes() + self.file_bytes
    }

    /// How many bytes the machine lacks, if its memory is known and not enough.
    pub(crate) fn short_bytes(&self) -> Option<u64> {
        let short = self.must_bytes().checked_sub(self.machine.memory_bytes?)?;
        (short > 0).then_some(short)
    }

    /// How many bytes `/dev/shm` lacks, if its size is given and not enough.
    pub(crate) fn shm_short_bytes(&self) -> Option<u64> {
        let short = self.shm_bytes().checked_sub(self.machine.shm_bytes?)?;
        (short > 0).then_some(short)
    }

    /// Whether the machine has too little memory or `/dev/shm`.
    pub(crate) fn is_short(&self) -> bool {
        self.short_bytes().is_some() || self.shm_short_bytes().is_some()
    }

    /// The number of ranks on the machine; 0 for a program that is not started as ranks.
    pub(crate) fn ranks(&self) -> u64 {
        self.groups.iter().filter(|group| group.rank.is_some()).map(|group| self.alike(group)).sum()
    }

    /// The peak of pinned memory in the program's processes, over all phases.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.groups.iter().map(|group| self.alike(group) * group.pinned_bytes).sum()
    }

    /// The total number of workers.
    pub(crate) fn workers(&self) -> u64 {
        let most = |group: &Group| group.phases.iter().map(|part| part.workers.count).max().unwrap_or(0);
        self.groups.iter().map(|group| self.alike(group) * most(group)).sum()
    }

    /// The owners, at the peak, of memory that Linux cannot drop, summed over the processes, the largest first. Their
    /// sum is [`Node::must_bytes`].
    pub(crate) fn owners(&self) -> Vec<(String, u64)> {
        let mut owners: BTreeMap<&str, u64> = BTreeMap::new();
        for group in &self.groups {
            let Some(part) = group.part(self.phase) else { continue };
            let alike = self.alike(group);
            let mut add = |name, bytes: u64| *owners.entry(name).or_insert(0) += alike * bytes;
            // The sum of the pieces may be slightly larger than the resident memory.
            let mut left = part.peak.must_bytes();
            for (name, bytes) in &part.peak.owners {
                let bytes = left.min(*bytes);
                left -= bytes;
                add(name, bytes);
            }
            add(BASE, left);
            add("workers' own pages", part.workers.bytes);
            add("NCCL", part.nccl_bytes);
            add(DRIVER, part.driver_bytes);
        }
        owners.insert("other processes", self.helpers.bytes);
        owners.insert("/dev/shm", self.shm[self.phase as usize]);
        sorted(owners)
    }

    /// The data files that are mapped at the peak.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        let parts = self.groups.iter().filter_map(|group| group.part(self.phase));
        let mut files: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, bytes) in parts.flat_map(|part| &part.peak.files) {
            let most = files.entry(name).or_insert(0);
            *most = (*most).max(*bytes);
        }
        sorted(files)
    }
}

fn sorted(bytes: BTreeMap<&str, u64>) -> Vec<(String, u64)> {
    let named = bytes.into_iter().filter(|(_, bytes)| *bytes > 0);
    let mut list: Vec<(String, u64)> = named.map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    list.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    list
}

/// The owner of the driver's memory.
pub(crate) const DRIVER: &str = "the CUDA driver and its libraries";

/// The owner of resident memory that does not belong to any large piece.
const BASE: &str = "interpreter, libraries and small objects";

/// NCCL's memory on the host for a process with the communicators in this report.
fn nccl_bytes(report: &Report) -> u64 {
    let names = report.outside.iter().map(|row| row.owner.as_str());
    let mut communicators: Vec<&str> = names.filter(|name| name.starts_with("NCCL communicator")).collect();
    communicators.sort_unstable();
    communicators.dedup();
    match communicators.len() as u64 {
        0 => 0,
        count => NCCL_BYTES + count * NCCL_COMMUNICATOR_BYTES,
    }
}

/// The driver's memory on the host for a process with this report.
fn driver_bytes(report: &Report) -> u64 {
    let libraries =
        DRIVER_BYTES.iter().filter(|(name, _)| report.outside.iter().any(|row| row.owner == *name));
    let libraries: u64 = libraries.map(|(_, bytes)| bytes).sum();
    let blas = report.outside.iter().find(|row| row.owner == Library::CuBlas.name());
    let handles = blas.map_or(0, |row| (row.bytes / CUBLAS_HANDLE_BYTES).saturating_sub(1));
    let optimizer_bytes = if libraries > 0 && report.steps > 0 { OPTIMIZER_BYTES } else { 0 };
    libraries + handles * HANDLE_BYTES + optimizer_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peak(phase: Phase, anonymous_bytes: u64) -> Peak {
        Peak {
            phase,
            anonymous_bytes,
            pinned_bytes: 8,
            shared_bytes: 0,
            file_bytes: 50,
            shm_bytes: 4,
            owners: vec![
                ("torch.load at a.py:1".to_owned(), anonymous_bytes * 3 / 4),
                ("pinned memory".to_owned(), 8),
            ],
            files: vec![("a.safetensors".to_owned(), 40)],
        }
    }

    fn process(pid: u32, rank: Option<u32>, peaks: Vec<Peak>) -> Process {
        let pinned_bytes = peaks.iter().map(|peak| peak.pinned_bytes).max().unwrap_or(0);
        Process { pid, parent: 1, rank, is_forked: false, began_ns: 0, ended_ns: 100, pinned_bytes, peaks }
    }

    /// A worker with this start and end time.
    fn worker(pid: u32, parent: u32, (began_ns, ended_ns): (u64, u64), bytes: u64) -> Process {
        let peaks = vec![Peak { pinned_bytes: 0, owners: Vec::new(), ..peak(Phase::Step, bytes) }];
        Process { parent, is_forked: true, began_ns, ended_ns, ..process(pid, None, peaks) }
    }

    /// The report of a process that used CUDA, with these rows outside the allocator.
    fn report(pid: u32, owners: &[&str]) -> Report {
        let row = |owner: &&str| serde_json::json!({ "device": 0, "owner": owner, "part": "base", "bytes": 1, "basis": "derived", "call": "" });
        let rows: Vec<serde_json::Value> = owners.iter().map(row).collect();
        serde_json::from_value(serde_json::json!({
            "pid": pid, "rank": null, "alone": false, "command": ["train.py"], "state": "stopped",
            "torch": "2.15.0", "cuda": "13.2", "standin": true, "started": true, "steps": 3, "failures": 0,
            "failed_step": 0, "devices": [], "cudnn_search": false, "libraries": [], "error": null, "outside": rows,
        }))
        .expect("a report")
    }

    fn node(processes: &[Process], reports: &[Report], machine: Machine) -> Node {
        Node::of(processes, reports, machine).expect("processes")
    }

    #[test]
    fn ranks_are_added_in_the_phase_that_needs_the_most() {
        let load = || vec![peak(Phase::Load, 1000), peak(Phase::Step, 300)];
        let processes = [process(10, Some(0), load()), process(11, Some(1), load())];
        let node = node(&processes, &[report(10, &[]), report(11, &[])], Machine::default());
        assert_eq!((node.phase, node.ranks(), node.must_bytes()), (Phase::Load, 2, 2 * 1008 + 4));
        assert_eq!(node.may_bytes(), node.must_bytes() + 50, "pages of files exist once");
        assert_eq!(node.must_bytes_in(Phase::Step), 2 * 308 + 4);
        let owners: u64 = node.owners().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(owners, node.must_bytes());
        assert_eq!(node.owners()[0], ("torch.load at a.py:1".to_owned(), 1500));
        assert_eq!(node.files(), [("a.safetensors".to_owned(), 40)]);
        assert_eq!(
            (node.short_bytes(), node.is_short()),
            (None, false),
            "nothing is claimed without a limit"
        );
    }

    #[test]
    fn one_rank_stands_for_all_of_its_machine() {
        let machine = Machine {
            memory_bytes: Some(10_000),
            alike: Some(16),
            shm_bytes: Some(60),
            ..Machine::default()
        };
        let processes = [process(10, Some(3), vec![peak(Phase::Load, 1000)])];
        let node = node(&processes, &[report(10, &[])], machine);
        assert_eq!((node.ranks(), node.must_bytes()), (16, 16 * 1008 + 64));
        assert_eq!(node.short_bytes(), Some(16 * 1008 + 64 - 10_000));
        assert_eq!(node.shm_short_bytes(), Some(4));
    }

    #[test]
    fn workers_count_with_those_of_their_time() {
        let main = process(10, None, vec![peak(Phase::Load, 100), peak(Phase::Step, 100)]);
        // Two epochs with two workers each, and a worker started by a worker.
        let workers = [
            worker(20, 10, (10, 40), 30),
            worker(21, 10, (11, 40), 31),
            worker(22, 10, (50, 80), 32),
            worker(23, 10, (51, 80), 33),
            worker(24, 23, (52, 80), 5),
        ];
        let processes: Vec<Process> = [main].into_iter().chain(workers).collect();
        let node = node(&processes, &[report(10, &["NCCL communicator 1, 2 ranks"])], Machine::default());
        let step = node.groups[0].part(Phase::Step).expect("it stepped");
        assert_eq!(step.workers, Together { count: 3, bytes: 70 });
        assert_eq!(step.nccl_bytes, NCCL_BYTES + NCCL_COMMUNICATOR_BYTES);
        assert_eq!((node.workers(), node.phase), (3, Phase::Step));
        assert_eq!(node.must_bytes_in(Phase::Load), 108 + 4, "the workers came later");
    }

    #[test]
    fn the_drivers_memory_follows_from_the_libraries_that_are_used_on_the_gpu() {
        let main = process(10, None, vec![peak(Phase::Load, 100), peak(Phase::Step, 100)]);
        let mut used = report(10, &["context", "cuBLAS", "streams"]);
        used.outside[1].bytes = 71_303_168 + 67_108_864;
        let node = node(&[main], &[used], Machine::default());
        let [load, step] = [Phase::Load, Phase::Step].map(|phase| node.must_bytes_in(phase));
        // Two handles of cuBLAS, and the kernels of an optimizer.
        assert_eq!(step - load, 32_000_000 + 100_000_000 + 120_000_000 + 60_000_000);
        let owners = node.owners();
        assert_eq!(owners[0], (DRIVER.to_owned(), step - load));
        assert_eq!(owners.iter().map(|(_, bytes)| bytes).sum::<u64>(), node.must_bytes());
    }

    #[test]
    fn a_launcher_counts_all_the_time_and_a_program_without_cuda_is_its_largest_process() {
        let launcher = process(9, None, vec![peak(Phase::Load, 50)]);
        let rank = process(10, Some(0), vec![peak(Phase::Load, 70), peak(Phase::Step, 90)]);
        let both = [launcher.clone(), rank];
        let job = node(&both, &[report(10, &[])], Machine::default());
        assert_eq!((job.helpers.bytes, job.must_bytes()), (58, 58 + 98 + 4));
        let alone = node(&both, &[], Machine::default());
        assert_eq!((alone.groups[0].pid, alone.must_bytes()), (10, 58 + 98 + 4));
        assert_eq!(Node::of(&[], &[], Machine::default()), None);
    }
}
