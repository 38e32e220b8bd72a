//! Finding where a gradient became not a number: the derivative that gave it, and the line that recorded it.

use std::backtrace::Backtrace;
use std::cell::Cell;

use crate::error::{Error, Result};
use crate::label;
use crate::tensor::{Node, Tensor};

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` in anomaly mode: operations remember where they were called, and a backward pass fails at the first
/// derivative that gives a value that is not a number, naming that place. Slow: every gradient is read. As
/// `torch.autograd.detect_anomaly`.
pub fn detect_anomaly<T>(f: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ON.set(self.0);
        }
    }
    let _before = Before(ON.replace(true));
    f()
}

/// Where an operation is called, in anomaly mode.
pub(crate) fn place() -> Option<Box<str>> {
    ON.get().then(|| Backtrace::force_capture().to_string().into_boxed_str())
}

/// In anomaly mode, an error where a gradient that a derivative gave has a value that is not a number.
pub(crate) fn check(node: &Node, grads: &[Option<Tensor>]) -> Result<()> {
    if !ON.get() {
        return Ok(());
    }
    for (input, grad) in grads.iter().enumerate() {
        let Some(grad) = grad else { continue };
        if grad.device().has_values() && grad.has_nan()? {
            return Err(Error::Anomaly {
                op: node.name(),
                owner: label::text(node.layer),
                input,
                place: node.place().map_or_else(
                    || {
                        "it was recorded outside anomaly mode: wrap the forward pass in `detect_anomaly` too"
                            .to_owned()
                    },
                    ToOwned::to_owned,
                ),
            });
        }
    }
    Ok(())
}
