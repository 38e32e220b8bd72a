//! Kernels on windows of images: convolution, pooling, resampling.
//!
//! | file | contents |
//! |---|---|
//! | `conv` | convolution: its three passes |
//! | `pool` | pooling: the maximum or mean of each window |
//! | `interpolate` | resampling of images |

pub mod conv;
pub mod interpolate;
pub mod pool;
