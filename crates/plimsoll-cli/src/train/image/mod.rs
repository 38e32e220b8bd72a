//! `plimsoll train image`: a classifier on a folder of images, with a subfolder for each class. `folder.rs` opens it, and
//! `model.rs` has the networks.

mod folder;
mod model;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll::data::{Augment, DataError, DataLoader};
use plimsoll::nn::Scope;
use plimsoll::optim;
use plimsoll::{Result, Tensor};
use serde_json::{Map, Value, json};

use self::folder::Images;
use self::model::Model;
use super::job::{Job, Length};
use super::optimizer::{Optimizer, cosine, learning_rate};
use super::settings::Settings;
use super::task::{Identity, Metric, Network, Task, Unit};
use super::techniques::Techniques;
use crate::exit::{Exit, Failure};

#[derive(Args)]
pub(crate) struct ImageArgs {
    /// Folder with a subfolder of JPEG or PNG images for each class, or with such subfolders in `train` and `val`;
    /// without these two, a random tenth of the images is for testing
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Folder of images for testing, with the same classes
    #[arg(long, value_name = "FOLDER", requires = "data")]
    val: Option<PathBuf>,
    /// Skip damaged images; every image is decoded once at the start to find them
    #[arg(long)]
    skip_damaged: bool,
    /// The network
    #[arg(long, value_enum, default_value_t = Model::Cnn)]
    model: Model,
    /// Height and width to which images are resized and cropped [default: 64 for cnn, 224 for a ResNet]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    image_size: Option<u32>,
    /// Random augmentation of training images
    #[arg(long, value_enum, default_value_t = Change::FlipCrop)]
    augment: Change,
    /// Passes over the training images [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// End after this many steps, even in the middle of an epoch [default: all epochs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Images per step, in total over all ranks
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
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

/// Random changes to training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Change {
    /// None
    None,
    /// Mirror half of them, left to right
    Flip,
    /// Shift them by up to an eighth of their size; the uncovered part is grey
    Crop,
    /// Both
    FlipCrop,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Change::None => "none",
            Change::Flip => "flip",
            Change::Crop => "crop",
            Change::FlipCrop => "flip-crop",
        }
    }

    fn of(self, side: usize) -> Augment {
        let padding = if matches!(self, Change::Crop | Change::FlipCrop) { side / 8 } else { 0 };
        Augment { flip: matches!(self, Change::Flip | Change::FlipCrop), padding }
    }
}

/// A description of the folder that `--data` needs, printed if it is missing.
const FOLDER: &str = "\
plimsoll train image needs --data FOLDER, with a subfolder of JPEG or PNG images for each class:
  photos/cat/1.jpg
  photos/cat/2.png
  photos/dog/1.jpg
or with such folders in photos/train and photos/val";

/// Images, and the settings for training on them.
struct Image {
    data: Images,
    model: Model,
    side: usize,
    augment: Change,
    length: Length,
    batch_size: usize,
    optimizer: Optimizer,
    lr: f64,
    seed: u64,
}

impl ImageArgs {
    /// Builds the job.
    pub(super) fn job(&self) -> std::result::Result<Job, Failure> {
        let folder = self.data.as_ref().ok_or_else(|| Failure::new(Exit::Usage, FOLDER))?;
        let side = self.image_size.map_or(self.model.default_side(), |side| side as usize);
        if side < self.model.smallest_side() {
            let message = format!(
                "--image-size {side} is too small for {}, which needs at least {}",
                self.model.name(),
                self.model.smallest_side()
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        let (seed, augment) = (self.settings.seed, self.augment);
        let data =
            Images::open(folder, self.val.as_deref(), side, self.skip_damaged, augment.of(side), seed)?;
        let length = Length { epochs: self.epochs, default_epochs: 10, steps: self.steps };
        let lr = self.lr.unwrap_or(self.optimizer.default_lr());
        let (model, batch_size, optimizer) = (self.model, self.batch_size as usize, self.optimizer);
        let task = Image { data, model, side, augment, length, batch_size, optimizer, lr, seed };
        Ok(self.settings.job(Box::new(task), length, batch_size, lr))
    }
}

impl Task for Image {
    fn name(&self) -> &'static str {
        "image"
    }

    fn announcement(&self) -> String {
        let (model, side) = (self.model.name(), self.side);
        format!("{}, {model} on {side} × {side}", self.data.announcement())
    }

    /// An incomplete last batch is dropped, because batch normalization fails on a single image.
    fn training(&self, batch_size: usize, seed: u64) -> std::result::Result<DataLoader, DataError> {
        let images = self.data.split.train.clone();
        let is_full = images.len() >= batch_size;
        let loader = DataLoader::new(images, batch_size)?.shuffle(seed);
        Ok(if is_full { loader.drop_last() } else { loader })
    }

    fn testing(&self, batch_size: usize) -> std::result::Result<DataLoader, DataError> {
        DataLoader::new(self.data.split.test.clone(), batch_size)
    }

    fn data_set_bytes(&self) -> u64 {
        self.data.split.train.resident_bytes()
    }

    fn network(&self, scope: &Scope) -> Result<Box<dyn Network>> {
        self.model.build(scope, self.side, self.data.classes.len())
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
            "classes": self.data.classes,
            "train_images": self.data.split.train.len(),
            "test_images": self.data.split.test.len(),
            "skipped_images": self.data.skipped,
            "other_files": self.data.others,
            "model": self.model.name(),
            "image_size": self.side,
            "augment": self.augment.name(),
            "epochs": self.length.epochs.unwrap_or(self.length.default_epochs),
            "batch_size": self.batch_size,
            "optimizer": self.optimizer.name(),
            "lr": self.lr,
            "seed": self.seed,
        });
        fields.as_object().cloned().unwrap_or_default()
    }

    fn identity(&self) -> std::result::Result<Identity, DataError> {
        let options = json!({
            "--model": self.model.name(),
            "--image-size": self.side,
            "--augment": self.augment.name(),
            "--optimizer": self.optimizer.name(),
        });
        let data = self.data.checksum();
        Ok(Identity { options: options.as_object().cloned().unwrap_or_default(), data })
    }

    fn has_blocks(&self) -> bool {
        self.model != Model::Cnn
    }

    fn has_exact_parts(&self) -> bool {
        self.model == Model::Cnn
    }

    fn companions(&self) -> Vec<(&'static str, String)> {
        vec![("classes.json", format!("{}\n", json!(self.data.classes)))]
    }

    fn smaller(&self) -> &'static str {
        "a smaller --batch-size or --image-size"
    }
}
