//! A state dict in several safetensors files with an index, in Hugging Face's layout.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Device, Tensor};
use serde_json::{Value, json};

use super::atomic::{self, Written};
use super::layout;
use super::safetensors::SafetensorsFile;
use crate::nn::check_listed;
use crate::state_dict::{SerializeError, StateDict, TensorSource};

const INDEX: &str = "model.safetensors.index.json";
const WHOLE: &str = "model.safetensors";

/// Writes a state dict into a folder: `model.safetensors` if it has at most `shard_bytes`, otherwise
/// `model-00001-of-00003.safetensors`, … and `model.safetensors.index.json`. Like `save_pretrained` of transformers.
///
/// ```
/// use plimsoll::serialize::{self, StateDict, TensorSource};
/// use plimsoll::{Device, Tensor};
/// let dict: StateDict = ["a", "b"].map(|name| (name.to_owned(), Tensor::ones(&[256], &Device::cpu()).unwrap())).into_iter().collect();
/// let folder = std::env::temp_dir().join(format!("plimsoll-sharded-{}", std::process::id()));
/// std::fs::create_dir_all(&folder)?;
/// serialize::save_sharded(&dict, &folder, 1024)?;
/// assert!(folder.join("model-00002-of-00002.safetensors").is_file());
/// assert_eq!(serialize::open(&folder)?.names(), ["a", "b"]);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// All files are written under temporary names before the first is renamed, so that a full disk changes nothing. If the process
/// is killed during the renaming, the folder is left without an index, and never mixes two models. Files of the other layout are
/// removed, because they would be loaded instead.
///
/// # Errors
/// The same errors as [`super::save`].
#[track_caller]
pub fn save_sharded(
    dict: &StateDict,
    folder: impl AsRef<Path>,
    shard_bytes: u64,
) -> Result<(), SerializeError> {
    let _entry = Entry::here();
    check_listed("save_sharded", dict.iter().map(|(_, tensor)| tensor))?;
    let folder = folder.as_ref();
    let mut shards: Vec<(u64, Vec<(&str, &Tensor)>)> = Vec::new();
    let mut seen = BTreeSet::new();
    for (name, tensor) in dict.iter().filter(|(_, tensor)| seen.insert(tensor.id())) {
        let bytes = (tensor.numel() * tensor.dtype().size()) as u64;
        match shards.last_mut().filter(|(held, _)| held + bytes <= shard_bytes) {
            Some((held, tensors)) => {
                *held += bytes;
                tensors.push((name, tensor));
            }
            None => shards.push((bytes, vec![(name, tensor)])),
        }
    }
    if layout::is_rehearsed(dict.iter().map(|(_, tensor)| tensor)) {
        return layout::save_as(dict.iter(), BTreeMap::new(), &folder.join(WHOLE));
    }
    if shards.len() <= 1 {
        layout::save_as(dict.iter(), BTreeMap::new(), &folder.join(WHOLE))?;
        return remove(&folder.join(INDEX));
    }
    let (mut weight_map, mut written) = (BTreeMap::new(), Vec::new());
    for (number, (_, tensors)) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len());
        written.push(layout::write_as(tensors.iter().copied(), BTreeMap::new(), &folder.join(&file))?);
        weight_map.extend(tensors.iter().map(|(name, _)| ((*name).to_owned(), file.clone())));
    }
    let total: u64 = shards.iter().map(|(bytes, _)| bytes).sum();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    let path = folder.join(INDEX);
    let text = format!("{index:#}\n");
    written.push(atomic::write(&path, |out| {
        out.write_all(text.as_bytes()).map_err(|source| SerializeError::io(&path, source))
    })?);
    // The old index must not refer to new shards.
    remove(&path)?;
    written.into_iter().try_for_each(Written::replace_target)?;
    remove(&folder.join(WHOLE))
}

/// Removes a file, if it exists.
fn remove(path: &Path) -> Result<(), SerializeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(SerializeError::io(path, error)),
        _ => Ok(()),
    }
}

/// Open safetensors files with an index, or the only file of a folder.
#[derive(Debug)]
pub struct ShardedFiles {
    index: PathBuf,
    files: BTreeMap<String, SafetensorsFile>,
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

impl ShardedFiles {
    /// Whether a folder has a safetensors file or index with a model's usual name.
    pub(super) fn is_in(folder: &Path) -> bool {
        [INDEX, WHOLE].iter().any(|name| folder.join(name).is_file())
    }

    /// Opens an index, or a folder with `model.safetensors.index.json` or `model.safetensors`.
    ///
    /// # Errors
    /// If an index is damaged, or names files that are missing or lack a tensor, or if a file is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<ShardedFiles, SerializeError> {
        let path = path.as_ref();
        let index = if path.is_dir() { path.join(INDEX) } else { path.to_owned() };
        let folder = index.parent().unwrap_or(Path::new("")).to_owned();
        if path.is_dir() && !index.is_file() {
            let whole = SafetensorsFile::open(folder.join(WHOLE))?;
            let weight_map = whole.names().into_iter().map(|name| (name, WHOLE.to_owned())).collect();
            return Ok(ShardedFiles {
                index,
                files: BTreeMap::from([(WHOLE.to_owned(), whole)]),
                weight_map,
            });
        }
        let wrong = |message: String| SerializeError::format(&index, message);
        let text = fs::read_to_string(&index).map_err(|source| SerializeError::io(&index, source))?;
        let value: Value = serde_json::from_str(&text).map_err(|why| wrong(format!("no index: {why}")))?;
        let map = value["weight_map"].as_object();
        let map = map.ok_or_else(|| wrong("no index: it has no `weight_map`".to_owned()))?;
        let mut weight_map = BTreeMap::new();
        for (name, file) in map {
            // A file name in this folder, never a path out of it.
            match file.as_str().filter(|file| Path::new(file).file_name().is_some_and(|name| name == *file)) {
                Some(file) => weight_map.insert(name.clone(), file.to_owned()),
                None => {
                    return Err(wrong(format!(
                        "`{name}` is in {file}, which is not the name of a file in the same folder"
                    )));
                }
            };
        }
        let wanted: BTreeSet<&String> = weight_map.values().collect();
        let absent: Vec<&str> =
            wanted.iter().filter(|file| !folder.join(file).is_file()).map(|file| file.as_str()).collect();
        if !absent.is_empty() {
            return Err(wrong(format!("it names files that do not exist: {}", absent.join(", "))));
        }
        let open = |file: &String| SafetensorsFile::open(folder.join(file)).map(|open| (file.clone(), open));
        let files: BTreeMap<String, SafetensorsFile> =
            wanted.into_iter().map(open).collect::<Result<_, _>>()?;
        let lacks = |(name, file): &(&String, &String)| files[*file].shape(name).is_none();
        if let Some((name, file)) = weight_map.iter().find(lacks) {
            return Err(wrong(format!("`{name}` should be in {file}, but is not")));
        }
        Ok(ShardedFiles { index, files, weight_map })
    }

    fn file(&self, name: &str) -> Option<&SafetensorsFile> {
        self.files.get(self.weight_map.get(name)?)
    }
}

impl TensorSource for ShardedFiles {
    fn names(&self) -> Vec<String> {
        self.weight_map.keys().cloned().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.file(name)?.shape(name)
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        match self.file(name) {
            Some(file) => file.tensor(name, device),
            None => Err(SerializeError::format(&self.index, format!("there is no tensor `{name}`"))),
        }
    }

    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        match self.file(name) {
            Some(file) => file.rows(name, rows, device),
            None => Err(SerializeError::format(&self.index, format!("there is no tensor `{name}`"))),
        }
    }

    fn not_finite(&self) -> Vec<String> {
        self.files.values().flat_map(SafetensorsFile::not_finite).collect()
    }
}
