//! Whether a GPU may multiply `float32` in TF32: factors have 10 mantissa bits, and products are several times as fast.
//!
//! The defaults are PyTorch's: TF32 is allowed in convolutions, not in matrix products. Both settings are process-wide.
//! The derivatives of a convolution use the setting from its call; a matrix product reads the setting when it runs.

use std::sync::atomic::{AtomicBool, Ordering};

static CONVOLUTIONS: AtomicBool = AtomicBool::new(true);
static MATMUL: AtomicBool = AtomicBool::new(false);

/// Allows or forbids TF32 in convolutions of `float32` on a GPU from now on, in all threads. Like
/// `torch.backends.cudnn.allow_tf32`, and also true by default.
pub fn allow_tf32_in_convolutions(allowed: bool) {
    CONVOLUTIONS.store(allowed, Ordering::Relaxed);
}

/// Allows or forbids TF32 in matrix products of `float32` on a GPU from now on, in all threads: also in linear layers and
/// attention, forward and backward. Like `torch.backends.cuda.matmul.allow_tf32`, or
/// `torch.set_float32_matmul_precision("high")`, and also false by default. A captured step keeps the setting from its
/// capture.
///
/// ```
/// plimsoll_tensor::allow_tf32_in_matmul(true);
/// # plimsoll_tensor::allow_tf32_in_matmul(false);
/// ```
pub fn allow_tf32_in_matmul(allowed: bool) {
    MATMUL.store(allowed, Ordering::Relaxed);
}

pub(crate) fn is_allowed_in_convolutions() -> bool {
    CONVOLUTIONS.load(Ordering::Relaxed)
}

pub(crate) fn is_allowed_in_matmul() -> bool {
    MATMUL.load(Ordering::Relaxed)
}
