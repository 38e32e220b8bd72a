//! Which checkpoint a run resumes from, and loading it: [`Loaded`].

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll::Device;
use plimsoll::nn::Module;
use plimsoll::optim::Optimizer;
use plimsoll::parallel::FullyShardedDataParallel;
use plimsoll::serialize::{Checkpoint, Strict, checkpoints_in};

use super::facts::{Facts, Progress};
use super::{CHECKPOINT, GENERATOR, KEY, LATEST, MANIFEST};
use crate::exit::{Exit, Failure};
use crate::train::job::Error;

/// A checkpoint that the user named.
pub(super) struct Named {
    /// The file or folder.
    pub(super) path: PathBuf,
    /// The folder of the run that saved it.
    pub(super) run: PathBuf,
    /// Whether the checkpoint is the newest in that folder.
    pub(super) is_newest: bool,
}

impl Named {
    /// Finds a checkpoint by its file, by its folder, or by the link to it; for the folder of a run, finds the newest.
    pub(super) fn of(name: &Path) -> Named {
        let is_one = name.is_file() || name.join(MANIFEST).is_file();
        if !is_one {
            let path = newest(name).unwrap_or_else(|| name.join(CHECKPOINT));
            return Named { path, run: name.to_owned(), is_newest: true };
        }
        let parent = name.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = fs::read_link(name).map_or_else(|_| name.to_owned(), |target| parent.join(target));
        let is_newest = newest(parent).is_some_and(|newest| same(&newest, &path));
        Named { path, run: parent.to_owned(), is_newest }
    }
}

/// The newest checkpoint in the folder of a run: the file of one process, or the folder of several ranks.
pub(super) fn newest(run: &Path) -> Option<PathBuf> {
    let file = run.join(CHECKPOINT);
    let folder = checkpoints_in(run).into_iter().next();
    if !file.exists() {
        return folder;
    }
    // A save in one form removes, as its last step, what marks the newest checkpoint of the other form. Until then,
    // both exist.
    let is_marked = fs::read_link(run.join(LATEST)).is_ok();
    let folder = folder.filter(|folder| is_marked && step_of(folder) > step_of(&file));
    Some(folder.unwrap_or(file))
}

/// The step of a checkpoint, if it can be read.
fn step_of(path: &Path) -> Option<u64> {
    Checkpoint::open(path).ok()?.get(KEY)?["progress"]["step"].as_u64()
}

/// Whether both paths lead to the same file or folder.
pub(super) fn same(left: &Path, right: &Path) -> bool {
    fs::canonicalize(left).ok().zip(fs::canonicalize(right).ok()).is_some_and(|(left, right)| left == right)
}

/// A checkpoint to resume from.
pub(crate) struct Loaded {
    file: Checkpoint,
    pub(super) progress: Progress,
}

impl Loaded {
    /// Opens a checkpoint of the same job.
    pub(super) fn open(path: &Path, ours: &Facts) -> Result<Loaded, Failure> {
        let unreadable = |message: String| Failure::new(Exit::Unreadable, message);
        if !path.exists() {
            return Err(unreadable(format!(
                "there is no {} to resume from: leave --resume out to start a new training, or name another folder",
                path.display()
            )));
        }
        let file = Checkpoint::open(path).map_err(|why| unreadable(why.to_string()))?;
        let no_run =
            || unreadable(format!("{} is a checkpoint, but not of `plimsoll train`", path.display()));
        let train = file.get(KEY).ok_or_else(no_run)?;
        let saved: Facts = serde_json::from_value(train.clone()).map_err(|_| no_run())?;
        let progress: Progress = serde_json::from_value(train["progress"].clone()).map_err(|_| no_run())?;
        let differences = ours.differences(&saved);
        if differences.is_empty() {
            return Ok(Loaded { file, progress });
        }
        let message = format!(
            "{} belongs to another job, and was not changed:\n  {}\ngive the options of that job, or leave --resume out and save \
             to another folder",
            path.display(),
            differences.join("\n  ")
        );
        Err(Failure::new(Exit::Usage, message))
    }

    /// Loads everything. Returns the progress of the run, and which tensors have NaN or infinite values.
    pub(crate) fn load(
        self,
        module: &dyn Module,
        optimizer: &mut dyn Optimizer,
        device: &Device,
        sharded: Option<&FullyShardedDataParallel>,
    ) -> Result<(Progress, Vec<String>), Error> {
        match sharded {
            None => {
                self.file.load_model(module)?;
                self.file.load_optimizer(optimizer)?;
            }
            Some(sharded) => {
                sharded.load_state_dict(module, &self.file.model_source(), Strict::Yes)?;
                sharded.load_optimizer(optimizer, &self.file)?;
            }
        }
        self.file.load_generator(GENERATOR, device)?;
        Ok((self.progress, self.file.not_finite()))
    }
}
