//! How much an operator computes and moves: [`Cost`].

/// The cost of one run of an operator. It depends only on sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts as two.
    pub flops: u64,
    /// Bytes that must be read.
    pub bytes_read: u64,
    /// Bytes that must be written.
    pub bytes_written: u64,
    /// Bytes that it must receive from other ranks.
    pub bytes_received: u64,
    /// The number of ranks that run a collective together; 0 for other operators.
    pub ranks: usize,
    /// The number of hosts that these ranks are on; 0 for other operators.
    pub hosts: usize,
}
