//! What works on windows of images: convolution, pooling, resampling.
//!
//! | file | what it has |
//! |---|---|
//! | `conv/` | convolution and transposed convolution |
//! | `pool/` | pooling |
//! | `interpolate` | resampling to another size |
//! | `bicubic` | bicubic resampling |
//! | `grid_sample` | images sampled at places that a grid names |
//! | `windows` | windows of images as columns, and back |
//! | `shuffle` | channels that become places and back |

pub(super) mod bicubic;
pub(super) mod conv;
pub(super) mod grid_sample;
pub(super) mod interpolate;
pub(super) mod pool;
pub(super) mod shuffle;
pub(super) mod windows;

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("conv", conv::cases), ("interpolate", interpolate::cases), ("pool", pool::cases)];
