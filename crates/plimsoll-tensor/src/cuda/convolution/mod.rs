//! What works on windows of images: convolution, pooling, resampling.
//!
//! | file | what it has |
//! |---|---|
//! | `images` | images of one to three dimensions, as the others see them |
//! | `conv` | convolution: cuDNN's, with plain kernels where that has none |
//! | `few_filters` | the gradient of a convolution's weight of few elements |
//! | `small_conv` | convolution of small images by tensor cores |
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
