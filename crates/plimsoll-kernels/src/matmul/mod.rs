//! Products of matrices, and distances of every pair of vectors.
//!
//! | file | what it has |
//! |---|---|
//! | `batched` | strided, batched products |
//! | `packed_matmul` | large products, of packed panels |
//! | `short_matmul` | products of 16-bit floats |
//! | `distance` | distances of every pair of two sets of vectors |

pub(crate) mod batched;
pub mod distance;
mod packed_matmul;
pub mod short_matmul;

pub use batched::{MatmulShape, MatrixStrides, Product, matmul};
