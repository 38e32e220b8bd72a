//! The model and optimizer in a checkpoint of several ranks, as one source of tensors: [`DistributedSource`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use plimsoll_tensor::{Device, RngState, Tensor};
use serde_json::{Map, Value};

use super::files::{DistributedFiles, with_good};
use super::folder::{self, OPTIMIZER};
use super::manifest::Manifest;
use crate::optim::GroupState;
use crate::state_dict::{SerializeError, TensorSource};

/// An open checkpoint of several ranks. Its tensors are named as in the checkpoint of a single process:
/// `model.NAME`, and `optimizer.NUMBER.KEY`.
#[derive(Debug)]
pub(in crate::serialize) struct DistributedSource {
    model: DistributedFiles,
    optimizer: DistributedFiles,
    /// The names of the optimizer's parameters, in the order of their numbers.
    parameters: Vec<String>,
    manifest: Manifest,
}

/// The name of a parameter's state in a file.
pub(crate) fn state_name(parameter: &str, key: &str) -> String {
    format!("state.{parameter}.{key}")
}

impl DistributedSource {
    /// Opens the checkpoint in a folder, or the newest checkpoint below it. `None` if there is none.
    ///
    /// # Errors
    /// If the files are damaged or missing.
    pub(in crate::serialize) fn open(path: &Path) -> Result<Option<DistributedSource>, SerializeError> {
        let Some(checkpoint) = folder::find(path) else { return Ok(None) };
        let open = || {
            let manifest = Manifest::read(&checkpoint)?;
            let model = DistributedFiles::model(&checkpoint, &manifest)?;
            let optimizer = DistributedFiles::listed(&checkpoint, OPTIMIZER, &manifest)?;
            Ok(DistributedSource { model, optimizer, parameters: manifest.parameters(), manifest })
        };
        open().map(Some).map_err(|error| with_good(error, &checkpoint))
    }

    /// The optimizer's groups, and how often each parameter has been updated.
    pub(in crate::serialize) fn optimizer(&self) -> (Vec<GroupState>, BTreeMap<usize, u64>) {
        (self.manifest.groups(), self.manifest.steps())
    }

    /// The states of random number generators, by name.
    pub(in crate::serialize) fn generators(&self) -> BTreeMap<String, RngState> {
        self.manifest.generators()
    }

    /// The saved values.
    pub(in crate::serialize) fn values(&self) -> &Map<String, Value> {
        &self.manifest.values
    }

    /// The files that contain a tensor, and its name in them.
    fn find(&self, name: &str) -> Option<(&DistributedFiles, String)> {
        if let Some(name) = name.strip_prefix("model.") {
            return Some((&self.model, name.to_owned()));
        }
        let (number, key) = name.strip_prefix("optimizer.")?.split_once('.')?;
        let parameter = self.parameters.get(number.parse::<usize>().ok()?)?;
        Some((&self.optimizer, state_name(parameter, key)))
    }

    fn want(&self, name: &str) -> Result<(&DistributedFiles, String), SerializeError> {
        let unknown = || {
            let message = format!("the checkpoint has no `{name}`");
            plimsoll_tensor::Error::Argument { op: "checkpoint", message }.into()
        };
        self.find(name).ok_or_else(unknown)
    }
}

impl TensorSource for DistributedSource {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.model.names().iter().map(|name| format!("model.{name}")).collect();
        let states = self.optimizer.names();
        for (number, parameter) in self.parameters.iter().enumerate() {
            let prefix = state_name(parameter, "");
            // No key contains a dot, so a parameter is not mistaken for one whose name is a prefix of its
            // own.
            let keys = states.iter().filter_map(|name| name.strip_prefix(&prefix));
            names
                .extend(keys.filter(|key| !key.contains('.')).map(|key| format!("optimizer.{number}.{key}")));
        }
        names
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let (files, name) = self.find(name)?;
        files.shape(&name)
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        let (files, name) = self.want(name)?;
        files.tensor(&name, device)
    }

    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        let (files, name) = self.want(name)?;
        files.rows(&name, rows, device)
    }

    fn not_finite(&self) -> Vec<String> {
        let model = self.model.not_finite().into_iter().map(|name| format!("model.{name}"));
        model.chain(self.optimizer.not_finite().into_iter().map(|name| format!("optimizer.{name}"))).collect()
    }
}
