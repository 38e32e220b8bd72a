//! Attention by tiles with `wgmma`, Hopper's warpgroup matrix products: the passes of `flash`, for rows of 64 and 128 elements.
//!
//! A warpgroup owns 64 rows, and several blocks share a multiprocessor, so that the products of one overlap with the exponentials
//! of another. Tile sizes are chosen so that the registers and shared memory of these blocks fit.

use plimsoll_cuda::Source;

use super::flash_pass::{Pass, Tiled};
use super::scaled_dot_product::Sizes;
use crate::facts::DeviceFacts;

const TEXT: &str = concat!(include_str!("wgmma.cu"), include_str!("flash_wgmma.cu"));

/// The compute capability that has `wgmma`; later ones have other instructions.
const HOPPER: (i32, i32) = (9, 0);

/// Rows that a warpgroup owns.
pub(super) const GROUP_ROWS: usize = 64;

/// The kernels index rows with 32-bit numbers, which suffice below this many rows.
const MOST_ROWS: usize = 1 << 30;

/// Whether these kernels can run a case that `flash` supports.
pub(super) fn takes(sizes: &Sizes, facts: DeviceFacts) -> bool {
    facts.capability == Some(HOPPER)
        && matches!(sizes.dim, 64 | 128)
        && sizes.queries.max(sizes.keys) < MOST_ROWS
}

/// The tiling of a block: each of its warpgroups owns 64 rows, and it loops over the other operand's rows, `step` at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    groups: usize,
    step: usize,
    /// The number of steps in shared memory.
    stages: usize,
    /// The number of blocks that share a multiprocessor.
    blocks: usize,
}

impl Tiling {
    /// The fastest of about forty tilings on an H200, or one within 2 % of the fastest.
    fn of(pass: Pass, dim: usize) -> Tiling {
        let (groups, step, stages, blocks) = match (pass, dim <= 64) {
            (Pass::Forward, true) => (1, 64, 2, 4),
            (Pass::Forward, false) => (2, 128, 2, 1),
            (Pass::Queries, true) => (1, 64, 2, 4),
            (Pass::Queries, false) => (1, 64, 2, 2),
            (Pass::Keys, true) => (1, 64, 3, 3),
            (Pass::Keys, false) => (2, 64, 3, 1),
        };
        Tiling { groups, step, stages, blocks }
    }

    fn rows(self) -> usize {
        self.groups * GROUP_ROWS
    }

    fn threads(self) -> usize {
        self.groups * 128
    }

    /// Shared memory of a block, for its own rows and the stages of the other operand's rows.
    fn shared_bytes(self, pass: Pass, dim: usize) -> usize {
        let row = dim * 2;
        let own = self.rows() * row;
        let ring = self.stages * 2 * self.step * row;
        match pass {
            Pass::Forward => own + ring,
            Pass::Queries => 2 * own + ring,
            Pass::Keys => 2 * own + ring + self.stages * self.step * 8,
        }
    }
}

/// The kernel of a pass; `given` adds the definitions that all texts of a pass share.
pub(super) fn tiled(pass: Pass, dim: usize, given: impl Fn(&'static str) -> Source) -> Tiled {
    let tiling = Tiling::of(pass, dim);
    let source = given(TEXT)
        .with("GROUPS", tiling.groups.to_string())
        .with("THREADS", tiling.threads().to_string())
        .with("N", tiling.step.to_string())
        .with("STAGES", tiling.stages.to_string())
        .with("BLOCKS", tiling.blocks.to_string())
        .arch_specific();
    let shared_bytes = tiling.shared_bytes(pass, dim);
    Tiled { source, rows: tiling.rows(), threads: tiling.threads(), shared_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::DeviceKind;

    #[test]
    fn as_many_blocks_as_promised_fit_the_shared_memory_of_a_multiprocessor_of_hopper() {
        for pass in [Pass::Forward, Pass::Queries, Pass::Keys] {
            for dim in [64, 128] {
                let tiling = Tiling::of(pass, dim);
                let bytes = tiling.shared_bytes(pass, dim);
                // A multiprocessor has 228 KiB, and each block uses 1 KiB extra; a block can have at most 227 KiB.
                assert!(tiling.blocks * (bytes + 1024) <= 228 << 10, "{pass:?} {dim}: {bytes}");
                // Scratch memory holds numbers for a multiple of 64 queries.
                assert!(pass != Pass::Keys || tiling.step == 64);
            }
        }
    }

    #[test]
    fn only_hopper_takes_them() {
        let sizes = |dim| Sizes { batch: 2, heads: 2, kv_heads: 1, queries: 7, keys: 9, dim, value_dim: dim };
        let facts = |capability| DeviceFacts { kind: DeviceKind::Cuda, capability };
        assert!(takes(&sizes(64), facts(Some((9, 0)))) && takes(&sizes(128), facts(Some((9, 0)))));
        assert!(!takes(&sizes(80), facts(Some((9, 0)))));
        for capability in [None, Some((8, 9)), Some((10, 0)), Some((12, 0))] {
            assert!(!takes(&sizes(64), facts(capability)), "{capability:?}");
        }
    }
}
