//! The training loop. It is the same on every device: on the simulated one it merely cannot read values.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use plimsoll::data::{DataError, DataLoader};
use plimsoll::memory::Report;
use plimsoll::nn::{Module, Scope, Sequential};
use plimsoll::optim::{self, Adam, AdamOptions, Sgd, SgdOptions};
use plimsoll::{Device, no_grad};

use super::source::Source;
use crate::lenet::lenet;

/// A training job, apart from the device it runs on.
pub(crate) struct Job {
    /// Images to train and test on.
    pub(crate) data: Source,
    /// Passes over the training images.
    pub(crate) epochs: u64,
    /// Images per step.
    pub(crate) batch_size: usize,
    /// How weights change.
    pub(crate) optimizer: Optimizer,
    /// Learning rate of the first step; it falls to 0 along half a cosine.
    pub(crate) lr: f64,
    /// Of start values and order.
    pub(crate) seed: u64,
    /// Threads that prepare batches.
    pub(crate) workers: usize,
}

/// How to change the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Optimizer {
    /// Stochastic gradient descent with momentum 0.9
    Sgd,
    /// Adam
    Adam,
}

impl Optimizer {
    /// A learning rate that suits the job.
    pub(crate) fn default_lr(self) -> f64 {
        match self {
            Optimizer::Sgd => 0.03,
            Optimizer::Adam => 0.001,
        }
    }

    fn build(self, model: &Sequential, lr: f64) -> Box<dyn optim::Optimizer> {
        let parameters = model.parameters();
        match self {
            Optimizer::Sgd => {
                Box::new(Sgd::new(parameters, SgdOptions { lr, momentum: 0.9, ..SgdOptions::default() }))
            }
            Optimizer::Adam => Box::new(Adam::new(parameters, AdamOptions { lr, ..AdamOptions::default() })),
        }
    }
}

/// Why a job stopped.
#[derive(Debug)]
pub(crate) enum Error {
    /// The data could not be read.
    Data(DataError),
    /// A tensor operation failed, for want of memory most likely.
    Tensor(plimsoll::Error),
}

impl From<DataError> for Error {
    fn from(error: DataError) -> Error {
        Error::Data(error)
    }
}

impl From<plimsoll::Error> for Error {
    fn from(error: plimsoll::Error) -> Error {
        Error::Tensor(error)
    }
}

/// What a finished job has to say.
pub(crate) struct Outcome {
    /// The device's account.
    pub(crate) memory: Report,
    /// Bytes of the parameters' blocks.
    pub(crate) parameters: u64,
    /// How often the loop stepped.
    pub(crate) steps: u64,
    /// Correct answers on the test images after each epoch; empty on a device without values.
    pub(crate) correct: Vec<usize>,
    /// Mean loss of each epoch; empty on a device without values.
    pub(crate) losses: Vec<f64>,
    /// Time in training and testing.
    pub(crate) elapsed: Duration,
}

/// What a watcher sees of a running job.
pub(crate) trait Watch {
    /// A step is done. `loss` is there where the device has values.
    fn step(&mut self, epoch: u64, images: usize, loss: Option<f32>, device: &Device);
    /// An epoch is done: its mean loss and the correct answers on the test images.
    fn epoch(&mut self, epoch: u64, loss: Option<f64>, correct: Option<usize>, device: &Device);
}

/// Nobody watches.
impl Watch for () {
    fn step(&mut self, _: u64, _: usize, _: Option<f32>, _: &Device) {}
    fn epoch(&mut self, _: u64, _: Option<f64>, _: Option<usize>, _: &Device) {}
}

impl Job {
    /// Trains and tests on a device.
    pub(crate) fn run(&self, device: &Device, watch: &mut impl Watch) -> Result<Outcome, Error> {
        let start = Instant::now();
        let [rows, columns] = self.data.size;
        let model = lenet(&Scope::new(device, self.seed), rows, columns)?;
        let parameters = device.memory_allocated();
        let mut optimizer = self.optimizer.build(&model, self.lr);
        let train = self.loader(device, &self.data.split.train)?.shuffle(self.seed);
        let test = self.loader(device, &self.data.split.test)?;
        let (mut steps, mut losses, mut correct) = (0, Vec::new(), Vec::new());
        for epoch in 0..self.epochs {
            let mut sum = 0.0;
            for batch in train.epoch(epoch) {
                let batch = batch?;
                optimizer.set_lr(self.lr * cosine(steps, self.epochs * train.len() as u64));
                let loss = step(&model, optimizer.as_mut(), &batch.to_device(device)?, device)?;
                sum += f64::from(loss.unwrap_or(0.0)) * batch.samples as f64;
                steps += 1;
                watch.step(epoch, batch.samples, loss, device);
                train.recycle(batch);
            }
            let loss = device.has_values().then(|| sum / self.data.split.train.len() as f64);
            let right = test_accuracy(&model, &test, epoch, device)?;
            losses.extend(loss);
            correct.extend(right);
            watch.epoch(epoch, loss, right, device);
        }
        let memory = Report::of(device);
        Ok(Outcome { memory, parameters, steps, correct, losses, elapsed: start.elapsed() })
    }

    fn loader(
        &self,
        device: &Device,
        part: &std::sync::Arc<dyn plimsoll::data::Dataset>,
    ) -> Result<DataLoader, DataError> {
        let loader = DataLoader::new(part.clone(), self.batch_size)?;
        Ok(if device.has_values() { loader.workers(self.workers) } else { loader.shapes_only() })
    }
}

/// The share of the learning rate at a step: from 1 to 0 along half a cosine.
fn cosine(step: u64, of: u64) -> f64 {
    0.5 * (1.0 + (std::f64::consts::PI * step as f64 / of as f64).cos())
}

/// One step on one batch; the loss where there is one to read.
fn step(
    model: &Sequential,
    optimizer: &mut dyn optim::Optimizer,
    batch: &[plimsoll::Tensor],
    device: &Device,
) -> plimsoll::Result<Option<f32>> {
    let [images, labels] = batch else { unreachable!("a batch has images and labels") };
    let loss = model.forward(images)?.cross_entropy(labels)?;
    optimizer.zero_grad();
    loss.backward()?;
    optimizer.step()?;
    device.has_values().then(|| loss.item()).transpose()
}

/// How many test images the model gets right, where the device can say.
fn test_accuracy(
    model: &Sequential,
    test: &DataLoader,
    epoch: u64,
    device: &Device,
) -> Result<Option<usize>, Error> {
    let mut correct = 0;
    for batch in test.epoch(epoch) {
        let batch = batch?;
        let tensors = batch.to_device(device)?;
        let answers = no_grad(|| model.forward(&tensors[0])?.argmax(1))?;
        if device.has_values() {
            let (answers, labels) = (answers.to_vec::<i64>()?, tensors[1].to_vec::<i64>()?);
            correct += answers.iter().zip(&labels).filter(|(answer, label)| answer == label).count();
        }
        test.recycle(batch);
    }
    Ok(device.has_values().then_some(correct))
}
