//! Turns panics in user code that an operation calls (a hook, a function, a kernel) into errors of that
//! operation.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// Runs `f`. A panic becomes an error of `op` that refers to `f` as `what`.
pub(crate) fn caught<T>(op: &'static str, what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(panicked(op, what, panic.as_ref())))
}

/// The error for a panic that was caught.
pub(crate) fn panicked(op: &'static str, what: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::argument(op, format!("{what} panicked: {}", text.unwrap_or("without a message")))
}
