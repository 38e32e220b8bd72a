//! What a function was run with, so that it can run again with the same: inputs, random numbers, autocast.

use crate::autocast_mode;
use crate::autograd::{Recomputing, Saved};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::random::{self, Generator, RngState};
use crate::tensor::Tensor;

/// The state of a thread and the inputs before a function ran.
pub(super) struct FirstRun {
    /// Each input, and whether it wanted a gradient. They are saved as any operation's are, so that a checkpoint around this
    /// one drops them too.
    inputs: Vec<(Saved, bool)>,
    random: Vec<(Device, RngState)>,
    /// Where the generator stood that was set, if one was.
    generator: Option<RngState>,
    autocast: Option<DType>,
}

impl FirstRun {
    /// Of a function that is about to run on these inputs.
    ///
    /// # Errors
    /// An input that cannot be saved.
    pub(super) fn new(inputs: &[&Tensor]) -> Result<FirstRun> {
        let mut random: Vec<(Device, RngState)> = Vec::new();
        for input in inputs {
            let device = input.device();
            if random.iter().all(|(known, _)| known != device) {
                random.push((device.clone(), device.rng_state()));
            }
        }
        let saved = |input: &&Tensor| Ok((Saved::new(input.data(), "checkpoint")?, input.requires_grad()));
        let inputs = inputs.iter().map(saved).collect::<Result<_>>()?;
        let generator = random::current().map(|generator| generator.state());
        Ok(FirstRun { inputs, random, generator, autocast: autocast_mode::lower() })
    }

    /// The inputs' values, outside of any graph.
    ///
    /// # Errors
    /// One was changed in place since.
    pub(super) fn inputs(&self) -> Result<Vec<Tensor>> {
        self.inputs.iter().map(|(saved, _)| Ok(Tensor::from_data(saved.get("checkpoint")?))).collect()
    }

    /// The inputs as leaves, which want gradients where they did.
    ///
    /// # Errors
    /// One was changed in place since.
    pub(super) fn leaves(&self) -> Result<Vec<Tensor>> {
        let inputs = self.inputs()?.into_iter().zip(&self.inputs);
        inputs.map(|(input, (_, wanted))| input.requires_grad_(*wanted)).collect()
    }

    /// Runs `f` as the function ran: with the same random numbers and under the same autocast. What the program draws
    /// afterwards is not changed by it.
    pub(super) fn run_again<T>(&self, f: impl FnOnce() -> T) -> T {
        let random: Vec<RngState> = self.random.iter().map(|(device, _)| device.rng_state()).collect();
        self.random.iter().for_each(|(device, state)| device.set_rng_state(*state));
        let result = {
            let _as_before = autocast_mode::ModeGuard::to(self.autocast);
            let _second = Recomputing::new();
            match &self.generator {
                None => f(),
                // Another one that goes on from where it stood: the program's own is not touched.
                Some(state) => {
                    let generator = Generator::new(0);
                    generator.set_state(*state);
                    random::with_generator(&generator, f)
                }
            }
        };
        for ((device, _), state) in self.random.iter().zip(random) {
            device.set_rng_state(state);
        }
        result
    }
}
