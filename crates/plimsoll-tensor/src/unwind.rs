//! Panics in users' code that an operation calls (a hook, a function, a kernel) as errors of that operation.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// What `f` gives; an error of `op` where it panics, which calls it `what`.
pub(crate) fn caught<T>(op: &'static str, what: &str, f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(panicked(op, what, panic.as_ref())))
}

/// The error for a panic that was caught.
pub(crate) fn panicked(op: &'static str, what: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Error::argument(op, format!("{what} panicked: {}", text.unwrap_or("without a message")))
}
