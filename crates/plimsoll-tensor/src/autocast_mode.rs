//! The thread-local switch of autocast, in a file that all its users may import. `autocast.rs`
//! describes its effect.

use std::cell::Cell;

use crate::dtype::DType;

thread_local! {
    static LOWER: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The lower precision in use on this thread, if autocast is on.
pub(crate) fn lower() -> Option<DType> {
    LOWER.get()
}

/// Restores the previous setting when dropped.
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
