//! Matrix products, and distances between all pairs of vectors.
//!
//! | file | contents |
//! |---|---|
//! | `matrix` | the sizes of a product, and the strides of its matrices |
//! | `gemm` | one product on this thread |
//! | `batched` | strided, batched products |
//! | `packed_matmul` | large products, with packed panels |
//! | `short_matmul` | products of 16-bit floats |
//! | `distance` | distances between all pairs from two sets of vectors |

pub(crate) mod batched;
pub mod distance;
pub(crate) mod gemm;
pub(crate) mod matrix;
mod packed_matmul;
pub mod short_matmul;

pub use batched::{Product, matmul};
pub use matrix::{MatmulShape, MatrixStrides};
