//! Operations on windows of images: convolution, pooling, resampling.
//!
//! | file | contents |
//! |---|---|
//! | `images` | images of one to three dimensions, in the form that the others use |
//! | `conv` | convolution with cuDNN, or with plain kernels |
//! | `few_filters` | the gradient of a small convolution weight |
//! | `small_conv` | convolution of small images with tensor cores |
//! | `small_conv_weight` | its gradient of filters |
//! | `pool` | pooling |
//! | `interpolate` | resampling of images |

mod conv;
mod few_filters;
pub(crate) mod images;
pub(crate) mod interpolate;
pub(crate) mod pool;
mod small_conv;
mod small_conv_weight;

pub(crate) use conv::{convolution, scratch};
