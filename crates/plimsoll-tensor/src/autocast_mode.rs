//! Autocast's switch, one a thread: below everything that asks for it. `autocast.rs` has what it means.

use std::cell::Cell;

use crate::dtype::DType;

thread_local! {
    static LOWER: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The lower precision in force on this thread, if any.
pub(crate) fn lower() -> Option<DType> {
    LOWER.get()
}

/// The switch as it was set until this is dropped, then as it was before.
#[derive(Debug)]
pub(crate) struct ModeGuard {
    before: Option<DType>,
}

impl ModeGuard {
    pub(crate) fn to(lower: Option<DType>) -> ModeGuard {
        ModeGuard { before: LOWER.replace(lower) }
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        LOWER.set(self.before);
    }
}
