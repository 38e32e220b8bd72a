//! Attention, and rotary embedding.
//!
//! | file | what it has |
//! |---|---|
//! | `operands` | the operator's parameters; sizes and strides of the operands, apart or packed into one tensor |
//! | `scaled_dot_product` | the operator: `q, k, v[, mask] -> out, log-sum-exp` |
//! | `backward` | the gradients, from blocks of scores computed once more |
//! | `composed` | the gradients as operations on whole tensors, for a derivative of them |
//! | `call` | the methods of [`Tensor`](crate::Tensor), their options and errors |
//! | `cases` | what the conformance suite runs |
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

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[("attention", cases), ("rotary", rotary::cases)];
