//! The conditions of a function's first run (inputs, random numbers, autocast), so that it can run again under the same
//! ones.

use crate::autocast;
use crate::autocast_mode;
use crate::autograd::{Recomputing, Saved};
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::random::{self, Generator, RngState};
use crate::tensor::Tensor;

/// The inputs of a function and the thread's state before it ran.
pub(super) struct FirstRun {
    /// Each input, and whether it requires a gradient. They are saved like the inputs of any operation, so an enclosing
    /// checkpoint drops them too.
    inputs: Vec<(Saved, bool)>,
    random: Vec<(Device, RngState)>,
    /// The state of the generator that was set, if any.
    generator: Option<RngState>,
    autocast: Option<DType>,
}

impl FirstRun {
    /// Records the conditions of a function that is about to run on these inputs.
    ///
    /// # Errors
    /// If an input cannot be saved.
    pub(super) fn new(inputs: &[&Tensor]) -> Result<FirstRun> {
        let saved = |input: &&Tensor| Ok((Saved::new(input.data(), "checkpoint")?, input.requires_grad()));
        let saved = inputs.iter().map(saved).collect::<Result<_>>()?;
        Ok(FirstRun { inputs: saved, ..FirstRun::conditions(inputs) })
    }

    /// Records only the state of the thread and of the inputs' devices.
    pub(super) fn conditions(inputs: &[&Tensor]) -> FirstRun {
        let mut random: Vec<(Device, RngState)> = Vec::new();
        for input in inputs {
            let device = input.device();
            if random.iter().all(|(known, _)| known != device) {
                random.push((device.clone(), device.rng_state()));
            }
        }
        let generator = random::current().map(|generator| generator.state());
        FirstRun { inputs: Vec::new(), random, generator, autocast: autocast_mode::lower() }
    }

    /// Calls `visit` with the inputs that are kept in memory.
    pub(super) fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        self.inputs.iter().for_each(|(saved, _)| saved.kept(visit));
    }

    /// The inputs' values, detached from any graph.
    ///
    /// # Errors
    /// If an input was changed in place after it was saved.
    pub(super) fn inputs(&self) -> Result<Vec<Tensor>> {
        self.inputs.iter().map(|(saved, _)| Ok(Tensor::from_data(saved.get("checkpoint")?))).collect()
    }

    /// The inputs as leaves, which require gradients where the originals did.
    ///
    /// # Errors
    /// If an input was changed in place after it was saved.
    pub(super) fn leaves(&self) -> Result<Vec<Tensor>> {
        let inputs = self.inputs()?.into_iter().zip(&self.inputs);
        inputs.map(|(input, (_, wanted))| input.requires_grad_(*wanted)).collect()
    }

    /// Runs `f` as in the first run: with the same random numbers and under the same autocast. It does not affect the random
    /// numbers that the program draws later.
    pub(super) fn run_again<T>(&self, f: impl FnOnce() -> T) -> T {
        /// Restores the devices' generators, even if `f` panics.
        struct Restore<'a>(Vec<(&'a Device, RngState)>);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.iter().for_each(|(device, state)| device.set_rng_state(*state));
            }
        }
        let _before = Restore(self.random.iter().map(|(device, _)| (device, device.rng_state())).collect());
        self.random.iter().for_each(|(device, state)| device.set_rng_state(*state));
        autocast::apart(self.autocast, || {
            let _second = Recomputing::new();
            match &self.generator {
                None => f(),
                // A separate generator in the saved state, so that the program's own is not affected.
                Some(state) => {
                    let generator = Generator::new(0);
                    generator.set_state(*state);
                    random::with_generator(&generator, f)
                }
            }
        })
    }
}
