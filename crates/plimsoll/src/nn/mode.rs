//! Whether a layer trains or evaluates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A layer's `training` flag, which [`super::Module::train`] and [`super::Module::eval`] set. A layer that behaves differently in
/// the two modes (dropout, batch normalization) has one as a field and lists it among its members. Clones share the flag.
///
/// ```
/// use plimsoll::nn::Mode;
/// let mode = Mode::default();
/// assert!(mode.is_training());
/// mode.set_training(false);
/// assert!(!mode.is_training());
/// ```
#[derive(Clone, Debug)]
pub struct Mode(Arc<AtomicBool>);

impl Default for Mode {
    /// Training, as in a new PyTorch module.
    fn default() -> Mode {
        Mode(Arc::new(AtomicBool::new(true)))
    }
}

impl Mode {
    /// Whether the layer trains.
    pub fn is_training(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Makes the layer train, or evaluate.
    pub fn set_training(&self, training: bool) {
        self.0.store(training, Ordering::Relaxed);
    }
}
