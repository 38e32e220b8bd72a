//! Elementwise expressions, fills, copies, and the gradient of an activation.
//!
//! | file | contents |
//! |---|---|
//! | `expression` | elementwise expressions of any types; fills and copies |
//! | `activation` | the gradient of an activation, with its recomputed values |

pub(crate) mod activation;
pub(crate) mod expression;

pub(crate) use expression::{Expression, change, copy, evaluate, fill, of_operator, sequence};
