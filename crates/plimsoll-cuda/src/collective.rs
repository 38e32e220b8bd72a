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
