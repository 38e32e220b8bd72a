//! Attention in blocks, and rotary embedding.
//!
//! | file | what it has |
//! |---|---|
//! | `operands` | sizes, where the operands lie, what changes the scores |
//! | `scaled_dot_product` | attention and its gradients, for any type of floating point |
//! | `block` | rows into blocks of the type that is computed in, and products of blocks |
//! | `forward` | the output and each row's log-sum-exp, by an online softmax |
//! | `backward` | the gradients, with the scores computed once more |
//! | `rotary` | pairs of elements turned by an angle |

mod backward;
mod block;
mod forward;
mod operands;
pub mod rotary;
mod scaled_dot_product;

pub use backward::Gradients;
pub use operands::{AttentionShape, Heads, Mask, Scores};
pub use scaled_dot_product::{
    attention, attention_backward, backward_scratch_len, dropout_factors, forward_scratch_len,
};
