//! Pooling: windows of `[batch, channels, …]`, or of `[channels, …]`, reduced to their largest element or their mean.
//!
//! | file | what it has |
//! |---|---|
//! | `options` | the options of the methods |
//! | `spec` | which windows, and the sizes that follow |
//! | `max`, `average` | the operators, with their derivatives |
//! | `places`, `unpool` | where maxima were, and values put back there |
//! | `call` | the methods of [`Tensor`](crate::Tensor) |
//! | `cases` | what the conformance suite runs |
//!
//! Images of one, two or three dimensions are one to the kernels. Channels-last images stay so.

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
