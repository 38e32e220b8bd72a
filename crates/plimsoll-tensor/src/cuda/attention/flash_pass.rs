//! The passes of attention by tiles, and the description of a kernel for one of them.

use plimsoll_cuda::Source;

/// A pass over the scores. The kernel texts refer to it by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// The output and the log-sum-exp of each row.
    Forward,
    /// The gradient of queries, and two numbers for each row, which the next pass uses.
    Queries,
    /// The gradients of keys and values.
    Keys,
}

/// A kernel of a pass, with its launch parameters.
pub(super) struct Tiled {
    pub(super) source: Source,
    /// Rows of a block.
    pub(super) rows: usize,
    /// Threads of a block.
    pub(super) threads: usize,
    /// Shared memory of a block.
    pub(super) shared_bytes: usize,
}
