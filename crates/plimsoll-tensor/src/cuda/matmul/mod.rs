//! Products of matrices, and distances of every pair of vectors.
//!
//! | file | what it has |
//! |---|---|
//! | `product` | matrix products, by cuBLASLt where it reads the strides |
//! | `distance` | distances of every pair of two sets of vectors |

pub(crate) mod distance;
pub(crate) mod product;
