//! What works on windows of images: convolution, pooling, resampling.
//!
//! | file | what it has |
//! |---|---|
//! | `conv` | convolution: its three passes |
//! | `pool` | windows' largest elements and means |
//! | `interpolate` | images resampled |

pub mod conv;
pub mod interpolate;
pub mod pool;
