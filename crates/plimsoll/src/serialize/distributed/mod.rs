//! Checkpoints that several ranks save together: [`DistributedCheckpoint`].
//!
//! ```text
//! run/step-00001200/model/shard-00003-model-00001-of-00001.safetensors      rank 2's rows of the parameters
//!                  /optimizer/shard-00003-model-00001-of-00001.safetensors  rank 2's rows of the optimizer's state
//!                  /checkpoint.json                                         everything else; written last
//! run/latest                                                                a link to the newest checkpoint
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `folder.rs` | where checkpoints are; which are complete |
//! | `manifest.rs` | `checkpoint.json` |
//! | `files.rs` | reading the files of all ranks as whole tensors, or some of their rows: [`DistributedFiles`] |
//! | `source.rs` | the same for model and optimizer of a checkpoint |
//! | `agree.rs` | texts of all ranks; whether all ranks share a folder: [`check_shared`] |
//! | `commit.rs` | how a checkpoint becomes complete on all ranks |
//! | this one | what is saved |

mod agree;
mod commit;
mod files;
mod folder;
mod manifest;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_tensor::{Device, ProcessGroup, Tensor};
use serde_json::Value;

pub use agree::check_shared;
pub use files::DistributedFiles;
pub use folder::checkpoints_in;
pub(super) use source::DistributedSource;
pub(crate) use source::state_name;

use crate::serialize::async_save::AsyncSave;
use crate::serialize::staging::Stage;
use crate::state_dict::SerializeError;
use agree::all_succeeded;
use commit::Commit;
use manifest::Manifest;
pub(crate) use manifest::NamedGroup;

/// A rank's rows of a tensor.
#[derive(Debug)]
pub(crate) struct TensorRows {
    /// The tensor's name.
    pub(crate) name: String,
    pub(crate) rows: Tensor,
    /// The place of the first element in the whole tensor: an index for each dimension.
    pub(crate) offsets: Vec<usize>,
}

/// One rank's part of a training state: its rows of the parameters and of the optimizer's state, and values. It is
/// created by [`FullyShardedDataParallel::checkpoint`](crate::parallel::FullyShardedDataParallel::checkpoint). Each
/// rank writes a file; no rank needs memory for more than its rows.
///
/// [`Checkpoint::open`](super::Checkpoint::open) opens the folder on any number of ranks. PyTorch 2.11 loads the
/// subfolders `model` and `optimizer` with `torch.distributed.checkpoint.HuggingFaceStorageReader`.
/// [`DistributedFiles::consolidate`] writes the model to one file.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
/// use plimsoll::parallel::{FullyShardOptions, fully_shard};
/// use plimsoll::serialize::{Checkpoint, Strict};
/// use plimsoll::{Device, ProcessGroup, Tensor};
/// let run = std::env::temp_dir().join(format!("plimsoll-distributed-{}", std::process::id()));
/// let group = ProcessGroup::threads(1).remove(0); // processes: `dist::init_from_env`
/// let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
/// let sharded = fully_shard(&mut model, &group, FullyShardOptions::default())?;
/// let mut adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
/// model.forward(&Tensor::ones(&[1, 4], &Device::cpu())?)?.sum()?.backward()?;
/// adamw.step()?;
/// let saved = sharded.checkpoint(&model, &adamw)?.value("epoch", 3);
/// assert!(saved.save(&run, 1200)?.ends_with("step-00001200"));
///
/// // In another process, or on other ranks:
/// let saved = Checkpoint::open(&run)?;
/// sharded.load_state_dict(&model, &saved.model_source(), Strict::Yes)?;
/// sharded.load_optimizer(&mut adamw, &saved)?;
/// assert_eq!(saved.get("epoch"), Some(&3.into()));
/// # std::fs::remove_dir_all(run)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DistributedCheckpoint {
    group: ProcessGroup,
    writers: usize,
    model: Vec<TensorRows>,
    optimizer: Vec<TensorRows>,
    /// Additional names of the model's tensors.
    aliases: BTreeMap<String, String>,
    manifest: Manifest,
    older: usize,
}

impl DistributedCheckpoint {
    /// The model's part. `names` are all tensors of the model, in order. Only the first `writers` ranks write; the
    /// others have the same rows.
    pub(crate) fn new(
        group: &ProcessGroup,
        writers: usize,
        names: Vec<String>,
        model: Vec<TensorRows>,
        aliases: BTreeMap<String, String>,
    ) -> DistributedCheckpoint {
        let manifest = Manifest::new(writers, names);
        let (group, optimizer) = (group.clone(), Vec::new());
        DistributedCheckpoint { group, writers, model, optimizer, aliases, manifest, older: 1 }
    }

    /// Adds rows of the optimizer's state. `groups` has the options of each group and the names of its parameters;
    /// `steps` is how often each parameter has been updated.
    pub(crate) fn optimizer(
        mut self,
        rows: Vec<TensorRows>,
        groups: Vec<NamedGroup>,
        steps: BTreeMap<String, u64>,
    ) -> DistributedCheckpoint {
        self.optimizer = rows;
        self.manifest.set_optimizer(groups, steps);
        self
    }

    /// Adds the state of a device's random number generator under a name. Rank 0's state is the one that is saved.
    #[must_use]
    pub fn generator(mut self, name: &str, device: &Device) -> DistributedCheckpoint {
        self.manifest.set_generator(name, device.rng_state());
        self
    }

    /// Adds a value, like [`Checkpoint::value`](super::Checkpoint::value). Rank 0's value is the one that is saved.
    #[must_use]
    pub fn value(mut self, name: &str, value: impl Into<Value>) -> DistributedCheckpoint {
        self.manifest.set_value(name, value.into());
        self
    }

    /// How many older checkpoints stay in the folder after this one is complete: by default 1.
    #[must_use]
    pub fn keep(mut self, older: usize) -> DistributedCheckpoint {
        self.older = older;
        self
    }

    /// Saves into the folder `run/step-N` (with a number appended if that exists already), and makes the link
    /// `run/latest` point to it. All ranks must call it with the same folder, which they must share: [`check_shared`].
    /// Returns the checkpoint's folder on all ranks.
    ///
    /// Each rank writes its files under another name, syncs and renames them, and tells the others their lengths and checksums.
    /// Rank 0 checks all files, writes `checkpoint.json`, sets the link, and only then removes older checkpoints. So
    /// even if a process is killed at any moment, the last complete checkpoint remains.
    ///
    /// # Errors
    /// If any rank cannot write its files, or rank 0 does not see a file: all ranks then get the error, and the last
    /// checkpoint is unchanged. Also [`plimsoll_tensor::Error::Distributed`].
    pub fn save(&self, run: impl AsRef<Path>, step: u64) -> Result<PathBuf, SerializeError> {
        let DistributedCheckpoint { group, writers, model, optimizer, aliases, manifest, older } = self;
        Commit { group, writers: *writers, run: run.as_ref(), step }
            .run(model, aliases, optimizer, manifest, *older)
    }

    /// [`DistributedCheckpoint::save`] on a thread, while training goes on. Before this returns, the rows are staged, and the
    /// previous save of `saving` is complete. [`AsyncSave::wait`] returns the checkpoint's folder.
    ///
    /// ```
    /// use plimsoll::nn::{Linear, Scope};
    /// use plimsoll::optim::{AdamW, AdamWOptions};
    /// use plimsoll::parallel::{FullyShardOptions, fully_shard};
    /// use plimsoll::serialize::AsyncSave;
    /// use plimsoll::{Device, ProcessGroup};
    /// let run = std::env::temp_dir().join(format!("plimsoll-distributed-async-{}", std::process::id()));
    /// let group = ProcessGroup::threads(1).remove(0);
    /// let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
    /// let sharded = fully_shard(&mut model, &group, FullyShardOptions::default())?;
    /// let adamw = AdamW::new(sharded.parameters(), AdamWOptions::default());
    /// let mut saving = AsyncSave::default();
    /// sharded.checkpoint(&model, &adamw)?.save_async(&run, 1200, &mut saving)?;
    /// // … train …
    /// assert_eq!(saving.wait()?, Some(run.join("step-00001200")));
    /// # std::fs::remove_dir_all(run)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of the previous save, or those of [`DistributedCheckpoint::stage`], on all ranks: nothing is then saved. The
    /// errors of this save are returned by [`AsyncSave::wait`], or by the next save.
    pub fn save_async(
        self,
        run: impl AsRef<Path>,
        step: u64,
        saving: &mut AsyncSave,
    ) -> Result<(), SerializeError> {
        saving.wait().map(drop)?;
        let (staged, run) = (self.stage()?, run.as_ref().to_owned());
        saving.start(move || staged.save(run, step))
    }

    /// Copies this rank's rows to pinned host memory, so that another thread can save them while training changes the
    /// originals. The host does not wait for a GPU, which copies on its current stream. All ranks must call this; the thread's
    /// collectives are those of [`ProcessGroup::background`].
    ///
    /// # Errors
    /// If any rank lacks pinned memory: all ranks then get the error. Also [`plimsoll_tensor::Error::Distributed`].
    pub fn stage(mut self) -> Result<DistributedCheckpoint, SerializeError> {
        let mut stage = Stage::default();
        let mut rows = self.model.iter_mut().chain(&mut self.optimizer);
        let copied = rows.try_for_each(|it| stage.copy(&it.rows).map(|copy| it.rows = copy));
        all_succeeded(&self.group, copied.err(), "staging")?;
        self.group = self.group.background()?;
        Ok(self)
    }
}
