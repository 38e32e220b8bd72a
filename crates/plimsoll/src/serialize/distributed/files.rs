//! The files of all ranks as one source of tensors: [`DistributedFiles`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plimsoll_tensor::{Device, Tensor};
use serde_json::{Map, Value};

use super::folder::{self, MODEL, OPTIMIZER, is_file_name};
use super::manifest::{MANIFEST, Manifest};
use crate::serialize::checksum::Sealed;
use crate::serialize::layout::{Layout, Piece, dtype_of};
use crate::serialize::safetensors::{CHECKPOINT, SafetensorsFile, shape_of_rows, unsupported, want_rows};
use crate::state_dict::{SerializeError, TensorSource};

/// PyTorch's key for the positions of a file's tensors in the full tensors.
pub(super) const SHARDING: &str = "DCP_SHARDING_INFO";
/// PyTorch's key for the version of the format.
pub(super) const VERSION: (&str, &str) = ("DCP_VERSION", "1.0");
/// The key of a tensor's place.
pub(super) const OFFSETS: &str = "saved_offsets";
/// The maximum number of checkpoints to verify completely when searching for an undamaged one.
const MOST: usize = 8;

/// The tensors in a folder into which several ranks have saved their rows: from a checkpoint of this library, or from
/// PyTorch's `HuggingFaceStorageWriter(save_distributed=True)`. A rank that loads its rows reads only those.
///
/// ```
/// use plimsoll::nn::{Linear, Scope};
/// use plimsoll::optim::{Sgd, SgdOptions};
/// use plimsoll::parallel::{FullyShardOptions, fully_shard};
/// use plimsoll::serialize::{self, DistributedFiles, TensorSource};
/// use plimsoll::{Device, ProcessGroup};
/// let run = std::env::temp_dir().join(format!("plimsoll-consolidate-{}", std::process::id()));
/// let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2)?;
/// let sharded = fully_shard(&mut model, &ProcessGroup::threads(1)[0], FullyShardOptions::default())?;
/// sharded.checkpoint(&model, &Sgd::new(sharded.parameters(), SgdOptions::default()))?.save(&run, 1)?;
/// let files = DistributedFiles::open(&run)?;
/// assert_eq!(files.names(), ["weight", "bias"]);
/// assert_eq!(files.rows("weight", 1..2, &Device::cpu())?.shape(), [1, 4]);
/// files.consolidate(run.join("model.safetensors"))?;
/// assert_eq!(serialize::open(&run)?.shape("weight"), Some(vec![2, 4]));
/// # std::fs::remove_dir_all(run)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DistributedFiles {
    folder: PathBuf,
    files: Vec<SafetensorsFile>,
    tensors: BTreeMap<String, Whole>,
    /// The names, in order.
    order: Vec<String>,
    /// Additional names of tensors.
    aliases: BTreeMap<String, String>,
}

/// A tensor and its rows in the files.
#[derive(Debug)]
struct Whole {
    shape: Vec<usize>,
    format: String,
    parts: Vec<Part>,
}

/// Rows of a tensor in a file.
#[derive(Debug)]
struct Part {
    rows: Range<usize>,
    file: usize,
}

impl DistributedFiles {
    /// Whether a folder has files of several ranks.
    pub(in crate::serialize) fn is_in(path: &Path) -> bool {
        let names = fs::read_dir(path).into_iter().flatten().flatten();
        let mut names = names.filter_map(|entry| entry.file_name().into_string().ok());
        folder::find(path).is_some() || names.any(|name| is_file_name(&name))
    }

    /// Opens the model of a checkpoint, given the checkpoint's folder or the run's; or a folder of files that PyTorch
    /// has written.
    ///
    /// # Errors
    /// If the folder has no such files; if files are damaged, missing or do not fit together; or if tensors are split
    /// in a dimension other than the first.
    pub fn open(path: impl AsRef<Path>) -> Result<DistributedFiles, SerializeError> {
        let path = path.as_ref();
        // The folder `model` of a checkpoint: its list of files is next to it.
        let is_model = path.file_name().is_some_and(|name| name == MODEL);
        let inside =
            path.parent().filter(|folder| is_model && folder::is_complete(folder)).map(Path::to_owned);
        if let Some(checkpoint) = inside.or_else(|| folder::find(path)) {
            let open = |manifest: Manifest| Self::model(&checkpoint, &manifest);
            return Manifest::read(&checkpoint).and_then(open).map_err(|error| with_good(error, &checkpoint));
        }
        let entries = fs::read_dir(path).map_err(|source| SerializeError::io(path, source))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let names: BTreeSet<String> = names.filter(|name| is_file_name(name)).collect();
        if names.is_empty() {
            let message =
                format!("no checkpoint of several ranks: there is no {MANIFEST} and no shard-….safetensors");
            return Err(SerializeError::format(path, message));
        }
        let open = |name: &String| SafetensorsFile::open_alone(&path.join(name));
        DistributedFiles::of(path, names.iter().map(open).collect::<Result<_, _>>()?)
    }

    /// Opens the files of a checkpoint's folder `part` that the manifest lists, without searching other checkpoints.
    pub(super) fn listed(
        checkpoint: &Path,
        part: &str,
        manifest: &Manifest,
    ) -> Result<DistributedFiles, SerializeError> {
        let prefix = format!("{part}/");
        let names = manifest.files.iter().filter(|(name, _)| name.starts_with(&prefix));
        let open = |(name, sealed): (&String, &Sealed)| opened(&checkpoint.join(name), sealed);
        let files = names.map(open).collect::<Result<Vec<SafetensorsFile>, SerializeError>>()?;
        DistributedFiles::of(&checkpoint.join(part), files)
    }

    /// Opens the model of a checkpoint, without searching others for an undamaged one.
    pub(super) fn model(checkpoint: &Path, manifest: &Manifest) -> Result<DistributedFiles, SerializeError> {
        let mut files = Self::listed(checkpoint, MODEL, manifest)?;
        if let Some(name) = manifest.model.iter().find(|name| !files.tensors.contains_key(*name)) {
            return Err(SerializeError::format(checkpoint, format!("`{name}` is in none of the files")));
        }
        files.order.clone_from(&manifest.model);
        Ok(files)
    }

    /// Combines the rows of all files.
    fn of(folder: &Path, files: Vec<SafetensorsFile>) -> Result<DistributedFiles, SerializeError> {
        let mut tensors: BTreeMap<String, Whole> = BTreeMap::new();
        for (number, file) in files.iter().enumerate() {
            let wrong = |message: String| SerializeError::format(file.path(), message);
            let places: Map<String, Value> = match file.text(SHARDING).map(serde_json::from_str) {
                Some(Ok(places)) => places,
                _ => return Err(wrong(format!("its header has no {SHARDING}"))),
            };
            for name in file.names() {
                let (Some(shape), Some(format)) = (file.shape(&name), file.format(&name)) else { continue };
                let offsets = places.get(&name).and_then(offsets).unwrap_or_default();
                if offsets.len() != shape.len() || offsets.iter().skip(1).any(|offset| *offset > 0) {
                    let message = format!(
                        "`{name}` begins at {offsets:?}: only tensors that are cut in their first dimension can be read"
                    );
                    return Err(wrong(message));
                }
                let start = offsets.first().copied().unwrap_or(0);
                let rows = start..start.saturating_add(shape.first().copied().unwrap_or(1));
                let whole = tensors.entry(name.clone()).or_insert_with(|| Whole {
                    shape: shape.clone(),
                    format: format.to_owned(),
                    parts: Vec::new(),
                });
                if whole.format != format || whole.shape.get(1..) != shape.get(1..) {
                    return Err(wrong(format!("`{name}` has a different type or shape in other files")));
                }
                // Replicas have the same rows.
                if whole.parts.iter().all(|part| part.rows != rows) {
                    whole.parts.push(Part { rows, file: number });
                }
            }
        }
        for (name, whole) in &mut tensors {
            whole.parts.sort_by_key(|part| (part.rows.start, part.rows.end));
            let end =
                whole.parts.iter().try_fold(0, |end, part| (part.rows.start == end).then_some(part.rows.end));
            let Some(end) = end else {
                let message =
                    format!("the files lack rows of `{name}`, or have them twice: is a file missing?");
                return Err(SerializeError::format(folder, message));
            };
            if let Some(rows) = whole.shape.first_mut() {
                *rows = end;
            }
        }
        let order = tensors.keys().cloned().collect();
        let texts = files.iter().flat_map(|file| file.texts());
        let aliases = texts.filter(|(_, name)| tensors.contains_key(*name));
        let aliases = aliases.map(|(alias, name)| (alias.clone(), name.clone())).collect();
        Ok(DistributedFiles { folder: folder.to_owned(), files, tensors, order, aliases })
    }

    /// The folder that has the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes all tensors in full into one safetensors file, with the same bytes as [`save`](crate::serialize::save) of
    /// the model's state dict. The file is replaced atomically. Only one tensor at a time is in memory.
    ///
    /// # Errors
    /// If the file is damaged, or the disk is full.
    pub fn consolidate(&self, path: impl AsRef<Path>) -> Result<(), SerializeError> {
        let pieces: Result<Vec<Piece<'_>>, SerializeError> =
            self.order.iter().map(|name| self.piece(name)).collect();
        Layout::of(pieces?, self.aliases.clone(), false).write_file(path.as_ref())?.0.replace_target()
    }

    /// A full tensor that will be written.
    fn piece<'a>(&'a self, name: &'a str) -> Result<Piece<'a>, SerializeError> {
        let Whole { shape, format, .. } = &self.tensors[name];
        let dtype = dtype_of(format).ok_or_else(|| unsupported(&self.folder, name, format))?;
        let rows = 0..shape.first().copied().unwrap_or(1);
        Ok(Piece {
            name,
            format: format.clone(),
            shape: shape.clone(),
            bytes: shape.iter().product::<usize>() * dtype.size(),
            read: Box::new(move || self.bytes(name, rows.clone())),
        })
    }

    /// Reads all files and compares their checksums.
    ///
    /// # Errors
    /// The first damaged tensor.
    pub fn verify(&self) -> Result<(), SerializeError> {
        self.files.iter().try_for_each(SafetensorsFile::verify)
    }

    /// The bytes of some rows, from the files that contain them.
    fn bytes(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>, SerializeError> {
        let whole = &self.tensors[name];
        want_rows(name, &rows, whole.shape.first().copied().unwrap_or(1))?;
        let mut bytes = Vec::new();
        for part in &whole.parts {
            let (start, end) = (rows.start.max(part.rows.start), rows.end.min(part.rows.end));
            if start < end {
                let own = start - part.rows.start..end - part.rows.start;
                let read = self.files[part.file].bytes(name, Some(own));
                // These files are in a folder inside the checkpoint's folder.
                let checkpoint = self.folder.parent().unwrap_or(&self.folder);
                bytes.append(&mut read.map_err(|error| with_good(error, checkpoint))?);
            }
        }
        Ok(bytes)
    }

    fn load(
        &self,
        name: &str,
        rows: Option<Range<usize>>,
        device: &Device,
    ) -> Result<Tensor, SerializeError> {
        let Some(whole) = self.tensors.get(name) else {
            return Err(SerializeError::format(&self.folder, format!("there is no tensor `{name}`")));
        };
        let dtype = dtype_of(&whole.format).ok_or_else(|| unsupported(&self.folder, name, &whole.format))?;
        let shape = match &rows {
            Some(rows) => shape_of_rows(&whole.shape, rows.len()),
            None => whole.shape.clone(),
        };
        if !device.has_values() {
            return Ok(Tensor::empty(&shape, dtype, device)?);
        }
        let all = 0..whole.shape.first().copied().unwrap_or(1);
        let bytes = self.bytes(name, rows.unwrap_or(all))?;
        Ok(Tensor::from_bytes(&bytes, dtype, &shape, device)?)
    }
}

/// Opens a file, which must have this length and checksum.
fn opened(path: &Path, sealed: &Sealed) -> Result<SafetensorsFile, SerializeError> {
    let file = SafetensorsFile::open_alone(path)?;
    if file.sealed() == sealed { Ok(file) } else { Err(SerializeError::damaged(path, "the header")) }
}

/// The place of a tensor, if the entry has one.
fn offsets(place: &Value) -> Option<Vec<usize>> {
    let number = |number: &Value| number.as_u64().and_then(|number| usize::try_from(number).ok());
    place.get(OFFSETS)?.as_array()?.iter().map(number).collect()
}

/// If a file of a checkpoint is damaged or missing, adds the checkpoint to use instead.
pub(super) fn with_good(error: SerializeError, checkpoint: &Path) -> SerializeError {
    let (path, message) = match error {
        SerializeError::Damaged { path, what, .. } => {
            return SerializeError::Damaged { path, what, good: last_good(checkpoint) };
        }
        SerializeError::Format { path, message } => (path, message),
        SerializeError::Io { path, source } => (path, source.to_string()),
        other => return other,
    };
    let good = match last_good(checkpoint) {
        Some(good) => format!("the last good checkpoint is {}", good.display()),
        None => "there is no other complete checkpoint next to it".to_owned(),
    };
    SerializeError::Format { path, message: format!("{message}; {good}") }
}

/// The newest undamaged checkpoint next to a damaged one: one saved by several ranks or, failing that, by one process.
fn last_good(damaged: &Path) -> Option<PathBuf> {
    let damaged = fs::canonicalize(damaged).ok()?;
    let run = damaged.parent()?;
    let others = folder::checkpoints_in(run).into_iter().filter(|folder| *folder != damaged).take(MOST);
    let is_good = |checkpoint: &PathBuf| {
        let manifest = Manifest::read(checkpoint);
        let verified = |manifest: Manifest| {
            [MODEL, OPTIMIZER]
                .iter()
                .try_for_each(|part| DistributedFiles::listed(checkpoint, part, &manifest)?.verify())
        };
        manifest.and_then(verified).is_ok()
    };
    let is_good_file = |path: &PathBuf| {
        let is_file = path.extension().is_some_and(|ending| ending == "safetensors");
        let file = is_file.then(|| SafetensorsFile::open_alone(path).ok()).flatten();
        file.is_some_and(|file| file.text(CHECKPOINT).is_some() && file.verify().is_ok())
    };
    let files = fs::read_dir(run).into_iter().flatten().flatten().map(|entry| entry.path());
    others.into_iter().find(is_good).or_else(|| files.into_iter().find(is_good_file))
}

impl TensorSource for DistributedFiles {
    fn names(&self) -> Vec<String> {
        self.order.clone()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.tensors.get(name).map(|whole| whole.shape.clone())
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        self.load(name, None, device)
    }

    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        self.load(name, Some(rows), device)
    }

    fn not_finite(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.files.iter().flat_map(SafetensorsFile::not_finite).collect();
        all.into_iter().collect()
    }
}
