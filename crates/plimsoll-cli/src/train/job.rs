//! The training loop. It is the same on every device: on the simulated one it merely cannot read values.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use plimsoll::data::{DataError, DataLoader, Dataset};
use plimsoll::memory::{self, Report};
use plimsoll::nn::{Module, Scope, Sequential};
use plimsoll::optim::{self, Adam, AdamOptions, Sgd, SgdOptions};
use plimsoll::{Device, Segment, Tensor, no_grad};

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
    /// The device's account. What is outside the allocator is the most seen while the job ran.
    pub(crate) memory: Report,
    /// Bytes of the parameters' blocks.
    pub(crate) parameters: u64,
    /// Host bytes of the data set, which lie outside the allocator.
    pub(crate) data_set_bytes: u64,
    /// Host bytes that batches in preparation take at most, also outside.
    pub(crate) batches_bytes: u64,
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
    /// All later epochs would repeat earlier ones: see Note [Repeating epochs].
    fn repeats(&mut self, epoch: u64);
    /// The job is done; its model and optimizer are still there.
    fn end(&mut self, device: &Device);
}

/// Nobody watches.
impl Watch for () {
    fn step(&mut self, _: u64, _: usize, _: Option<f32>, _: &Device) {}
    fn epoch(&mut self, _: u64, _: Option<f64>, _: Option<usize>, _: &Device) {}
    fn repeats(&mut self, _: u64) {}
    fn end(&mut self, _: &Device) {}
}

/// Two watch.
impl<A: Watch, B: Watch> Watch for (A, B) {
    fn step(&mut self, epoch: u64, images: usize, loss: Option<f32>, device: &Device) {
        self.0.step(epoch, images, loss, device);
        self.1.step(epoch, images, loss, device);
    }

    fn epoch(&mut self, epoch: u64, loss: Option<f64>, correct: Option<usize>, device: &Device) {
        self.0.epoch(epoch, loss, correct, device);
        self.1.epoch(epoch, loss, correct, device);
    }

    fn repeats(&mut self, epoch: u64) {
        self.0.repeats(epoch);
        self.1.repeats(epoch);
    }

    fn end(&mut self, device: &Device) {
        self.0.end(device);
        self.1.end(device);
    }
}

// Note [Repeating epochs]
// Every epoch makes the same requests. On the simulated device nothing else happens, so once an epoch ends
// with the segments and blocks that an earlier one ended with, all that follow go round the same states,
// and the job is over, however many epochs were asked for. (Blocks change places between epochs, so it need
// not be the epoch just before.)

impl Job {
    /// Trains and tests on a device.
    pub(crate) fn run(&self, device: &Device, watch: &mut impl Watch) -> Result<Outcome, Error> {
        let start = Instant::now();
        let mut run = Run::new(self, device)?;
        let (mut losses, mut correct) = (Vec::new(), Vec::new());
        let mut seen: Vec<Vec<Segment>> = Vec::new();
        for epoch in 0..self.epochs {
            let loss = run.train(epoch, watch)?;
            let right = run.test(epoch)?;
            losses.extend(loss);
            correct.extend(right);
            watch.epoch(epoch, loss, right, device);
            if !device.has_values() {
                let state = device.memory_snapshot();
                if seen.contains(&state) {
                    run.steps = run.steps_of_all_epochs();
                    watch.repeats(epoch);
                    break;
                }
                seen.push(state);
            }
        }
        watch.end(device);
        let (data_set_bytes, batches_bytes) = match device.has_values() {
            true => (self.data.split.train.resident_bytes(), run.training.buffer_bytes()),
            false => (0, 0),
        };
        let mut memory = Report::of(device);
        memory.outside_bytes = memory.outside_bytes.max(run.outside_bytes);
        Ok(Outcome {
            memory,
            parameters: run.parameters,
            data_set_bytes,
            batches_bytes,
            steps: run.steps,
            correct,
            losses,
            elapsed: start.elapsed(),
        })
    }

    fn loader(&self, device: &Device, part: &Arc<dyn Dataset>) -> Result<DataLoader, DataError> {
        let loader = DataLoader::new(part.clone(), self.batch_size)?;
        Ok(if device.has_values() { loader.workers(self.workers) } else { loader.shapes_only() })
    }
}

/// A job on its device.
struct Run<'a> {
    job: &'a Job,
    device: &'a Device,
    model: Sequential,
    optimizer: Box<dyn optim::Optimizer>,
    training: DataLoader,
    testing: DataLoader,
    parameters: u64,
    steps: u64,
    /// The most seen so far.
    outside_bytes: Option<u64>,
}

impl<'a> Run<'a> {
    fn new(job: &'a Job, device: &'a Device) -> Result<Run<'a>, Error> {
        let [rows, columns] = job.data.size;
        let model = lenet(&Scope::new(device, job.seed), rows, columns)?;
        Ok(Run {
            optimizer: job.optimizer.build(&model, job.lr),
            training: job.loader(device, &job.data.split.train)?.shuffle(job.seed),
            testing: job.loader(device, &job.data.split.test)?,
            parameters: device.memory_allocated(),
            steps: 0,
            outside_bytes: None,
            job,
            device,
            model,
        })
    }

    fn steps_of_all_epochs(&self) -> u64 {
        self.job.epochs.saturating_mul(self.training.len() as u64)
    }

    /// One pass over the training images; their mean loss, where there is one to read.
    fn train(&mut self, epoch: u64, watch: &mut impl Watch) -> Result<Option<f64>, Error> {
        let training = self.training.clone();
        let mut sum = 0.0;
        for batch in training.epoch(epoch) {
            let batch = batch?;
            self.device.mark_step(self.steps);
            let loss = self.step(&batch.to_device(self.device)?)?;
            sum += f64::from(loss.unwrap_or(0.0)) * batch.samples as f64;
            watch.step(epoch, batch.samples, loss, self.device);
            training.recycle(batch);
        }
        Ok(self.device.has_values().then(|| sum / self.job.data.split.train.len() as f64))
    }

    /// One step on one batch; the loss where there is one to read.
    fn step(&mut self, batch: &[Tensor]) -> plimsoll::Result<Option<f32>> {
        let [images, labels] = batch else { unreachable!("a batch has images and labels") };
        self.optimizer.set_lr(self.job.lr * self.cosine());
        let loss = self.model.forward(images)?.cross_entropy(labels)?;
        self.optimizer.zero_grad();
        loss.backward()?;
        self.optimizer.step()?;
        // Often enough to see batches in preparation, too seldom to cost anything.
        if self.steps.is_multiple_of(64) {
            self.look_outside();
        }
        self.steps += 1;
        self.device.has_values().then(|| loss.item()).transpose()
    }

    /// The share of the learning rate at this step: from 1 to 0 along half a cosine.
    fn cosine(&self) -> f64 {
        let done = self.steps as f64 / self.steps_of_all_epochs() as f64;
        0.5 * (1.0 + (std::f64::consts::PI * done).cos())
    }

    /// How many test images the model gets right, where the device can say.
    fn test(&mut self, epoch: u64) -> Result<Option<usize>, Error> {
        let mut correct = 0;
        for batch in self.testing.epoch(epoch) {
            let batch = batch?;
            let tensors = batch.to_device(self.device)?;
            let answers = no_grad(|| self.model.forward(&tensors[0])?.argmax(1))?;
            if self.device.has_values() {
                let (answers, labels) = (answers.to_vec::<i64>()?, tensors[1].to_vec::<i64>()?);
                correct += answers.iter().zip(&labels).filter(|(answer, label)| answer == label).count();
            }
            self.testing.recycle(batch);
        }
        self.look_outside();
        Ok(self.device.has_values().then_some(correct))
    }

    /// Notes what the process holds beside the allocator, should it be more than before.
    fn look_outside(&mut self) {
        self.outside_bytes = self.outside_bytes.max(memory::outside_bytes(self.device));
    }
}
