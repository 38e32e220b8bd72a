//! Inference mode's switch, one a thread: below storages, which note it. `autograd/grad_mode.rs` has what it means.

use std::cell::Cell;

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in inference mode.
pub(crate) fn is_enabled() -> bool {
    ON.get()
}

/// The switch is on until this is dropped, then as it was before.
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
