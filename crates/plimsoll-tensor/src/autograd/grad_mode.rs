//! Whether operations are recorded: a switch per thread, as PyTorch's grad mode.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether this thread records operations for a backward pass.
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Runs `f` without recording: its results want no gradient and keep nothing alive. As `torch.no_grad`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, no_grad};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let y = no_grad(|| &w + &w)?;
/// assert!(!y.requires_grad());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _off = NoGrad::new();
    f()
}

/// Recording is off on this thread until the guard is dropped.
#[must_use = "recording is on again as soon as the guard is dropped"]
#[derive(Debug)]
pub struct NoGrad {
    before: bool,
    // The switch belongs to this thread, so its guard must stay here.
    _not_send: PhantomData<*const ()>,
}

impl NoGrad {
    /// Switches recording off.
    #[allow(clippy::new_without_default, reason = "a guard is made for its effect, not for its value")]
    pub fn new() -> NoGrad {
        NoGrad { before: ENABLED.replace(false), _not_send: PhantomData }
    }
}

impl Drop for NoGrad {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}
