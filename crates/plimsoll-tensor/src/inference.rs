//! The thread-local switch of inference mode, in a file that storages, which record it, may import.
//! `autograd/grad_mode.rs` describes its effect.

use std::cell::Cell;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in inference mode.
pub(crate) fn is_enabled() -> bool {
    ON.get()
}

/// Enables inference mode until dropped, then restores the previous setting.
#[derive(Debug)]
pub(crate) struct ModeGuard {
    before: bool,
}

impl ModeGuard {
    pub(crate) fn on() -> ModeGuard {
        ModeGuard { before: ON.replace(true) }
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        ON.set(self.before);
    }
}
