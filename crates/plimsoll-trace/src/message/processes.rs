//! Finds out which processes in a message are other processes, and how much memory they use. PyTorch lists all
//! processes on the GPU, and calls this one "this process" if it knows its process ID. In a container, PyTorch does not
//! know the ID, and lists this process as if it were another process.

use super::wording::OutOfMemory;

impl OutOfMemory {
    /// The listed processes, by process ID, that cannot be this process, because they use less memory than this process
    /// reserved. If the message says "this process", all listed processes are others.
    pub fn true_others(&self) -> Vec<(u32, u64)> {
        let own = self.candidates();
        self.others.iter().filter(|it| !own.contains(it)).copied().collect()
    }

    /// The listed processes, by process ID, one of which may be this process; the message does not show which. They are
    /// not in [`OutOfMemory::true_others`], and none of them is known to be this process.
    pub fn perhaps_own(&self) -> Vec<(u32, u64)> {
        let own = self.candidates();
        if self.is_own(&own) { Vec::new() } else { own }
    }

    /// All GPU memory of this process, even if the message lists it as another process's.
    pub fn own_bytes(&self) -> Option<u64> {
        let own = self.candidates();
        let listed = own.first().filter(|_| self.is_own(&own)).map(|(_, bytes)| *bytes);
        self.process_bytes.or(listed)
    }

    /// The memory used on the GPU outside this process, by listed and unlisted processes. `None` if the message does
    /// not give this process's memory.
    pub fn elsewhere_bytes(&self) -> Option<u64> {
        let (capacity, free, own) = (self.capacity_bytes?, self.free_bytes?, self.own_bytes()?);
        Some(capacity.saturating_sub(free).saturating_sub(own))
    }

    /// The minimum of the bytes that other listed processes use, whichever of the listed processes is this process.
    pub(super) fn least_others_bytes(&self) -> u64 {
        let perhaps = self.perhaps_own();
        let most = perhaps.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        total(&self.true_others()).saturating_add(total(&perhaps) - most)
    }

    /// The listed processes that may be this process. Empty if the message identifies this process.
    fn candidates(&self) -> Vec<(u32, u64)> {
        let reserved = self.reserved_bytes.unwrap_or(0);
        let is_enough = |(_, bytes): &&(u32, u64)| self.process_bytes.is_none() && *bytes >= reserved;
        self.others.iter().filter(is_enough).copied().collect()
    }

    /// Whether the only candidate must be this process, because the GPU has no room for this process's reserved memory
    /// in addition to the listed processes.
    fn is_own(&self, candidates: &[(u32, u64)]) -> bool {
        let listed = total(&self.others);
        let used = self.capacity_bytes.map(|capacity| capacity.saturating_sub(self.free_bytes.unwrap_or(0)));
        let is_full = |(used, reserved): (u64, u64)| listed.saturating_add(reserved) > used;
        candidates.len() == 1 && used.zip(self.reserved_bytes).is_some_and(is_full)
    }
}

/// The bytes of all these processes. The sum saturates, because a forged message may list more than is possible.
fn total(processes: &[(u32, u64)]) -> u64 {
    processes.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::OutOfMemory;

    const MIB: u64 = 1 << 20;

    /// An 80 GiB GPU with 2 GiB free. This process reserved 1 GiB; the message lists the processes in `more`.
    fn message(more: &str) -> OutOfMemory {
        let text = format!(
            "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 2.00 GiB is free. {more}Of \
             the allocated memory 1000.00 MiB is allocated by PyTorch, and 24.00 MiB is reserved by PyTorch but unallocated."
        );
        OutOfMemory::parse(&text).expect("a message")
    }

    #[test]
    fn a_process_is_this_one_only_if_no_other_can_be() {
        // The list does not contain this process, or contains it twice.
        let one = message("Process 7 has 78.00 GiB memory in use. ");
        assert_eq!((one.true_others(), one.perhaps_own()), (vec![], vec![]));
        assert_eq!((one.own_bytes(), one.elsewhere_bytes()), (Some(78 << 30), Some(0)));

        let two = message("Process 7 has 76.00 GiB memory in use. Process 8 has 2.00 GiB memory in use. ");
        assert_eq!((two.true_others(), two.perhaps_own()), (vec![], vec![(7, 76 << 30), (8, 2 << 30)]));
        assert_eq!((two.own_bytes(), two.least_others_bytes()), (None, 2 << 30));
        assert!(two.shortage().held_by_others);

        let small =
            message("Process 7 has 77.50 GiB memory in use. Process 8 has 512.00 MiB memory in use. ");
        assert_eq!((small.true_others(), small.perhaps_own()), (vec![(8, 512 * MIB)], vec![]));
        assert_eq!(small.elsewhere_bytes(), Some(512 * MIB));
    }

    #[test]
    fn a_forged_list_does_not_overflow() {
        let list: String =
            (1..18).map(|pid| format!("Process {pid} has 1023.00 PiB memory in use. ")).collect();
        let forged = message(&list);
        assert_eq!(forged.perhaps_own().len(), 17);
        assert_eq!(forged.least_others_bytes(), u64::MAX - (1023 << 50));
    }

    #[test]
    fn this_process_is_the_one_that_the_message_calls_so() {
        let named = message(
            "Process 7 has 70.00 GiB memory in use. Including non-PyTorch memory, this process has 2.00 GiB memory in use. ",
        );
        assert_eq!((named.true_others(), named.perhaps_own()), (vec![(7, 70 << 30)], vec![]));
        assert_eq!((named.own_bytes(), named.elsewhere_bytes()), (Some(2 << 30), Some(76 << 30)));
        // There is room for this process in addition to the listed process, so the listed process may be this or
        // another process.
        let open = message("Process 7 has 70.00 GiB memory in use. ");
        assert_eq!((open.true_others(), open.perhaps_own()), (vec![], vec![(7, 70 << 30)]));
        assert!(!open.shortage().held_by_others);
    }
}
