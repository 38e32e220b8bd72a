//! Operations on windows of images: convolution, pooling, resampling.
//!
//! | file | contents |
//! |---|---|
//! | `conv/` | convolution and transposed convolution |
//! | `pool/` | pooling |
//! | `interpolate` | resampling to a different size |
//! | `bicubic` | bicubic resampling |
//! | `grid_sample` | images sampled at the points of a grid |
//! | `windows` | windows of images as columns, and the inverse (`unfold`, `fold`) |
//! | `shuffle` | rearranging channels into pixels and back |

pub(super) mod bicubic;
pub(super) mod conv;
pub(super) mod grid_sample;
pub(super) mod interpolate;
pub(super) mod pool;
pub(super) mod shuffle;
pub(super) mod windows;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("conv", conv::cases), ("interpolate", interpolate::cases), ("pool", pool::cases)];
