//! The modes of all layers of a module, which come back after an evaluation: [`Evaluating`].

use super::member::Member;
use super::mode::Mode;
use super::module::{Module, walk};

/// All layers evaluate while this exists. Then each has the mode that it had before.
pub(crate) struct Evaluating(Vec<(Mode, bool)>);

impl Evaluating {
    pub(crate) fn new(module: &dyn Module) -> Evaluating {
        let mut before = Vec::new();
        walk(module, &mut |_, member| {
            if let Member::Mode(mode) = member {
                before.push((mode.clone(), mode.is_training()));
                mode.set_training(false);
            }
        });
        Evaluating(before)
    }
}

impl Drop for Evaluating {
    fn drop(&mut self) {
        self.0.iter().for_each(|(mode, training)| mode.set_training(*training));
    }
}
