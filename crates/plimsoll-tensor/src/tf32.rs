//! Whether a GPU may multiply `float32` in TF32: 10 bits of each factor, several times as fast.
//!
//! As PyTorch's defaults: convolutions may, matrix products may not. Both settings are the process's. A convolution keeps
//! what held when it was called for its derivatives; a matrix product asks when it runs.

use std::sync::atomic::{AtomicBool, Ordering};

static CONVOLUTIONS: AtomicBool = AtomicBool::new(true);
static MATMUL: AtomicBool = AtomicBool::new(false);

/// Allows or forbids TF32 in convolutions of `float32` on a GPU from now on, in all threads. As
/// `torch.backends.cudnn.allow_tf32`, and true at first as there.
pub fn allow_tf32_in_convolutions(allowed: bool) {
    CONVOLUTIONS.store(allowed, Ordering::Relaxed);
}

/// Allows or forbids TF32 in matrix products of `float32` on a GPU from now on, in all threads: linear layers and attention
/// too, forward and backward. As `torch.backends.cuda.matmul.allow_tf32`, or `torch.set_float32_matmul_precision("high")`,
/// and false at first as there. A captured step keeps what held at its capture.
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
