//! Grad mode: a switch per thread that says whether operations are recorded, as in PyTorch.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::inference;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
    static RECOMPUTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread records operations for a backward pass.
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Runs `f` without recording: its results require no gradient and keep no graph alive. Like `torch.no_grad`.
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

/// Runs `f` with recording on, even inside `no_grad`, but not inside [`inference_mode`]. Like `torch.enable_grad`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, enable_grad, no_grad};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let y = no_grad(|| enable_grad(|| &w + &w))?;
/// assert!(y.requires_grad());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _on = ModeGuard::to(true);
    f()
}

/// Sets the grad mode until the guard is dropped, then restores it.
#[derive(Debug)]
pub(crate) struct ModeGuard {
    before: bool,
    // The switch belongs to this thread, so its guard must stay here.
    _not_send: PhantomData<*const ()>,
}

impl ModeGuard {
    pub(crate) fn to(enabled: bool) -> ModeGuard {
        let enabled = enabled && !inference::is_enabled();
        ModeGuard { before: ENABLED.replace(enabled), _not_send: PhantomData }
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

/// While this guard lives, this thread recomputes values that a checkpoint dropped.
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

/// Whether this thread is recomputing values that a checkpoint dropped.
pub(crate) fn is_recomputing() -> bool {
    RECOMPUTING.get()
}

/// Turns recording off on this thread until the guard is dropped.
#[must_use = "recording is on again as soon as the guard is dropped"]
#[derive(Debug)]
pub struct NoGrad {
    _off: ModeGuard,
}

impl NoGrad {
    /// Turns recording off.
    #[allow(clippy::new_without_default, reason = "a guard is made for its effect, not for its value")]
    pub fn new() -> NoGrad {
        NoGrad { _off: ModeGuard::to(false) }
    }
}

/// Runs `f` without recording. Its results can never be recorded later: an operation that would save one of them for a backward
/// pass fails, and so does changing one in place outside the mode. A view of a tensor that was made outside the mode is a
/// normal tensor. Like `torch.inference_mode`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, inference_mode};
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let y = inference_mode(|| &w + &w)?;
/// assert!(y.is_inference() && !y.requires_grad());
/// assert!(y.mul(&w).is_err()); // its derivative would read `y`
/// assert!(y.copy()?.mul(&w)?.requires_grad());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn inference_mode<T>(f: impl FnOnce() -> T) -> T {
    let _on = InferenceMode::new();
    f()
}

/// Whether this thread is in inference mode. Like `torch.is_inference_mode_enabled`.
pub fn is_inference_mode_enabled() -> bool {
    inference::is_enabled()
}

/// Keeps this thread in inference mode until the guard is dropped.
#[must_use = "inference mode ends as soon as the guard is dropped"]
#[derive(Debug)]
pub struct InferenceMode {
    _on: inference::ModeGuard,
    _off: ModeGuard,
}

impl InferenceMode {
    /// Enters inference mode.
    #[allow(clippy::new_without_default, reason = "a guard is made for its effect, not for its value")]
    pub fn new() -> InferenceMode {
        InferenceMode { _on: inference::ModeGuard::on(), _off: ModeGuard::to(false) }
    }
}
