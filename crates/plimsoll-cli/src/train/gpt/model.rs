//! A GPT-2 for training: [`LanguageModel`].

use plimsoll::checkpoint::Checkpointer;
use plimsoll::models::{Gpt2, Gpt2Config};
use plimsoll::nn::{Module, Scope};
use plimsoll::{Result, Tensor};

use super::super::stop::Stop;
use super::super::task::{Network, Sampled};
use super::sample::Sampling;

/// A model that predicts the next token.
pub(super) struct LanguageModel {
    gpt: Gpt2,
    sampling: Sampling,
}

impl LanguageModel {
    pub(super) fn new(scope: &Scope, config: Gpt2Config, sampling: Sampling) -> Result<LanguageModel> {
        Ok(LanguageModel { gpt: Gpt2::new(scope, config)?, sampling })
    }
}

impl Network for LanguageModel {
    fn module(&self) -> &dyn Module {
        &self.gpt
    }

    fn module_mut(&mut self) -> &mut dyn Module {
        &mut self.gpt
    }

    fn checkpoint_within(&mut self, checkpointer: Checkpointer) {
        self.gpt.checkpoint_within(checkpointer);
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor> {
        let [x, y] = batch else { unreachable!("a batch has tokens and their successors") };
        self.gpt.loss(x, y)
    }

    fn score(&self, batch: &[Tensor]) -> Result<Option<f64>> {
        let loss = self.loss(batch)?;
        let samples = batch[0].shape()[0] as f64;
        let read = loss.device().has_values().then(|| loss.item::<f32>());
        Ok(read.transpose()?.map(|loss| f64::from(loss) * samples))
    }

    fn sample(&self, stop: &Stop) -> Result<Option<Sampled>> {
        self.gpt.eval();
        self.sampling.write(&self.gpt, stop)
    }
}
