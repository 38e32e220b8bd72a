//! Workspaces of cuSPARSE. They are undocumented; these formulas were fitted to an H200
//! (`tests/pytorch/workspaces/libraries-h200-2.11.0.txt`, CUDA 13.0), and most match to the byte.
//!
//! Most are counts of tiles: a thread block computes a tile of values and stores where it starts.

use std::ffi::c_int;

use super::matrix::{Dense, Sparse};

/// `CUDA_R_64F`, `CUDA_C_32F`, `CUDA_C_64F`: the types of more than four bytes; the latter two are complex.
const REAL_64: c_int = 1;
const COMPLEX_32: c_int = 4;
const COMPLEX_64: c_int = 5;
/// `CUDA_R_16F`, `CUDA_R_16BF`.
const HALVES: [c_int; 2] = [2, 14];
/// `CUSPARSE_SPMM_ALG_DEFAULT`, `CUSPARSE_SPMM_CSR_ALG1`.
const DEFAULT: c_int = 0;
const FIRST: c_int = 4;
/// The alignment of arrays.
const ALIGNMENT: u64 = 128;
/// At this density and above, a sampled product is computed as a dense one. On an H200 the limit is between 15 and 20 %.
const DENSE_SHARE: f64 = 0.2;

impl Sparse {
    fn value_bytes(self) -> u64 {
        match self.element {
            COMPLEX_64 => 16,
            REAL_64 | COMPLEX_32 => 8,
            element if HALVES.contains(&element) => 2,
            _ => 4,
        }
    }

    /// Bytes for one number per tile of this many values, and for `more` additional numbers.
    fn tiles_bytes(self, tile: u64, more: u64) -> u64 {
        self.index_bytes * (self.values.div_ceil(tile) + more) - 1
    }

    /// Workspace bytes for sparse times vector. 16-bit sums are accumulated in 32 bits.
    pub(super) fn vector_product_bytes(self, operation: c_int, compute: c_int) -> u64 {
        let sums = if operation == 0 { self.rows } else { self.columns };
        let is_wide = self.index_bytes == 8;
        match self.element {
            element if element != compute => {
                4 * sums + self.tiles_bytes(if is_wide { 896 } else { 1024 }, 2) + ALIGNMENT - 1
            }
            COMPLEX_32 | COMPLEX_64 => self.tiles_bytes(if is_wide { 512 } else { 896 }, 2),
            REAL_64 => self.tiles_bytes(if is_wide { 3072 } else { 3584 }, 2),
            _ => self.tiles_bytes(if is_wide { 3072 } else { 4096 }, 2),
        }
    }

    /// Workspace bytes for sparse times dense, with the product in `result`.
    pub(super) fn matrix_product_bytes(
        self,
        operation: c_int,
        result: Dense,
        compute: c_int,
        algorithm: c_int,
    ) -> u64 {
        match algorithm {
            _ if result.columns == 1 => self.vector_product_bytes(operation, compute),
            FIRST => self.tiles_bytes(256, 2),
            DEFAULT if !result.is_row_major => self.tiles_bytes(256, 2),
            _ => self.tiles_bytes(24, 1),
        }
    }

    /// Workspace bytes for a sampled dense product at this matrix's positions.
    pub(super) fn sampled_product_bytes(self) -> u64 {
        let places = self.rows.saturating_mul(self.columns);
        if self.values as f64 >= DENSE_SHARE * places as f64 && places > 1 {
            self.index_bytes.saturating_mul(places).saturating_add(self.index_bytes - 1)
        } else {
            1
        }
    }

    /// Workspace bytes for a triangular solve with this many right-hand sides.
    pub(super) fn solve_bytes(self, sides: u64) -> u64 {
        let (index, value) = (self.index_bytes, self.value_bytes());
        let rows = (28 + 3 * index + 2 * value) * self.rows + (index * (self.rows + 1)).max(1024);
        let one = rows + (index + value) * self.values + 3 * index + 226;
        let others = value * sides.saturating_sub(1) + 8 * sides.div_ceil(32).saturating_sub(1);
        one.saturating_add(others.saturating_mul(self.rows))
    }

    /// Workspace bytes for the analysis of a sparse product's factors, of which this is the first.
    pub(super) fn product_estimate_bytes(self) -> u64 {
        let tiles = 16 * (self.values.div_ceil(896) + 32);
        12 * self.values + tiles.next_multiple_of(256) + 311
    }

    /// Workspace bytes for the sparse product itself: two arrays of its value pairs, sorted by position.
    pub(super) fn product_bytes(self, other: Sparse) -> u64 {
        self.pairs_with(other).saturating_mul(16 + 2 * self.value_bytes())
    }
}

/// Workspace bytes for the sum of two matrices with this many rows.
pub(super) fn sum_bytes(rows: u64) -> u64 {
    ALIGNMENT + (8 * (32 + rows.div_ceil(2048))).next_multiple_of(ALIGNMENT)
}

/// Workspace bytes for sorting this many values by row and column.
pub(super) fn sort_pairs_bytes(values: u64) -> u64 {
    let tiles = 8 * values.div_ceil(1024);
    4 * (4 * values).next_multiple_of(ALIGNMENT) + tiles.next_multiple_of(ALIGNMENT) + 768
}

/// Workspace bytes for sorting this many values by column within rows.
pub(super) fn sort_rows_bytes(values: u64) -> u64 {
    sort_pairs_bytes(values) + (4 * (values + 1)).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../../tests/pytorch/workspaces/libraries-h200-2.11.0.txt");

    fn element(name: &str) -> c_int {
        match name {
            "f16" => HALVES[0],
            "f64" => REAL_64,
            "c64" => COMPLEX_32,
            _ => 0,
        }
    }

    /// The formulas' result for a measurement, and the measured bytes.
    fn check(line: &str) -> (u64, u64) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let element = element(words[1]);
        let card = number(words.len() - 1);
        if words[0] == "SpGEMM" {
            let size = |at: usize| number(at).cast_signed();
            let a = Sparse::new([size(2), size(3), size(5)], 2, element).unwrap();
            let b = Sparse::new([size(3), size(4), size(6)], 2, element).unwrap();
            assert_eq!(a.product_estimate_bytes(), number(8), "{line}");
            return (a.product_bytes(b), card);
        }
        let [rows, columns, values, sides] = [3, 4, 5, 6].map(number);
        let small = |at: usize| number(at) as c_int;
        let a = Sparse { rows, columns, values, index_bytes: number(2), element };
        let c = Dense { columns: sides, is_row_major: number(8) == 2 };
        let compute = if HALVES.contains(&element) { 0 } else { element };
        let ours = match words[0] {
            "SpMV" => a.vector_product_bytes(small(7), compute),
            "SpMM" => a.matrix_product_bytes(small(7), c, compute, small(9)),
            "SDDMM" => a.sampled_product_bytes(),
            "SpSV" | "SpSM" => a.solve_bytes(sides),
            "coosort" => sort_pairs_bytes(values),
            "csrsort" => sort_rows_bytes(values),
            "csrgeam2" => sum_bytes(rows),
            kind => panic!("{kind}"),
        };
        (ours, card)
    }

    #[test]
    fn workspaces_are_the_cards_but_for_sorts_and_sparse_products_which_are_near() {
        let mut kinds = std::collections::BTreeMap::<&str, u32>::new();
        for line in MEASURED.lines() {
            let kind = line.split(' ').next().unwrap();
            if ["#", "CTC", "BatchNorm"].contains(&kind) {
                continue;
            }
            let (ours, card) = check(line);
            *kinds.entry(kind).or_default() += 1;
            let most = match kind {
                "coosort" | "csrsort" => 256,
                "SpGEMM" => card / 100,
                _ => 0,
            };
            assert!(ours.abs_diff(card) <= most, "{line}: {ours}");
        }
        let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let expected =
            "SDDMM 52, SpGEMM 20, SpMM 936, SpMV 156, SpSM 36, SpSV 36, coosort 13, csrgeam2 13, csrsort 13";
        assert_eq!(kinds.join(", "), expected);
    }
}
