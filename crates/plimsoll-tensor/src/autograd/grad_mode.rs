//! Whether operations are recorded: a switch per thread, as PyTorch's grad mode.

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
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

/// Runs `f` with recording, wherever it is called. As `torch.enable_grad`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, enable_grad, no_grad};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let y = no_grad(|| enable_grad(|| &w + &w))?;
/// assert!(y.requires_grad());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _on = Switched::to(true);
    f()
}

/// Recording as it was set until the guard is dropped, then as it was before.
#[derive(Debug)]
pub(crate) struct Switched {
    before: bool,
    // The switch belongs to this thread, so its guard must stay here.
    _not_send: PhantomData<*const ()>,
}

impl Switched {
    pub(crate) fn to(enabled: bool) -> Switched {
        Switched { before: ENABLED.replace(enabled), _not_send: PhantomData }
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// This thread computes what a checkpoint dropped, until this is dropped.
#[derive(Debug)]
pub(crate) struct Recomputing {
    before: bool,
}

impl Recomputing {
    pub(crate) fn new() -> Recomputing {
        Recomputing { before: RECOMPUTING.replace(true) }
    }
}

impl Drop for Recomputing {
    fn drop(&mut self) {
        RECOMPUTING.set(self.before);
    }
}

/// Whether this thread computes what a checkpoint dropped.
pub(crate) fn is_recomputing() -> bool {
    RECOMPUTING.get()
}

/// Recording is off on this thread until the guard is dropped.
#[must_use = "recording is on again as soon as the guard is dropped"]
#[derive(Debug)]
pub struct NoGrad {
    _off: Switched,
}

impl NoGrad {
    /// Switches recording off.
    #[allow(clippy::new_without_default, reason = "a guard is made for its effect, not for its value")]
    pub fn new() -> NoGrad {
        NoGrad { _off: Switched::to(false) }
    }
}
