//! `plimsoll train mnist`: a LeNet-class network on images of digits. `source.rs` provides the images.

mod source;

use std::path::PathBuf;

use clap::Args;
use plimsoll::data::{DataError, DataLoader};
use plimsoll::nn::Scope;
use plimsoll::optim;
use plimsoll::{Result, Tensor};
use serde_json::{Map, Value, json};

use self::source::{Source, Want};
use super::classifier::{Classifier, checksum_of};
use super::job::{Job, Length};
use super::optimizer::{Optimizer, cosine, learning_rate};
use super::settings::Settings;
use super::task::{Identity, Metric, Network, Task, Unit};
use super::techniques::Techniques;
use crate::exit::Failure;
use crate::lenet::lenet;

#[derive(Args)]
pub(crate) struct MnistArgs {
    /// Folder with MNIST's IDX files, plain or gzip [default: generated digits]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How many digits to generate; nine in ten are for training
    #[arg(long, value_name = "N", default_value_t = 10_000, conflicts_with = "data",
          value_parser = clap::value_parser!(u32).range(10..))]
    images: u32,
    /// Passes over the training images [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// End after this many steps, even in the middle of an epoch [default: all epochs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Images per step, in total over all ranks
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch_size: u32,
    /// The optimizer
    #[arg(long, value_enum, default_value_t = Optimizer::Sgd)]
    optimizer: Optimizer,
    /// Initial learning rate; it decays to 0 along a cosine [default: 0.03 for sgd, 0.001 for adam]
    #[arg(long, value_name = "RATE", value_parser = learning_rate)]
    lr: Option<f64>,
    #[command(flatten)]
    pub(super) settings: Settings,
}

/// Digits, and the settings for training on them.
struct Mnist {
    data: Source,
    length: Length,
    batch_size: usize,
    optimizer: Optimizer,
    lr: f64,
    seed: u64,
}

impl MnistArgs {
    /// Builds the job.
    pub(super) fn job(&self) -> std::result::Result<Job, Failure> {
        let want = if self.settings.device.has_values() { Want::Values } else { Want::Shapes };
        let seed = self.settings.seed;
        let data = match &self.data {
            Some(dir) => source::read(dir, want)?,
            None => source::drawn(seed, self.images as usize)?,
        };
        let length = Length { epochs: self.epochs, default_epochs: 5, steps: self.steps };
        let lr = self.lr.unwrap_or(self.optimizer.default_lr());
        let (batch_size, optimizer) = (self.batch_size as usize, self.optimizer);
        let task = Mnist { data, length, batch_size, optimizer, lr, seed };
        Ok(self.settings.job(Box::new(task), length, batch_size, lr))
    }
}

impl Task for Mnist {
    fn name(&self) -> &'static str {
        "mnist"
    }

    fn announcement(&self) -> String {
        let Source { name, split, .. } = &self.data;
        format!("{} images of {name}, testing on {}", split.train.len(), split.test.len())
    }

    fn training(&self, batch_size: usize, seed: u64) -> std::result::Result<DataLoader, DataError> {
        Ok(DataLoader::new(self.data.split.train.clone(), batch_size)?.shuffle(seed))
    }

    fn testing(&self, batch_size: usize) -> std::result::Result<DataLoader, DataError> {
        DataLoader::new(self.data.split.test.clone(), batch_size)
    }

    fn data_set_bytes(&self) -> u64 {
        self.data.split.train.resident_bytes()
    }

    fn network(&self, scope: &Scope) -> Result<Box<dyn Network>> {
        let [rows, columns] = self.data.size;
        Ok(Classifier::without_blocks(lenet(scope, rows, columns)?))
    }

    fn optimizer(
        &self,
        parameters: Vec<Tensor>,
        lr: f64,
        techniques: &Techniques,
    ) -> Result<Box<dyn optim::Optimizer>> {
        self.optimizer.build(parameters, lr, techniques)
    }

    fn schedule(&self, step: u64, horizon: u64) -> f64 {
        cosine(step, horizon)
    }

    fn unit(&self) -> Unit {
        Unit { plural: "images", per_sample: 1 }
    }

    fn metric(&self) -> Metric {
        Metric::Accuracy
    }

    fn describe(&self) -> Map<String, Value> {
        let fields = json!({
            "data": self.data.name,
            "train_images": self.data.split.train.len(),
            "test_images": self.data.split.test.len(),
            "epochs": self.length.epochs.unwrap_or(self.length.default_epochs),
            "batch_size": self.batch_size,
            "optimizer": self.optimizer.name(),
            "lr": self.lr,
            "seed": self.seed,
        });
        fields.as_object().cloned().unwrap_or_default()
    }

    fn identity(&self) -> std::result::Result<Identity, DataError> {
        let options = [("--optimizer".to_owned(), self.optimizer.name().into())].into_iter().collect();
        Ok(Identity { options, data: checksum_of(&self.data.split.train)? })
    }
}
