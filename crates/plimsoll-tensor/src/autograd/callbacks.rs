//! Callbacks that run at the end of a backward pass: [`queue_callback`].

use std::cell::RefCell;

use crate::error::{Error, Result};

type Callback = Box<dyn FnOnce() -> Result<()>>;

/// The backward passes of a thread.
#[derive(Default)]
struct Passes {
    /// The nesting depth of the running passes.
    depth: usize,
    callbacks: Vec<Callback>,
}

thread_local! {
    static PASSES: RefCell<Passes> = RefCell::default();
}

/// Calls `f` at the end of the backward pass that is running on this thread, after all its hooks. Callbacks run in the
/// order in which they were queued. A nested pass counts as part of the outer pass. If the pass fails, its callbacks
/// are dropped. Like PyTorch's `Variable._execution_engine.queue_callback`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, autograd};
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::sync::Arc;
/// let w = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
/// let is_done = Arc::new(AtomicBool::new(false));
/// let seen = Arc::clone(&is_done);
/// w.register_post_accumulate_grad_hook(move |_| {
///     let seen = Arc::clone(&seen);
///     autograd::queue_callback(move || Ok(seen.store(true, Ordering::SeqCst)))
/// })?;
/// w.sum()?.backward()?;
/// assert!(is_done.load(Ordering::SeqCst));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If no backward pass is running on this thread.
pub fn queue_callback(f: impl FnOnce() -> Result<()> + 'static) -> Result<()> {
    PASSES.with_borrow_mut(|passes| {
        if passes.depth == 0 {
            let message = "no backward pass is running on this thread: call this in a hook";
            return Err(Error::autograd("queue_callback", message));
        }
        passes.callbacks.push(Box::new(f));
        Ok(())
    })
}

/// Runs a backward pass, and the callbacks that it queued.
pub(super) fn with_callbacks<T>(pass: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Ends the pass when dropped, even if the pass panics.
    struct Open;
    impl Drop for Open {
        fn drop(&mut self) {
            let left = PASSES.with_borrow_mut(|passes| {
                passes.depth -= 1;
                if passes.depth == 0 { std::mem::take(&mut passes.callbacks) } else { Vec::new() }
            });
            drop(left); // while `PASSES` is not borrowed, because callbacks may own tensors
        }
    }
    PASSES.with_borrow_mut(|passes| passes.depth += 1);
    let open = Open;
    let result = pass()?;
    // Callbacks are part of the pass, so any callbacks that they queue also run.
    while PASSES.with_borrow(|passes| passes.depth == 1 && !passes.callbacks.is_empty()) {
        let queued = PASSES.with_borrow_mut(|passes| std::mem::take(&mut passes.callbacks));
        queued.into_iter().try_for_each(|callback| callback())?;
    }
    drop(open);
    Ok(result)
}
