//! Factorizations of batches of square and rectangular matrices, and the systems that they solve.
//!
//! | file | contents |
//! |---|---|
//! | `matrices` | the loop over a batch, and its scratch memory; sums over rows |
//! | `triangular` | systems with a triangular matrix |
//! | `cholesky` | the Cholesky factorization |
//! | `lu` | LU with partial pivoting: systems, inverses and determinants |
//! | `qr` | Householder QR |
//! | `svd` | the singular value decomposition |
//!
//! Matrices are row-major. Those with at most [`BLOCK`] rows and columns run in parallel, each on one thread. Larger ones
//! run one after the other, in blocks whose products use all threads.

mod cholesky;
mod lu;
mod matrices;
mod qr;
mod svd;
#[cfg(test)]
mod tests;
mod triangular;

pub use cholesky::{cholesky, cholesky_scratch_len};
pub use lu::{Determinant, cofactors, determinants, lu_scratch_len, solve};
pub use matrices::{BLOCK, Failure};
pub use qr::{qr, qr_scratch_len};
pub use svd::{Vectors, svd, svd_scratch_len};
pub use triangular::{Triangle, solve_triangular, triangular_scratch_len};
