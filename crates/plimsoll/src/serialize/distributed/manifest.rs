//! `checkpoint.json`: everything in a checkpoint except tensors, and which files belong to it. It is written last.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use plimsoll_tensor::RngState;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::optim::GroupState;
use crate::serialize::atomic;
use crate::serialize::checksum::{self, Sealed};
use crate::state_dict::SerializeError;

/// The name of the file.
pub(super) const MANIFEST: &str = "checkpoint.json";
/// The version of its layout.
const VERSION: u32 = 1;

/// The content of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: u32,
    /// The XXH3-64 of the file, with zeros in place of these digits.
    #[serde(rename = "plimsoll.xxh3.header")]
    xxh3: String,
    /// The number of ranks that saved.
    pub(super) ranks: usize,
    /// The file of each rank, by its path in the folder, with its length and the checksum of its beginning.
    pub(super) files: BTreeMap<String, Sealed>,
    /// The tensors of the model, in order.
    pub(super) model: Vec<String>,
    optimizer: SavedOptimizer,
    generators: BTreeMap<String, Generator>,
    pub(super) values: Map<String, Value>,
}

/// The state of an optimizer, except for its tensors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct SavedOptimizer {
    param_groups: Vec<NamedGroup>,
    /// How often each parameter has been updated.
    steps: BTreeMap<String, u64>,
}

/// The options of a group, and the names of its parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NamedGroup {
    pub(crate) options: Map<String, Value>,
    pub(crate) params: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Generator {
    seed: u64,
    stream: u64,
}

impl Manifest {
    pub(super) fn new(ranks: usize, model: Vec<String>) -> Manifest {
        Manifest {
            version: VERSION,
            xxh3: checksum::NONE.to_owned(),
            ranks,
            files: BTreeMap::new(),
            model,
            optimizer: SavedOptimizer::default(),
            generators: BTreeMap::new(),
            values: Map::new(),
        }
    }

    pub(super) fn with_files(&self, files: BTreeMap<String, Sealed>) -> Manifest {
        Manifest { files, ..self.clone() }
    }

    pub(super) fn set_optimizer(&mut self, param_groups: Vec<NamedGroup>, steps: BTreeMap<String, u64>) {
        self.optimizer = SavedOptimizer { param_groups, steps };
    }

    pub(super) fn set_generator(&mut self, name: &str, state: RngState) {
        let RngState { seed, next_stream: stream } = state;
        self.generators.insert(name.to_owned(), Generator { seed, stream });
    }

    pub(super) fn set_value(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_owned(), value);
    }

    /// Writes the file into a checkpoint's folder, and syncs it. After that, the checkpoint is complete.
    pub(super) fn write(&self, folder: &Path) -> Result<(), SerializeError> {
        let path = folder.join(MANIFEST);
        let mut text = match serde_json::to_vec(self) {
            Ok(text) => text,
            Err(why) => unreachable!("keys are strings: {why}"),
        };
        checksum::seal(&mut text);
        let io = |source| SerializeError::io(&path, source);
        atomic::write(&path, |out| out.write_all(&text).map_err(io))?.replace_target()
    }

    /// Reads the file of a checkpoint's folder.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, or is of a newer version.
    pub(super) fn read(folder: &Path) -> Result<Manifest, SerializeError> {
        let path = folder.join(MANIFEST);
        let text = fs::read(&path).map_err(|source| SerializeError::io(&path, source))?;
        if checksum::is_whole(&text) != Some(true) {
            return Err(SerializeError::damaged(&path, "the file"));
        }
        let unknown = |why: String| {
            SerializeError::format(&path, format!("it was written by another version of this program: {why}"))
        };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|why| unknown(why.to_string()))?;
        if manifest.version != VERSION {
            return Err(unknown(format!("its version is {}, not {VERSION}", manifest.version)));
        }
        Ok(manifest)
    }

    /// The names of the optimizer's parameters, in the order of their numbers.
    pub(super) fn parameters(&self) -> Vec<String> {
        self.optimizer.param_groups.iter().flat_map(|group| group.params.clone()).collect()
    }

    /// The optimizer's groups, whose parameters are numbered group by group.
    pub(super) fn groups(&self) -> Vec<GroupState> {
        let mut number = 0;
        let mut group = |group: &NamedGroup| {
            let first = number;
            number += group.params.len();
            GroupState { options: group.options.clone(), params: (first..number).collect() }
        };
        self.optimizer.param_groups.iter().map(&mut group).collect()
    }

    /// How often each parameter has been updated, by the parameter's number.
    pub(super) fn steps(&self) -> BTreeMap<usize, u64> {
        let names = self.parameters();
        let step = |(number, name)| Some((number, *self.optimizer.steps.get(name)?));
        names.iter().enumerate().filter_map(step).collect()
    }

    /// The states of random number generators, by name.
    pub(super) fn generators(&self) -> BTreeMap<String, RngState> {
        let state = |it: &Generator| RngState { seed: it.seed, next_stream: it.stream };
        self.generators.iter().map(|(name, it)| (name.clone(), state(it))).collect()
    }
}
