//! Reading and writing safetensors files, a tensor at a time: [`save`] and [`SafetensorsFile`].
//!
//! The crate `safetensors` parses the header. Headers whose tensors overlap, leave gaps, or have lengths that do not match their
//! shapes are rejected. Data is read and written tensor by tensor, so a model needs no second copy in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use plimsoll_tensor::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::{Map, Value, json};

use super::atomic::{self, Written};
use super::checksum;
use super::good::last_good;
use crate::nn::check_listed;
use crate::state_dict::{SerializeError, StateDict, TensorSource};

/// The key in a checkpoint's header for everything that is not a tensor, as JSON.
pub(super) const CHECKPOINT: &str = "plimsoll.checkpoint";
/// The longest header accepted: the crate's own limit.
const LONGEST_HEADER_BYTES: u64 = 100_000_000;

/// safetensors' name for a type.
fn format_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype.name() {
        "float64" => "F64",
        "float32" => "F32",
        "float16" => "F16",
        "bfloat16" => "BF16",
        "int64" => "I64",
        "int32" => "I32",
        "int16" => "I16",
        "uint8" => "U8",
        "bool" => "BOOL",
        _ => return None,
    })
}

/// The type with this name in a header, if it is supported here.
fn dtype_of(format: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| format_of(dtype) == Some(format))
}

/// The layout of tensors to be written: each tensor once, the widest types first, so that all are aligned.
pub(super) struct Layout<'a> {
    header: Map<String, Value>,
    order: Vec<(&'a str, &'a Tensor)>,
}

impl<'a> Layout<'a> {
    /// Lays out tensors. A tensor with several names is written under the first; the metadata lists the others, as
    /// `safetensors.torch.save_model` does.
    pub(super) fn new(
        tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
        mut texts: BTreeMap<String, String>,
    ) -> Layout<'a> {
        let mut first: BTreeMap<usize, &str> = BTreeMap::new();
        let mut kept = Vec::new();
        for (name, tensor) in tensors {
            match first.get(&tensor.id()) {
                Some(&other) => drop(texts.insert(name.to_owned(), other.to_owned())),
                None => {
                    first.insert(tensor.id(), name);
                    kept.push((name, tensor));
                }
            }
        }
        kept.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype().size()));
        texts.insert("format".to_owned(), "pt".to_owned());
        texts.extend(checksum::placeholders(kept.iter().map(|(name, _)| *name)));
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!(texts));
        let mut end = 0;
        for (name, tensor) in &kept {
            let start = end;
            end += tensor.numel() * tensor.dtype().size();
            let Some(dtype) = format_of(tensor.dtype()) else { unreachable!("every type has a name") };
            let entry = json!({ "dtype": dtype, "shape": tensor.shape(), "data_offsets": [start, end] });
            header.insert((*name).to_owned(), entry);
        }
        Layout { header, order: kept }
    }

    /// The file's beginning: the length of the header, and the header.
    fn beginning(&self) -> Vec<u8> {
        let mut header = Value::Object(self.header.clone()).to_string().into_bytes();
        // Data starts at a multiple of 8; the format allows padding with spaces.
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut beginning = (header.len() as u64).to_le_bytes().to_vec();
        beginning.append(&mut header);
        beginning
    }

    /// Writes header and data, then the header again: the checksums are known by then.
    pub(super) fn write(mut self, path: &Path, out: &mut (impl Write + Seek)) -> Result<(), SerializeError> {
        let failed = |source| SerializeError::io(path, source);
        out.write_all(&self.beginning()).map_err(failed)?;
        let mut sums = Vec::new();
        for (name, tensor) in &self.order {
            let bytes = tensor.to_bytes()?;
            out.write_all(&bytes).map_err(failed)?;
            sums.push((*name, checksum::of(&bytes)));
        }
        let sums = sums.iter().map(|(name, sum)| (*name, sum.as_str())).collect();
        self.header["__metadata__"][checksum::TENSORS] = json!(checksum::text(&sums));
        let mut beginning = self.beginning();
        checksum::seal(&mut beginning);
        out.rewind().map_err(failed)?;
        out.write_all(&beginning).map_err(failed)
    }
}

/// Writes a state dict as a safetensors file, each tensor once. The file is replaced atomically.
///
/// # Errors
/// The disk is full, or the folder does not exist. The previous save is unchanged. Tensors without values. A model with a
/// parameter that no [`members!`](crate::members) lists, because it would be lost.
pub fn save(dict: &StateDict, path: impl AsRef<Path>) -> Result<(), SerializeError> {
    check_listed("save", dict.iter().map(|(_, tensor)| tensor))?;
    save_as(dict.iter(), BTreeMap::new(), path.as_ref())
}

/// [`save`] with metadata in the header.
pub(super) fn save_as<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    texts: BTreeMap<String, String>,
    path: &Path,
) -> Result<(), SerializeError> {
    write_as(tensors, texts, path)?.replace_target()
}

/// Writes the file under a temporary name, without replacing the target file yet.
pub(super) fn write_as<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    texts: BTreeMap<String, String>,
    path: &Path,
) -> Result<Written, SerializeError> {
    let layout = Layout::new(tensors, texts);
    atomic::write(path, |out| layout.write(path, out))
}

/// A tensor in the file.
#[derive(Clone, Debug)]
struct Entry {
    format: String,
    shape: Vec<usize>,
    start: u64,
    end: u64,
}

/// An open safetensors file: its list of tensors; their values are read on demand.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
    /// The names in the order of the data.
    order: Vec<String>,
    texts: BTreeMap<String, String>,
    /// The checksum of each tensor; none in a file of an older version or another program.
    sums: Option<BTreeMap<String, String>>,
    /// The tensors read so far that include NaN or infinity.
    not_finite: Mutex<BTreeSet<String>>,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// A file that is not a safetensors file, is truncated, has overlapping tensors, or has a header that does not match its
    /// checksum.
    pub fn open(path: impl AsRef<Path>) -> Result<SafetensorsFile, SerializeError> {
        let path = path.as_ref();
        Self::open_alone(path).map_err(with_good)
    }

    /// Opens a file without searching other files for an undamaged checkpoint.
    pub(super) fn open_alone(path: &Path) -> Result<SafetensorsFile, SerializeError> {
        let wrong = |message: String| SerializeError::format(path, message);
        let io = |source| SerializeError::io(path, source);
        let mut file = File::open(path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let mut beginning = vec![0_u8; 8];
        if file_bytes < 8 {
            return Err(wrong(format!(
                "{file_bytes} bytes are not a safetensors file: copy or save it again"
            )));
        }
        file.read_exact(&mut beginning).map_err(io)?;
        let header_bytes = beginning.iter().rev().fold(0_u64, |sum, &byte| (sum << 8) | u64::from(byte));
        if header_bytes > LONGEST_HEADER_BYTES || header_bytes > file_bytes - 8 {
            let message = format!(
                "not a safetensors file, or cut short: its header would have {header_bytes} bytes and the file has \
                 {file_bytes}. A .safetensors, .pt or .pth file is expected"
            );
            return Err(wrong(message));
        }
        (&mut file).take(header_bytes).read_to_end(&mut beginning).map_err(io)?;
        let header_damaged = || SerializeError::damaged(path, "the header");
        if checksum::is_whole(&beginning) == Some(false) {
            return Err(header_damaged());
        }
        let damaged =
            |why: String| wrong(format!("the header is damaged: {why}. Copy or save the file again"));
        let header: Metadata =
            serde_json::from_slice(&beginning[8..]).map_err(|error| damaged(error.to_string()))?;
        check(&header).map_err(damaged)?;
        let data_start = 8 + header_bytes;
        let infos: BTreeMap<_, _> = header.tensors().into_iter().collect();
        let data_bytes = infos.values().map(|info| info.data_offsets.1 as u64).max().unwrap_or(0);
        if data_start + data_bytes != file_bytes {
            let how = if data_start + data_bytes > file_bytes {
                "cut short"
            } else {
                "longer than its header says"
            };
            let expected = data_start + data_bytes;
            return Err(wrong(format!(
                "the file is {how}: {file_bytes} bytes, not {expected}. Copy it again"
            )));
        }
        let entries: BTreeMap<String, Entry> = infos
            .into_iter()
            .map(|(name, info)| {
                let (start, end) = info.data_offsets;
                let format = format_name(info.dtype);
                let (start, end) = (data_start + start as u64, data_start + end as u64);
                (name, Entry { format, shape: info.shape.clone(), start, end })
            })
            .collect();
        let mut order: Vec<String> = entries.keys().cloned().collect();
        order.sort_by_key(|name| (entries[name].start, entries[name].end));
        let texts: BTreeMap<String, String> =
            header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone())).collect();
        let sums = texts.get(checksum::TENSORS).map(|text| checksum::read(text));
        let is_sealed = texts.contains_key(checksum::HEADER);
        let has_all = |sums: &BTreeMap<String, String>| entries.keys().eq(sums.keys());
        let sums = match sums {
            None if !is_sealed => None,
            Some(Some(sums)) if is_sealed && has_all(&sums) => Some(sums),
            _ => return Err(header_damaged()),
        };
        let not_finite = Mutex::default();
        Ok(SafetensorsFile { path: path.to_owned(), entries, order, texts, sums, not_finite })
    }

    /// Whether the file has checksums: files of older versions and other programs have none.
    pub fn has_checksums(&self) -> bool {
        self.sums.is_some()
    }

    /// Reads all tensors and compares their checksums. A file without checksums passes if it can be read.
    ///
    /// # Errors
    /// The first tensor that is damaged.
    pub fn verify(&self) -> Result<(), SerializeError> {
        self.entries.iter().try_for_each(|(name, entry)| self.read(name, entry).map(drop))
    }

    /// The bytes of a tensor.
    fn read(&self, name: &str, entry: &Entry) -> Result<Vec<u8>, SerializeError> {
        let io = |source| SerializeError::io(&self.path, source);
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(entry.start)).map_err(io)?;
        let mut bytes = Vec::new();
        file.take(entry.end - entry.start).read_to_end(&mut bytes).map_err(io)?;
        match self.sums.as_ref().and_then(|sums| sums.get(name)) {
            Some(sum) if *sum != checksum::of(&bytes) => {
                Err(SerializeError::damaged(&self.path, format!("`{name}`")))
            }
            _ => Ok(bytes),
        }
    }

    /// A metadata entry of the header, by its key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.texts.get(key).map(String::as_str)
    }
}

/// If a file is damaged, adds the last good checkpoint to the error.
fn with_good(error: SerializeError) -> SerializeError {
    match error {
        SerializeError::Damaged { path, what, .. } => {
            let is_good = |path: &Path| {
                let file = SafetensorsFile::open_alone(path).ok();
                let file = file.filter(|file| file.text(CHECKPOINT).is_some() && file.has_checksums());
                file.is_some_and(|file| file.verify().is_ok())
            };
            let good = last_good(&path, is_good);
            SerializeError::Damaged { path, what, good }
        }
        other => other,
    }
}

/// Rejects tensors that overlap, leave gaps, or have lengths that do not match their shapes. The crate checks this only for a
/// file that is completely in memory.
fn check(header: &Metadata) -> Result<(), String> {
    let mut tensors: Vec<_> = header.tensors().into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut next = 0;
    for (name, info) in tensors {
        let (start, end) = info.data_offsets;
        if start != next || end < start {
            return Err(format!("`{name}` lies at bytes {start} to {end}, not from {next}"));
        }
        let elements = info.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        let bytes = elements.and_then(|n| n.checked_mul(info.dtype.bitsize())).filter(|bits| bits % 8 == 0);
        if bytes.map(|bits| bits / 8) != Some(end - start) {
            return Err(format!("`{name}` of shape {:?} does not have {} bytes", info.shape, end - start));
        }
        next = end;
    }
    Ok(())
}

fn format_name(dtype: Dtype) -> String {
    match serde_json::to_value(dtype) {
        Ok(Value::String(name)) => name,
        other => unreachable!("a type is written as its name: {other:?}"),
    }
}

impl TensorSource for SafetensorsFile {
    fn names(&self) -> Vec<String> {
        self.order.clone()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|entry| entry.shape.clone())
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        let Some(entry) = self.entries.get(name) else {
            return Err(SerializeError::format(&self.path, format!("there is no tensor `{name}`")));
        };
        let Some(dtype) = dtype_of(&entry.format) else {
            let message =
                format!("`{name}` has the type {}, which is not supported: convert it first", entry.format);
            return Err(SerializeError::format(&self.path, message));
        };
        if !device.has_values() {
            return Ok(Tensor::empty(&entry.shape, dtype, device)?);
        }
        let bytes = self.read(name, entry).map_err(with_good)?;
        if !checksum::is_finite(&bytes, dtype) {
            self.not_finite.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        }
        Ok(Tensor::from_bytes(&bytes, dtype, &entry.shape, device)?)
    }

    fn not_finite(&self) -> Vec<String> {
        self.not_finite.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
