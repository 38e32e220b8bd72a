//! Whether a GPU may multiply `float32` in TF32: 10 bits of each factor, several times as fast.
//!
//! As PyTorch's defaults: convolutions may, matrix products may not. A convolution keeps what held when it was called for
//! its derivatives.

use std::sync::atomic::{AtomicBool, Ordering};

static CONVOLUTIONS: AtomicBool = AtomicBool::new(true);

/// Allows or forbids TF32 in convolutions of `float32` on a GPU from now on, in all threads. As
/// `torch.backends.cudnn.allow_tf32`, and true at first as there.
pub fn allow_tf32_in_convolutions(allowed: bool) {
    CONVOLUTIONS.store(allowed, Ordering::Relaxed);
}

pub(crate) fn is_allowed_in_convolutions() -> bool {
    CONVOLUTIONS.load(Ordering::Relaxed)
}
