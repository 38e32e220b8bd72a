//! Attention in blocks, and rotary embedding.
//!
//! | file | contents |
//! |---|---|
//! | `operands` | sizes, layouts of the operands, mask, causality and dropout |
//! | `scaled_dot_product` | attention and its gradients, for any floating-point type |
//! | `block` | loading rows into blocks of the compute type, and products of blocks |
//! | `forward` | the output and each row's log-sum-exp, with an online softmax |
//! | `backward` | the gradients, with recomputed scores |
//! | `rotary` | rotary embedding: pairs of elements rotated by an angle |

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
