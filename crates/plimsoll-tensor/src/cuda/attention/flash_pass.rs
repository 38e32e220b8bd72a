//! The passes of attention by tiles, and what a kernel for one of them has to say.

use plimsoll_cuda::Source;

/// A pass over the scores. The texts know it by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The output and the log-sum-exp of each row.
    Forward,
    /// The gradient of queries, and two numbers of each row for the next pass.
    Queries,
    /// The gradients of keys and values.
    Keys,
}

/// A kernel of a pass, and how it is launched.
pub(super) struct Tiled {
    pub(super) source: Source,
    /// Rows of a block.
    pub(super) rows: usize,
    /// Threads of a block.
    pub(super) threads: usize,
    /// Shared memory of a block.
    pub(super) shared_bytes: usize,
}
