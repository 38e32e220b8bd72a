//! Matrix descriptors of cuSPARSE: sizes and number types.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};

use crate::error::{Failure, Outcome};
use crate::lock::locked;

/// `CUSPARSE_INDEX_64I`, and `CUSPARSE_ORDER_ROW`.
const INDEX_64: c_int = 3;
const ROW_MAJOR: c_int = 2;

/// An upper limit for rows, columns and values, so that byte counts do not overflow.
const MOST: u64 = 1 << 48;

/// A sparse matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sparse {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// The number of stored values.
    pub(super) values: u64,
    pub(super) index_bytes: u64,
    /// `cudaDataType` of the values.
    pub(super) element: c_int,
}

/// A dense matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dense {
    pub(super) columns: u64,
    pub(super) is_row_major: bool,
}

/// The matrices by handle.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) sparse: BTreeMap<u64, Sparse>,
    pub(super) dense: BTreeMap<u64, Dense>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { sparse: BTreeMap::new(), dense: BTreeMap::new() });

pub(super) fn known() -> MutexGuard<'static, Known> {
    locked(&KNOWN)
}

impl Sparse {
    /// A matrix with these rows, columns and stored values.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for a size beyond the limit.
    pub(super) fn new(sizes: [i64; 3], index: c_int, element: c_int) -> Outcome<Sparse> {
        let [rows, columns, values] = sizes;
        let index_bytes = if index == INDEX_64 { 8 } else { 4 };
        Ok(Sparse { rows: size(rows)?, columns: size(columns)?, values: size(values)?, index_bytes, element })
    }

    /// The matrix of a handle.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none.
    pub(super) fn of(handle: u64) -> Outcome<Sparse> {
        known().sparse.get(&handle).copied().ok_or(Failure::InvalidHandle)
    }

    /// The density.
    fn density(self) -> f64 {
        self.values as f64 / (self.rows as f64 * self.columns as f64).max(1.0)
    }

    /// The number of value pairs that are summed in the product with another matrix, if the values of both are spread
    /// evenly.
    pub(super) fn pairs_with(self, other: Sparse) -> u64 {
        let pairs = u128::from(self.values) * u128::from(other.values) / u128::from(self.columns.max(1));
        u64::try_from(pairs).unwrap_or(u64::MAX)
    }

    /// The number of values in the product with another matrix, if the values of both are spread evenly and at random:
    /// a position stays empty if none of the `columns` pairs that contribute to it exists. For random matrices this is
    /// accurate within 1 %. A product of graphs in which a few nodes have most of the edges has more values.
    pub(super) fn times(self, other: Sparse) -> u64 {
        let places = self.rows as f64 * other.columns as f64;
        let pair = self.density() * other.density();
        let empty = (self.columns as f64 * (-pair.min(1.0)).ln_1p()).exp();
        // The cast saturates.
        (places * (1.0 - empty)).round() as u64
    }

    /// The number of values of the sum with another matrix, if the values of both are spread evenly and at random.
    pub(super) fn plus(self, other: Sparse) -> u64 {
        let shared = self.values as f64 * other.density();
        self.values + other.values - (shared.round() as u64).min(self.values)
    }
}

impl Dense {
    /// A matrix with this many columns.
    ///
    /// # Errors
    ///
    /// `InvalidValue` for a size beyond the limit.
    pub(super) fn new(columns: i64, order: c_int) -> Outcome<Dense> {
        Ok(Dense { columns: size(columns)?, is_row_major: order == ROW_MAJOR })
    }

    /// The matrix of a handle.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none.
    pub(super) fn of(handle: u64) -> Outcome<Dense> {
        known().dense.get(&handle).copied().ok_or(Failure::InvalidHandle)
    }
}

fn size(number: i64) -> Outcome<u64> {
    u64::try_from(number).ok().filter(|size| *size <= MOST).ok_or(Failure::InvalidValue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: i64, columns: i64, values: i64) -> Sparse {
        Sparse::new([rows, columns, values], 2, 0).unwrap()
    }

    /// Random matrices on an H200: rows, values and columns of both factors, and the number of values in the
    /// product.
    #[test]
    fn a_product_of_random_matrices_has_as_many_values_as_on_a_card() {
        for (a, b, card) in [
            (matrix(1000, 1000, 9946), matrix(1000, 1000, 9946), 94_106_u64),
            (matrix(100_000, 100_000, 999_947), matrix(100_000, 100_000, 999_947), 9_995_532),
            (matrix(3000, 3000, 294_987), matrix(3000, 3000, 294_987), 8_641_593),
            (matrix(1000, 5000, 49_735), matrix(5000, 3000, 19_980), 192_763),
            (matrix(5000, 1000, 19_959), matrix(1000, 300, 77_880), 967_681),
        ] {
            let error = a.times(b) as f64 / card as f64 - 1.0;
            assert!(error.abs() < 0.01, "{a:?} {b:?}: {error}");
        }
    }

    #[test]
    fn a_sum_has_a_value_for_each_place_that_one_of_both_has() {
        assert_eq!(matrix(10, 10, 10).plus(matrix(10, 10, 20)), 28);
        assert_eq!(matrix(10, 10, 100).plus(matrix(10, 10, 100)), 100);
        assert_eq!(matrix(10, 10, 0).plus(matrix(10, 10, 5)), 5);
    }

    #[test]
    fn a_product_never_has_more_values_than_places() {
        assert_eq!(matrix(10, 10, 0).times(matrix(10, 10, 100)), 0);
        assert_eq!(matrix(10, 10, 100).times(matrix(10, 20, 200)), 200);
        assert_eq!(matrix(1, 1, 1).times(matrix(1, 1, 1)), 1);
        assert_eq!(matrix(0, 0, 0).times(matrix(0, 0, 0)), 0);
    }
}
