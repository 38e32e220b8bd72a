//! Copies in pinned host memory, which a thread can save while training changes the originals: [`Stage`].

use std::collections::BTreeMap;

use plimsoll_tensor::label::{Span, intern};
use plimsoll_tensor::{Result, Tensor};

use crate::nn::check_listed;
use crate::optim::OptimizerState;
use crate::state_dict::StateDict;

/// The copies made so far, by the tensors' ids. A tensor with several names has one copy.
#[derive(Default)]
pub(super) struct Stage(BTreeMap<usize, Tensor>);

impl Stage {
    /// The copy of a tensor, which must live as long as this. A device computes no values in a rehearsal, so there is
    /// nothing to copy.
    pub(super) fn copy(&mut self, tensor: &Tensor) -> Result<Tensor> {
        if !tensor.device().has_values() {
            return Ok(tensor.clone());
        }
        if let Some(known) = self.0.get(&tensor.id()) {
            return Ok(known.clone());
        }
        let _owner = Span::layer(intern("checkpoint"));
        let copy = tensor.copy_to_pinned()?;
        self.0.insert(tensor.id(), copy.clone());
        Ok(copy)
    }
}

impl StateDict {
    /// A copy in pinned host memory, which later training steps do not change, so that another thread can save it. The host
    /// does not wait for a GPU, which copies on its current stream. Like `AsyncStager.stage` of
    /// `torch.distributed.checkpoint`.
    ///
    /// ```
    /// use plimsoll::serialize::StateDict;
    /// use plimsoll::{Device, Tensor};
    /// let weight = Tensor::ones(&[2], &Device::cpu())?;
    /// let state: StateDict = [("w".to_owned(), weight.clone())].into_iter().collect();
    /// let staged = state.stage()?;
    /// weight.zero_()?;
    /// assert_eq!(staged.get("w").unwrap().to_vec::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no pinned memory is available, or the model has a parameter that no module lists.
    pub fn stage(&self) -> Result<StateDict> {
        check_listed("save", self.iter().map(|(_, tensor)| tensor))?;
        let mut stage = Stage::default();
        self.iter().map(|(name, tensor)| Ok((name.to_owned(), stage.copy(tensor)?))).collect()
    }
}

impl OptimizerState {
    /// A copy in pinned host memory, like [`StateDict::stage`].
    ///
    /// # Errors
    /// If no pinned memory is available.
    pub fn stage(&self) -> Result<OptimizerState> {
        let (mut staged, mut stage) = (self.clone(), Stage::default());
        for tensor in staged.state.values_mut().flat_map(|state| state.tensors.values_mut()) {
            *tensor = stage.copy(tensor)?;
        }
        Ok(staged)
    }
}
