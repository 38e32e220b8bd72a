//! What a collective moves: [`Collective`].

/// A collective operation that moves bytes between all ranks of a group. Addresses are in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Collects the parts of all ranks in a buffer, in rank order. This rank's part is already there.
    AllGather {
        /// The buffer.
        buffer: u64,
        /// Bytes of one part.
        part_bytes: u64,
    },
    /// Part r of each rank's send buffer goes to rank r.
    AllToAll {
        /// The parts to send.
        send: u64,
        /// The parts that arrive.
        receive: u64,
        /// Bytes of one part.
        part_bytes: u64,
        /// Whether this rank's own part is copied too. If not, there is no room for it between those that arrive.
        keeps_own: bool,
    },
    /// Copies rank `root`'s buffer to all ranks.
    Broadcast {
        /// The buffer.
        buffer: u64,
        /// Its bytes.
        bytes: u64,
        /// The rank that has the values.
        root: usize,
    },
}

impl Collective {
    /// The number of parts that arrive before that of rank `from`, in an all-to-all on rank `rank`.
    pub(crate) fn place(from: usize, rank: usize, keeps_own: bool) -> u64 {
        (if from > rank && !keeps_own { from - 1 } else { from }) as u64
    }
}
