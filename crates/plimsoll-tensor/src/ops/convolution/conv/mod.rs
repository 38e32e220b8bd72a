//! Convolution of one, two and three spatial dimensions, and transposed convolution.
//!
//! The three passes are operators, each of which is the derivative of the others: so a derivative has one too (`passes.rs`).
//! The transposed convolution is the pass backward to the input under another name. `sizes.rs` checks what a caller gives,
//! `format.rs` says how tensors lie, `call.rs` has the methods of [`Tensor`](crate::Tensor).

mod call;
mod cases;
mod format;
mod options;
mod passes;
mod sizes;

pub(crate) use cases::cases;
pub use options::{
    Conv1dOptions, Conv2dOptions, Conv3dOptions, ConvOptions, ConvPadding, ConvTranspose1dOptions,
    ConvTranspose2dOptions, ConvTranspose3dOptions, ConvTransposeOptions,
};
