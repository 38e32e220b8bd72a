//! PyTorch's `.pt` and `.pth` files: [`PtFile`].
//!
//! Such a file is a zip archive with a pickle (`data.pkl`) that lists the tensors, and a file for each storage. The pickle reader
//! is the one for snapshots, which runs no code: `objects.rs` knows the few functions that `torch.save` of a state dict names,
//! and rejects any other with an error that names it.

mod objects;
mod optimizer;
mod value;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use plimsoll_tensor::{DType, Device, Tensor};
use serde_json::Value as Json;
use zip::ZipArchive;

use self::value::TensorEntry;
use super::checksum;
use crate::state_dict::{SerializeError, TensorSource};

/// The longest pickle accepted. The pickles of the largest models have a few hundred kilobytes.
const LONGEST_PICKLE_BYTES: u64 = 256 << 20;

/// An open `.pt` or `.pth` file: its list of tensors; their values are read on demand.
///
/// Tensors in nested dictionaries have names with dots: a file of `torch.save({"model": model.state_dict(), "epoch": 3})` has
/// `model.fc.weight`; [`PtFile::part`] selects such a part.
pub struct PtFile {
    path: PathBuf,
    archive: Mutex<ZipArchive<BufReader<File>>>,
    /// The folder in the archive, with a slash.
    folder: String,
    entries: BTreeMap<String, TensorEntry>,
    order: Vec<String>,
    /// Numbers, booleans and `None`, by their names.
    numbers: BTreeMap<String, Json>,
    /// The tensors read so far that include NaN or infinity.
    not_finite: Mutex<BTreeSet<String>>,
}

/// The error for a file in the format before PyTorch 1.6.
pub(super) fn legacy(path: &Path) -> SerializeError {
    SerializeError::format(
        path,
        "a .pt file in the format before PyTorch 1.6, which is not supported: save it again with a newer PyTorch, \
         torch.save(torch.load(path), path)",
    )
}

/// The error for a pickle that `torch.save` did not write, because `torch.save` never uses a protocol this new.
pub(super) fn pickle(path: &Path) -> SerializeError {
    SerializeError::format(
        path,
        "a pickle that torch.save did not write: only torch.save files and safetensors are read. Nothing was run. Save a \
         state dict with torch.save(model.state_dict(), path)",
    )
}

impl PtFile {
    /// Opens a file and reads its pickle.
    ///
    /// # Errors
    /// If the file is not a zip archive of `torch.save`, is damaged, or its pickle contains anything but the tensors,
    /// dictionaries, lists and numbers of a state dict. No code in the file is ever run.
    pub fn open(path: impl AsRef<Path>) -> Result<PtFile, SerializeError> {
        let path = path.as_ref();
        let wrong = |message: String| SerializeError::format(path, message);
        let file = File::open(path).map_err(|source| SerializeError::io(path, source))?;
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|why| {
            wrong(format!("the zip archive is damaged: {why}. Copy or save the file again"))
        })?;
        let pickle =
            archive.file_names().flatten().find(|name| name.ends_with("/data.pkl")).map(Cow::into_owned);
        let Some(pickle) = pickle else {
            return Err(wrong("a zip archive without data.pkl: not a file of torch.save".to_owned()));
        };
        let folder = pickle.trim_end_matches("data.pkl").to_owned();
        if read(&mut archive, &format!("{folder}byteorder"), 16).is_ok_and(|order| order == b"big") {
            return Err(wrong("saved on a big-endian machine: save it on a little-endian one".to_owned()));
        }
        let bytes = read(&mut archive, &pickle, LONGEST_PICKLE_BYTES).map_err(&wrong)?;
        let contents = objects::contents(&bytes).map_err(|why| wrong(format!("data.pkl, {why}")))?;
        let (tensors, numbers) = (contents.tensors, contents.numbers.into_iter().collect());
        let order = tensors.iter().map(|(name, _)| name.clone()).collect();
        let entries = tensors.into_iter().collect();
        Ok(PtFile {
            path: path.to_owned(),
            archive: Mutex::new(archive),
            folder,
            entries,
            order,
            numbers,
            not_finite: Mutex::default(),
        })
    }

    /// Keeps only the tensors whose names start with `name.`, and removes this prefix: `part("model")` of `{"model": state_dict,
    /// …}`.
    #[must_use]
    pub fn part(mut self, name: &str) -> PtFile {
        let prefix = format!("{name}.");
        let inner = |name: &str| name.strip_prefix(&prefix).map(str::to_owned);
        self.order = self.order.iter().filter_map(|name| inner(name)).collect();
        self.entries =
            self.entries.into_iter().filter_map(|(name, entry)| Some((inner(&name)?, entry))).collect();
        self.numbers =
            self.numbers.into_iter().filter_map(|(name, number)| Some((inner(&name)?, number))).collect();
        self
    }
}

/// Reads an entry of the archive, of at most this many bytes, and verifies its checksum.
fn read(archive: &mut ZipArchive<BufReader<File>>, name: &str, most_bytes: u64) -> Result<Vec<u8>, String> {
    let entry = archive.by_name(name).map_err(|why| format!("{name}: {why}"))?;
    if entry.size() > most_bytes {
        return Err(format!("{name} has {} bytes; at most {most_bytes} are read", entry.size()));
    }
    let mut bytes = Vec::new();
    let read = entry.take(most_bytes + 1).read_to_end(&mut bytes);
    read.map_err(|why| format!("{name} is damaged: {why}. Copy or save the file again"))?;
    Ok(bytes)
}

impl TensorSource for PtFile {
    fn names(&self) -> Vec<String> {
        self.order.clone()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|entry| entry.shape.clone())
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        let wrong = |message: String| SerializeError::format(&self.path, format!("`{name}`: {message}"));
        let Some(entry) = self.entries.get(name) else {
            return Err(SerializeError::format(&self.path, format!("there is no tensor `{name}`")));
        };
        let Some(dtype) = DType::from_name(entry.dtype) else {
            return Err(wrong(format!("the type {} is not supported: convert it first", entry.dtype)));
        };
        if !device.has_values() {
            return Ok(Tensor::empty(&entry.shape, dtype, device)?);
        }
        let storage = format!("{}data/{}", self.folder, entry.storage);
        let size = dtype.size();
        let storage_bytes = (entry.storage_len as u64).saturating_mul(size as u64);
        let bytes = {
            let mut archive = self.archive.lock().unwrap_or_else(PoisonError::into_inner);
            read(&mut archive, &storage, storage_bytes).map_err(&wrong)?
        };
        if bytes.len() as u64 != storage_bytes {
            return Err(wrong(format!("its storage has {} bytes, not {storage_bytes}", bytes.len())));
        }
        let elements = entry.gathered(&bytes, size);
        if !checksum::is_finite(&elements, dtype) {
            self.not_finite.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        }
        Ok(Tensor::from_bytes(&elements, dtype, &entry.shape, device)?)
    }

    fn not_finite(&self) -> Vec<String> {
        self.not_finite.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
