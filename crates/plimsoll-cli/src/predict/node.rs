//! The machine that will run the program, as far as it is known: [`Machine`].

use std::fs;

/// The machine that will run the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Machine {
    /// The part of the machine's memory that the program may use.
    pub(crate) memory_bytes: Option<u64>,
    /// Whether `memory_bytes` is the memory of this machine, not a size that the user gave.
    pub(crate) is_this: bool,
    /// Whether the GPU shares the host's memory, so that `memory_bytes` is only what the GPU leaves.
    pub(crate) is_left: bool,
    /// The size of `/dev/shm`.
    pub(crate) shm_bytes: Option<u64>,
    /// The number of ranks on the machine, if one simulated rank represents them all.
    pub(crate) alike: Option<u32>,
}

impl Machine {
    /// A machine with the given memory. If no size is given and the program will run here, the machine has the memory
    /// of this machine.
    pub(crate) fn for_plan(given_bytes: Option<u64>, runs_here: bool) -> Machine {
        let is_this = given_bytes.is_none() && runs_here;
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        // The limits of control groups, versions 2 and 1.
        let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"].map(read);
        let here = || memory(&read("/proc/meminfo"), &limits);
        let memory_bytes = given_bytes.or_else(|| if is_this { here() } else { None });
        Machine { memory_bytes, is_this, ..Machine::default() }
    }

    /// The same machine, if it shares its memory with the GPU, and the GPU leaves `left_bytes` of it. The peaks of the
    /// host and the GPU are added, although they may occur at different times.
    pub(crate) fn beside_gpu(self, left_bytes: u64) -> Machine {
        match self.memory_bytes {
            Some(bytes) if bytes <= left_bytes => self,
            _ => Machine { memory_bytes: Some(left_bytes), is_this: false, is_left: true, ..self },
        }
    }
}

/// This machine's memory, or the limit of the container, if it is lower. `meminfo` counts in kB.
fn memory(meminfo: &str, limits: &[String]) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total_bytes = 1024 * total.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?;
    let limits = limits.iter().filter_map(|limit| limit.trim().parse().ok());
    Some(limits.fold(total_bytes, u64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_limit_is_this_machines_memory_if_it_is_less() {
        let meminfo = "MemTotal:        2048 kB\nMemFree:  7 kB\n";
        for (limit, bytes) in [("max\n", 2 << 20), ("", 2 << 20), ("4096\n", 4096), ("9999999999", 2 << 20)] {
            assert_eq!(memory(meminfo, &["max".to_owned(), limit.to_owned()]), Some(bytes), "{limit}");
        }
        assert_eq!(memory("", &[]), None);
    }

    #[test]
    fn a_gpu_that_shares_the_memory_leaves_the_rest_of_it() {
        let of = |given: Option<u64>| {
            let machine = Machine { memory_bytes: given, ..Machine::default() }.beside_gpu(9);
            (machine.memory_bytes, machine.is_left)
        };
        assert_eq!(
            [of(None), of(Some(8)), of(Some(10))],
            [(Some(9), true), (Some(8), false), (Some(9), true)]
        );
    }

    #[test]
    fn only_a_plan_for_this_machine_takes_its_memory() {
        let given = Machine::for_plan(Some(5), true);
        assert_eq!((given.memory_bytes, given.is_this), (Some(5), false));
        assert_eq!(Machine::for_plan(None, false), Machine::default());
        assert!(Machine::for_plan(None, true).memory_bytes.is_none_or(|bytes| bytes > 0));
    }
}
