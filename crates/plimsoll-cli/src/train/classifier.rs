//! A network that classifies images: the common part of `mnist` and `image`.

use std::sync::Arc;

use plimsoll::checkpoint::Checkpointer;
use plimsoll::data::{DataError, DataLoader, Dataset, Subset};
use plimsoll::nn::Module;
use plimsoll::{Result, Tensor};

use super::task::{CHECKSUM_START, Network, checksum};

/// The number of images that the checksum of a data set covers.
const CHECKED: usize = 16;

/// A module that maps images to a logit for each class.
pub(super) struct Classifier<M> {
    module: M,
    checkpoint_within: fn(&mut M, Checkpointer),
}

impl<M: Module + 'static> Classifier<M> {
    /// A network without blocks.
    pub(super) fn without_blocks(module: M) -> Box<dyn Network> {
        Classifier::of_blocks(module, |_, _| {})
    }

    /// A network whose blocks this function checkpoints.
    pub(super) fn of_blocks(module: M, checkpoint_within: fn(&mut M, Checkpointer)) -> Box<dyn Network> {
        Box::new(Classifier { module, checkpoint_within })
    }
}

impl<M: Module> Network for Classifier<M> {
    fn module(&self) -> &dyn Module {
        &self.module
    }

    fn module_mut(&mut self) -> &mut dyn Module {
        &mut self.module
    }

    fn checkpoint_within(&mut self, checkpointer: Checkpointer) {
        (self.checkpoint_within)(&mut self.module, checkpointer);
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor> {
        let [images, labels] = batch else { unreachable!("a batch has images and labels") };
        self.module.forward(images)?.cross_entropy(labels)
    }

    fn score(&self, batch: &[Tensor]) -> Result<Option<f64>> {
        let [images, labels] = batch else { unreachable!("a batch has images and labels") };
        let answers = self.module.forward(images)?.argmax(1)?;
        if !answers.device().has_values() {
            return Ok(None);
        }
        let (answers, labels) = (answers.to_vec::<i64>()?, labels.to_vec::<i64>()?);
        let correct = answers.iter().zip(&labels).filter(|(answer, label)| answer == label).count();
        Ok(Some(correct as f64))
    }
}

/// A checksum of the number of images and of some of them.
pub(super) fn checksum_of(images: &Arc<dyn Dataset>) -> std::result::Result<u64, DataError> {
    let len = images.len();
    let picks: Vec<usize> = (0..len.min(CHECKED)).map(|i| i * len / len.min(CHECKED)).collect();
    let some = DataLoader::new(Arc::new(Subset::of(Arc::clone(images), picks)?), CHECKED)?;
    let mut sum = checksum(CHECKSUM_START, (len as u64).to_le_bytes());
    for batch in some.epoch(0) {
        let batch = batch?;
        let pixels = batch.array("images")?.as_slice::<f32>().unwrap_or_default();
        sum = checksum(sum, pixels.iter().flat_map(|pixel| pixel.to_le_bytes()));
        let labels = batch.array("labels")?.as_slice::<i64>().unwrap_or_default();
        sum = checksum(sum, labels.iter().flat_map(|label| label.to_le_bytes()));
    }
    Ok(sum)
}
