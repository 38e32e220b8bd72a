//! Attention, and rotary embedding.
//!
//! | file | contents |
//! |---|---|
//! | `operands` | the operator's parameters; sizes and strides of the operands, separate or packed into one tensor |
//! | `scaled_dot_product` | the operator: `q, k, v[, mask] -> out, log-sum-exp` |
//! | `backward` | the gradients, from recomputed blocks of scores |
//! | `composed` | the gradients composed of tensor operations, for second derivatives |
//! | `call` | the methods of [`Tensor`](crate::Tensor), their options and errors |
//! | `cases` | cases for the conformance suite |
//! | `rotary` | rotary position embedding |

mod backward;
mod call;
mod cases;
mod composed;
mod operands;
pub(super) mod rotary;
mod scaled_dot_product;

pub use call::AttentionOptions;
pub(crate) use cases::cases;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[("attention", cases), ("rotary", rotary::cases)];
