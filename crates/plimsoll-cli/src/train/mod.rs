//! `plimsoll train`: runs a job on a device, then reports whether it fits and which owners use the memory.
//!
//! `mnist/`, `gpt/` and `image/` are the trainings, each a `Task` (`task.rs`). `run.rs` is the training loop, the same for
//! all of them and on every device; `saves.rs` writes its checkpoints, and `stop.rs` handles signals. `smallest.rs` finds
//! the smallest limit by running the job on the simulated device. `progress.rs` shows the progress, `snapshot.rs` saves the
//! memory history, and `report.rs` and `json.rs` print the result. `command.rs` puts them together.

mod classifier;
mod command;
mod device;
mod gpt;
mod image;
mod job;
mod json;
mod mnist;
mod optimizer;
mod progress;
mod report;
mod run;
mod saves;
mod settings;
mod smallest;
mod snapshot;
mod stop;
mod task;
mod watch;

use clap::Subcommand;

pub(crate) use self::json::SCHEMA;
use self::settings::Settings;
use crate::exit::{Answer, Failure};

/// What can be trained.
#[derive(Subcommand)]
pub(crate) enum What {
    /// A LeNet-class convolutional network on images of digits
    Mnist(mnist::MnistArgs),
    /// A GPT on the characters of a text
    Gpt(gpt::GptArgs),
    /// A classifier on a folder of images
    Image(image::ImageArgs),
}

impl What {
    fn settings(&self) -> &Settings {
        match self {
            What::Mnist(args) => &args.settings,
            What::Gpt(args) => &args.settings,
            What::Image(args) => &args.settings,
        }
    }
}

/// Runs the job. Returns the text for stdout.
pub(crate) fn run(what: &What) -> Result<Answer, Failure> {
    let settings = what.settings();
    let device = settings.device.open()?;
    let job = match what {
        What::Mnist(args) => args.job()?,
        What::Gpt(args) => args.job()?,
        What::Image(args) => args.job()?,
    };
    command::run(&job, settings, &device)
}
