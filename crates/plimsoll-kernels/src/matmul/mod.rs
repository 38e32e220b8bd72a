//! Products of matrices, and distances of every pair of vectors.
//!
//! | file | what it has |
//! |---|---|
//! | `matrix` | sizes of a product, strides of its matrices |
//! | `batched` | strided, batched products |
//! | `packed_matmul` | large products, of packed panels |
//! | `short_matmul` | products of 16-bit floats |
//! | `distance` | distances of every pair of two sets of vectors |

pub(crate) mod batched;
pub mod distance;
pub(crate) mod matrix;
mod packed_matmul;
pub mod short_matmul;

pub use batched::{Product, matmul};
pub use matrix::{MatmulShape, MatrixStrides};
