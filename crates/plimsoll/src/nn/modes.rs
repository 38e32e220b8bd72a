//! The modes of all layers of a module, which come back afterwards: [`Modes`].

use super::member::Member;
use super::mode::Mode;
use super::module::{Module, walk};

/// All layers train, or evaluate, while this exists. Then each has the mode that it had before.
pub(crate) struct Modes(Vec<(Mode, bool)>);

impl Modes {
    pub(crate) fn set(module: &dyn Module, training: bool) -> Modes {
        let mut before = Vec::new();
        walk(module, &mut |_, member| {
            if let Member::Mode(mode) = member {
                before.push((mode.clone(), mode.is_training()));
                mode.set_training(training);
            }
        });
        Modes(before)
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        self.0.iter().for_each(|(mode, training)| mode.set_training(*training));
    }
}
