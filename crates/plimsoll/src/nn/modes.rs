//! The modes of all layers of a module, which come back after an evaluation: [`Evaluating`].

use super::member::Member;
use super::mode::Mode;
use super::module::{Module, walk};

/// All layers evaluate while this exists. Then each has the mode that it had before.
pub(crate) struct Evaluating(Vec<(Mode, bool)>);

impl Evaluating {
    pub(crate) fn new(module: &dyn Module) -> Evaluating {
        let before = modes(module).into_iter().map(|mode| (mode.clone(), mode.is_training())).collect();
        module.eval();
        Evaluating(before)
    }
}

impl Drop for Evaluating {
    fn drop(&mut self) {
        self.0.iter().for_each(|(mode, training)| mode.set_training(*training));
    }
}

fn modes(module: &dyn Module) -> Vec<&Mode> {
    let mut modes = Vec::new();
    walk(module, &mut |_, member| {
        if let Member::Mode(mode) = member {
            modes.push(mode);
        }
    });
    modes
}
