//! `plimsoll train`: runs a job on a device, then reports whether it fits and which owners use the memory.
//!
//! `mnist/`, `gpt/` and `image/` are what can be trained, each a `Task` (`task.rs`). `run.rs` is the training loop, the
//! same for all of them and on every device; `saves/` writes its checkpoints, and `stop.rs` handles signals.
//! `smallest.rs` finds the smallest limit by running the job on the simulated device, and `fit.rs` the fastest
//! techniques within a limit; `techniques.rs` is how they were found, and `savings.rs` says what each saves. `parallel.rs` finds
//! out which rank this process is, `spawn.rs` starts ranks, `model.rs` and `lanes.rs` have the network and the data of
//! a rank, and `plan/` finds the fastest way to share the work. `progress.rs` shows the progress, `snapshot.rs` saves
//! the memory history, `timeline.rs` writes the estimated timeline of a step, and `report.rs` and `json.rs` print the
//! result. `command.rs` puts them together.

mod classifier;
mod command;
mod device;
mod fit;
mod gpt;
mod image;
mod job;
mod json;
mod lanes;
mod mnist;
mod model;
mod optimizer;
mod parallel;
mod plan;
mod progress;
mod report;
mod run;
mod saves;
mod savings;
mod settings;
mod simulated;
mod smallest;
mod snapshot;
mod spawn;
mod stop;
mod task;
mod techniques;
mod timeline;
mod watch;

use std::ffi::OsString;

use clap::{Command, FromArgMatches, Subcommand};

use self::job::Job;
pub(crate) use self::json::SCHEMA;
use self::parallel::Start;
use self::plan::Wish;
use self::settings::Settings;
use crate::exit::{Answer, Exit, Failure};
use crate::output;

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

    fn batch_size(&self) -> usize {
        let batch_size = match self {
            What::Mnist(args) => args.batch_size,
            What::Gpt(args) => args.batch_size,
            What::Image(args) => args.batch_size,
        };
        batch_size as usize
    }

    /// The options that the number of ranks that share layers must divide; `None` if the network has no such layers.
    fn shared(&self) -> Option<[(&'static str, usize); 2]> {
        match self {
            What::Gpt(args) => Some(args.shared()),
            What::Mnist(_) | What::Image(_) => None,
        }
    }

    fn job(&self) -> Result<Job, Failure> {
        match self {
            What::Mnist(args) => args.job(),
            What::Gpt(args) => args.job(),
            What::Image(args) => args.job(),
        }
    }

    /// The job, and the same one with less memory if the task has an option for that.
    fn variants(&self) -> Result<Vec<(Option<&'static str>, Job)>, Failure> {
        match self {
            What::Gpt(args) => args.variants(),
            _ => Ok(vec![(None, self.job()?)]),
        }
    }
}

/// Plans the command with these words after `plimsoll train`, which contain `--plan`.
///
/// # Errors
/// Words that are not valid; also the errors of [`run`].
pub(crate) fn planned(words: Vec<OsString>) -> Result<Answer, Failure> {
    let command = What::augment_subcommands(Command::new("plimsoll train").no_binary_name(true));
    let given = command.try_get_matches_from(words).and_then(|given| What::from_arg_matches(&given));
    match given {
        Ok(what) => run(&what),
        Err(error) => {
            let message = error.to_string();
            Err(Failure::new(Exit::Usage, message.trim_start_matches("error: ").trim_end()))
        }
    }
}

/// Runs the job. Returns the text for stdout.
pub(crate) fn run(what: &What) -> Result<Answer, Failure> {
    let settings = what.settings();
    if let Some(gpus) = &settings.plan {
        let wish = Wish {
            gpus,
            memory_limit: settings.device.memory_limit(),
            goal: settings.goal,
            numbers: settings.numbers.numbers(),
            as_json: settings.json,
        };
        return plan::run(wish, what.variants()?, what.shared());
    }
    settings.parallel.shares(what.shared(), settings.capture)?;
    let (world, device) =
        match settings.parallel.start(&settings.device, what.batch_size(), settings.capture)? {
            Start::Rank(world, device) => (world, device),
            Start::Launcher(ranks) => return spawn::run(ranks),
        };
    let outcome = what.job().and_then(|mut job| {
        job.group = world.group().clone();
        job.shard = settings.parallel.shard();
        job.replicate = settings.parallel.replicate();
        job.tensor = settings.parallel.tensor();
        job.reproducible = settings.parallel.reproducible();
        job.check_techniques()?;
        if let Some(limit) = settings.fit {
            device.set_memory_limit(limit);
            let (sim, numbers) = (settings.device.simulated(&device), settings.numbers.numbers());
            job.fitted = Some(fit::fit_all(&mut job, &sim, limit, numbers)?);
        }
        command::run(&mut job, settings, &device, &world)
    });
    if let Err(failure) = &outcome {
        parallel::tell(&world, failure);
        if failure.exit == Exit::RankLost && settings.device.is_cuda() {
            output::failure(failure, None);
            parallel::let_others_read(&world);
            parallel::end_now(failure.exit);
        }
    }
    outcome
}
