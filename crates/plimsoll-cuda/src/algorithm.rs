//! Which of cuBLASLt's algorithms a product takes.
//!
//! Note [The choice of an algorithm]. Most products take the heuristic's first algorithm. Large products of short floats with few terms
//! take the first of eight with custom option 1: on an H200 whose clock its power limits, it is up to 8 % faster than the first, and never
//! slower. For the projection to a vocabulary, whose long rows are not a multiple of a tile, the heuristic names none: tiles of
//! 128 x 160 with that option
//! take 0.49 ms where its first takes 0.54 ([3968, 768] x [768, 50256]). The rule reads sizes and attributes, never times,
//! so a run's bits do not depend on what a clock said.

use std::ffi::c_int;

/// `cublasLtMatmulAlgo_t`, which the library fills.
pub(crate) type Algorithm = [u64; 8];

// Attributes by cublasLt.h's numbers.
const ID: c_int = 0;
const TILE: c_int = 1;
const SPLITS: c_int = 2;
const REDUCTION: c_int = 3;
const SWIZZLING: c_int = 4;
const CUSTOM_OPTION: c_int = 5;
const CLUSTER: c_int = 8;

/// The family of algorithms by `wgmma`.
const HOPPERS: u32 = 66;

/// Tiles of 128 x 160, two blocks a cluster, each sum by one block, custom option 1.
pub(crate) const CHANGES: [(c_int, u32); 6] =
    [(TILE, 29), (CLUSTER, 3), (SPLITS, 1), (REDUCTION, 0), (SWIZZLING, 0), (CUSTOM_OPTION, 1)];

/// A product with at most this many terms (k) counts as having few terms.
const FEW_TERMS: usize = 3072;
/// A product with at most this many terms (k) uses the tiles of [`CHANGES`].
const FEWER_TERMS: usize = 1024;
/// Elements of the result from which on a product is large.
const MANY_RESULTS: usize = 1 << 20;

/// Bytes of an attribute.
pub(crate) fn size(attribute: c_int) -> usize {
    if attribute == CLUSTER { 2 } else { 4 }
}

/// What a product is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Whether all matrices are of 16 bits.
    pub(crate) is_short: bool,
}

/// What a candidate of the heuristic says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlgorithmId {
    id: u32,
    option: u32,
}

/// Reads it from the algorithm's attributes.
pub(crate) fn known(attribute: impl Fn(c_int) -> u32) -> AlgorithmId {
    AlgorithmId { id: attribute(ID), option: attribute(CUSTOM_OPTION) }
}

/// A candidate as it is, or with [`CHANGES`], if it then runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Candidate(usize),
    Changed(usize),
}

/// Which of the heuristic's candidates a product takes: Note [The choice of an algorithm]. `None` where there are none.
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
        // Another family, more terms, few results, long floats.
        assert_eq!(of([3968, 50_256, 768], true, 23, &[0, 3]), Some(Candidate(0)));
        assert_eq!(of([8192, 768, 3072], true, 66, &[0, 3]), Some(Candidate(0)));
        assert_eq!(of([8192, 768, 4096], true, 66, &[0, 1]), Some(Candidate(0)));
        assert_eq!(of([64, 768, 768], true, 66, &[0, 1]), Some(Candidate(0)));
        assert_eq!(of([8192, 2304, 768], false, 66, &[0, 1]), Some(Candidate(0)));
        assert_eq!(of([64, 768, 768], true, 66, &[]), None);
    }
}
