//! Attention, and rotary embedding.
//!
//! | file | contents |
//! |---|---|
//! | `scaled_dot_product` | attention by blocks of scores |
//! | `flash` | attention by tiles with tensor cores |
//! | `flash_pass` | its passes |
//! | `flash_wgmma` | the same on Hopper, with `wgmma` products |
//! | `rotary` | rotary embedding: pairs of elements rotated by an angle |

pub(crate) mod flash;
mod flash_pass;
mod flash_wgmma;
pub(crate) mod rotary;
pub(crate) mod scaled_dot_product;

pub(crate) use scaled_dot_product::{AttentionParams, Heads, Sizes, scratch};
