//! Pooling: reduces windows of `[batch, channels, …]` or `[channels, …]` to their maximum or mean.
//!
//! | file | contents |
//! |---|---|
//! | `options` | the options of the methods |
//! | `spec` | the windows, and the resulting sizes |
//! | `max`, `average` | the operators, with their derivatives |
//! | `places`, `unpool` | positions of the maxima in the image, and `max_unpool` |
//! | `call` | the methods of [`Tensor`](crate::Tensor) |
//! | `cases` | cases for the conformance suite |
//!
//! The kernels treat images of one, two or three dimensions alike. Channels-last images stay channels-last.

mod average;
mod call;
mod cases;
mod max;
mod options;
mod places;
mod spec;
mod unpool;

pub(crate) use cases::cases;
pub use options::{
    AvgPool1dOptions, AvgPool2dOptions, AvgPool3dOptions, AvgPoolOptions, MaxPool1dOptions, MaxPool2dOptions,
    MaxPool3dOptions, MaxPoolOptions,
};
