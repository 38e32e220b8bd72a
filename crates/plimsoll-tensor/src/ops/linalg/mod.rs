//! Linear algebra: norms, factorizations, systems of equations and determinants. Like `torch.linalg`.
//!
//! Functions work on the last two dimensions of `float32` and `float64` tensors; the dimensions before them are a batch. Derivatives are
//! PyTorch's formulas, and can be differentiated again. If a matrix has no result (it is singular, or not
//! positive-definite), the error is [`Error::LinAlg`](crate::Error::LinAlg), which names its place in the batch.
//!
//! Norms run on every device. Factorizations have kernels for the CPU; a GPU rejects them by name: move the tensor with
//! [`to_device`](crate::Tensor::to_device), and the result back.
//!
//! ```
//! use plimsoll_tensor::{Device, Tensor, linalg};
//! let device = Device::cpu();
//! let a = Tensor::from_slice(&[4.0f32, 2.0, 2.0, 3.0], &[2, 2], &device)?;
//! let b = Tensor::from_slice(&[8.0f32, 8.0], &[2], &device)?;
//! assert!(linalg::solve(&a, &b)?.allclose(&Tensor::from_slice(&[1.0f32, 2.0], &[2], &device)?, Default::default())?);
//! assert_eq!(linalg::cholesky(&a, false)?.to_vec::<f32>()?[..2], [2.0, 0.0]);
//! assert_eq!(linalg::vector_norm(&b, f64::INFINITY, &[], false)?.item::<f32>()?, 8.0);
//! # Ok::<(), plimsoll_tensor::Error>(())
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `matrices` | checks of shapes and types, and errors of matrices |
//! | `triangular` | systems with a triangular matrix |
//! | `cholesky` | the Cholesky factorization |
//! | `solve` | systems of equations, and inverses |
//! | `det` | determinants |
//! | `qr` | the QR factorization |
//! | `svd` | the singular value decomposition |
//! | `norm` | norms of vectors and matrices |

mod cholesky;
mod det;
mod matrices;
mod norm;
mod qr;
mod solve;
mod svd;
mod triangular;

pub use cholesky::cholesky;
pub use det::{det, slogdet};
pub use norm::{MatrixNorm, matrix_norm, norm, vector_norm};
pub use qr::qr;
pub use solve::{inv, solve};
pub use svd::{svd, svdvals};
pub use triangular::{TriangularOptions, solve_triangular};

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("cholesky", cholesky::cases),
    ("det", det::cases),
    ("qr", qr::cases),
    ("solve", solve::cases),
    ("svd", svd::cases),
    ("triangular", triangular::cases),
];
