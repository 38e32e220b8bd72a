//! Convolution of one, two and three spatial dimensions, and transposed convolution.
//!
//! The three passes are operators. The derivative of each consists of the others, so it can be differentiated again
//! (`passes.rs`). Transposed convolution is the backward pass to the input under another name. `sizes.rs` checks the arguments,
//! `format.rs` the memory formats, and `call.rs` has the methods of [`Tensor`](crate::Tensor).

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
