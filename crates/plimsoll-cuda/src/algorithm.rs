//! Chooses among cuBLASLt's algorithms for a matrix product.
//!
//! Note [The choice of an algorithm]. Most products use the heuristic's first algorithm. Large products of 16-bit floats with few
//! terms use the first of its eight candidates that has custom option 1: on a power-limited H200, it is up to 8 % faster than the
//! first, and never slower. For the projection to a vocabulary, whose long rows are not a multiple of a tile, the heuristic
//! offers no such candidate: tiles of 128 x 160 with that option take 0.49 ms instead of 0.54 for its first ([3968, 768] x [768,
//! 50256]). The rule depends on sizes and attributes, never on times, so that the bits of a run do not depend on timing.

use std::ffi::c_int;

/// `cublasLtMatmulAlgo_t`, which the library fills.
pub(crate) type Algorithm = [u64; 8];

// Attributes, with their numbers in cublasLt.h.
const ID: c_int = 0;
const TILE: c_int = 1;
const SPLITS: c_int = 2;
const REDUCTION: c_int = 3;
const SWIZZLING: c_int = 4;
const CUSTOM_OPTION: c_int = 5;
const CLUSTER: c_int = 8;

/// The family of algorithms that use `wgmma`.
const HOPPERS: u32 = 66;

/// Tiles of 128 x 160, two blocks per cluster, no split of sums between blocks, custom option 1.
pub(crate) const CHANGES: [(c_int, u32); 6] =
    [(TILE, 29), (CLUSTER, 3), (SPLITS, 1), (REDUCTION, 0), (SWIZZLING, 0), (CUSTOM_OPTION, 1)];

/// The largest number of terms (k) that counts as few.
const FEW_TERMS: usize = 3072;
/// The largest number of terms (k) for which the tiles of [`CHANGES`] are used.
const FEWER_TERMS: usize = 1024;
/// The smallest number of result elements for which a product counts as large.
const MANY_RESULTS: usize = 1 << 20;

/// The size of an attribute in bytes.
pub(crate) fn size(attribute: c_int) -> usize {
    if attribute == CLUSTER { 2 } else { 4 }
}

/// The properties of a product that decide its algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Whether all matrices have 16-bit elements.
    pub(crate) is_short: bool,
}

/// The attributes of a candidate of the heuristic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlgorithmId {
    id: u32,
    option: u32,
}

/// Reads the attributes of an algorithm.
pub(crate) fn known(attribute: impl Fn(c_int) -> u32) -> AlgorithmId {
    AlgorithmId { id: attribute(ID), option: attribute(CUSTOM_OPTION) }
}

/// A candidate without changes, or with [`CHANGES`] if the library accepts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Candidate(usize),
    Changed(usize),
}

/// Chooses one of the heuristic's candidates: Note [The choice of an algorithm]. `None` if there are none.
pub(crate) fn choice(shape: Shape, candidates: impl Iterator<Item = AlgorithmId>) -> Option<Choice> {
    let candidates: Vec<AlgorithmId> = candidates.collect();
    let first = candidates.first()?;
    let Shape { m, n, k, is_short } = shape;
    if !is_short || k > FEW_TERMS || m.saturating_mul(n) < MANY_RESULTS {
        return Some(Choice::Candidate(0));
    }
    let named = candidates.iter().position(|candidate| candidate.option == 1).map(Choice::Candidate);
    let is_changed = k <= FEWER_TERMS && first.id == HOPPERS;
    Some(named.unwrap_or(if is_changed { Choice::Changed(0) } else { Choice::Candidate(0) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_product_of_few_terms_takes_custom_option_1() {
        let of = |[m, n, k]: [usize; 3], is_short, id, options: &[u32]| {
            choice(Shape { m, n, k, is_short }, options.iter().map(|&option| AlgorithmId { id, option }))
        };
        use Choice::{Candidate, Changed};
        assert_eq!(of([8192, 2304, 768], true, 66, &[0, 3, 1, 1]), Some(Candidate(2)));
        assert_eq!(of([8192, 768, 3072], true, 66, &[0, 1]), Some(Candidate(1)));
        assert_eq!(of([3968, 50_256, 768], true, 66, &[0, 3]), Some(Changed(0)));
        // A different family, more terms, few results, wider floats.
        assert_eq!(of([3968, 50_256, 768], true, 23, &[0, 3]), Some(Candidate(0)));
        assert_eq!(of([8192, 768, 3072], true, 66, &[0, 3]), Some(Candidate(0)));
        assert_eq!(of([8192, 768, 4096], true, 66, &[0, 1]), Some(Candidate(0)));
        assert_eq!(of([64, 768, 768], true, 66, &[0, 1]), Some(Candidate(0)));
        assert_eq!(of([8192, 2304, 768], false, 66, &[0, 1]), Some(Candidate(0)));
        assert_eq!(of([64, 768, 768], true, 66, &[]), None);
    }
}
