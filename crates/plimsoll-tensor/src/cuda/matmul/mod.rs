//! Matrix products, and distances between all pairs of vectors.
//!
//! | file | contents |
//! |---|---|
//! | `product` | matrix products, with cuBLASLt if it supports the strides |
//! | `distance` | distances between all pairs from two sets of vectors |

pub(crate) mod distance;
pub(crate) mod product;
