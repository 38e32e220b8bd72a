//! Reading safetensors files, one tensor or some of its rows at a time: [`SafetensorsFile`]. `layout.rs` writes them.
//!
//! The crate `safetensors` parses the header. Headers whose tensors overlap, leave gaps, or have lengths that do not match their
//! shapes are rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use plimsoll_tensor::{Device, Error, Tensor};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::Value;

use super::checksum::{self, Blocks, Sealed};
use super::good::last_good;
use super::layout::dtype_of;
use crate::state_dict::{SerializeError, TensorSource};

/// The key in a checkpoint's header for everything that is not a tensor, as JSON.
pub(super) const CHECKPOINT: &str = "plimsoll.checkpoint";
/// The longest header that is accepted: the crate's own limit.
const LONGEST_HEADER_BYTES: u64 = 100_000_000;

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
    /// The names, in the order of the data.
    order: Vec<String>,
    texts: BTreeMap<String, String>,
    /// The checksum of each tensor; none in a file from an older version or another program.
    sums: Option<BTreeMap<String, String>>,
    /// The checksums of parts of large tensors, if they can be read in part.
    blocks: Option<Blocks>,
    /// The length of the file, and the checksum of its beginning.
    sealed: Sealed,
    /// The tensors read so far that include NaN or infinity.
    not_finite: Mutex<BTreeSet<String>>,
}

impl SafetensorsFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file is not a safetensors file, is truncated, has overlapping tensors, or has a header that does not
    /// match its checksum.
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
        let blocks = match texts.get(checksum::BLOCKS).map(|text| Blocks::read(text)) {
            None => None,
            Some(Some(blocks)) if is_sealed => Some(blocks),
            Some(_) => return Err(header_damaged()),
        };
        let sealed = Sealed { bytes: file_bytes, xxh3: checksum::of(&beginning) };
        let not_finite = Mutex::default();
        Ok(SafetensorsFile { path: path.to_owned(), entries, order, texts, sums, blocks, sealed, not_finite })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file, and the checksum of its beginning.
    pub(super) fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    /// The metadata of the header.
    pub(super) fn texts(&self) -> &BTreeMap<String, String> {
        &self.texts
    }

    /// The type of a tensor, under safetensors' name.
    pub(super) fn format(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|entry| entry.format.as_str())
    }

    /// Whether the file has checksums: files from older versions and other programs have none.
    pub fn has_checksums(&self) -> bool {
        self.sums.is_some()
    }

    /// Reads all tensors and compares their checksums. A file without checksums passes if it can be read.
    ///
    /// # Errors
    /// The first damaged tensor.
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

    /// Some bytes of a tensor. Reads and checks only the blocks around them, if those have checksums.
    fn read_range(&self, name: &str, entry: &Entry, range: Range<u64>) -> Result<Vec<u8>, SerializeError> {
        let sums = self.blocks.as_ref().and_then(|blocks| Some((blocks.bytes, blocks.sums.get(name)?)));
        let (block, sums) = match (sums, &self.sums) {
            (Some((block, sums)), _) => (block, sums.as_slice()),
            (None, None) => (1, &[][..]),
            (None, Some(_)) => {
                let whole = self.read(name, entry)?;
                return Ok(whole[range.start as usize..range.end as usize].to_vec());
            }
        };
        let len = entry.end - entry.start;
        let (first, last) = (range.start / block, range.end.div_ceil(block));
        let (start, end) = (first * block, (last * block).min(len));
        let io = |source| SerializeError::io(&self.path, source);
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(entry.start + start)).map_err(io)?;
        let mut bytes = Vec::new();
        file.take(end - start).read_to_end(&mut bytes).map_err(io)?;
        for (chunk, sum) in bytes.chunks(block as usize).zip(sums.iter().skip(first as usize)) {
            if *sum != checksum::of(chunk) {
                return Err(SerializeError::damaged(&self.path, format!("`{name}`")));
            }
        }
        let from = (range.start - start) as usize;
        Ok(bytes[from..from + (range.end - range.start) as usize].to_vec())
    }

    /// The bytes of some rows of a tensor, or of all rows for `None`. A tensor without dimensions counts as one row.
    pub(super) fn bytes(&self, name: &str, rows: Option<Range<usize>>) -> Result<Vec<u8>, SerializeError> {
        let Some(entry) = self.entries.get(name) else {
            return Err(SerializeError::format(&self.path, format!("there is no tensor `{name}`")));
        };
        let bytes = match rows {
            None => self.read(name, entry)?,
            Some(rows) => {
                let count = entry.shape.first().copied().unwrap_or(1);
                want_rows(name, &rows, count)?;
                let row = (entry.end - entry.start) / (count as u64).max(1);
                self.read_range(name, entry, rows.start as u64 * row..rows.end as u64 * row)?
            }
        };
        if dtype_of(&entry.format).is_some_and(|dtype| !checksum::is_finite(&bytes, dtype)) {
            self.not_finite.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        }
        Ok(bytes)
    }

    /// Some rows of a tensor, or all.
    fn load(
        &self,
        name: &str,
        rows: Option<Range<usize>>,
        device: &Device,
    ) -> Result<Tensor, SerializeError> {
        let (Some(format), Some(mut shape)) = (self.format(name), self.shape(name)) else {
            return Err(SerializeError::format(&self.path, format!("there is no tensor `{name}`")));
        };
        let dtype = dtype_of(format).ok_or_else(|| unsupported(&self.path, name, format))?;
        if let Some(rows) = &rows {
            shape = shape_of_rows(&shape, rows.len());
        }
        if !device.has_values() {
            return Ok(Tensor::empty(&shape, dtype, device)?);
        }
        let bytes = self.bytes(name, rows).map_err(with_good)?;
        Ok(Tensor::from_bytes(&bytes, dtype, &shape, device)?)
    }

    /// A metadata entry of the header, by its key.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.texts.get(key).map(String::as_str)
    }
}

/// The shape of some rows of a tensor. A tensor without dimensions counts as one row.
pub(super) fn shape_of_rows(shape: &[usize], rows: usize) -> Vec<usize> {
    [rows].into_iter().chain(shape.iter().skip(1).copied()).collect()
}

/// # Errors
/// If a tensor does not have these rows.
pub(super) fn want_rows(name: &str, rows: &Range<usize>, count: usize) -> Result<(), SerializeError> {
    if rows.start <= rows.end && rows.end <= count {
        return Ok(());
    }
    let message = format!("`{name}` has {count} rows, not {} to {}", rows.start, rows.end);
    Err(Error::Argument { op: "rows", message }.into())
}

/// The error for a type that cannot be read.
pub(super) fn unsupported(path: &Path, name: &str, format: &str) -> SerializeError {
    let message = format!("`{name}` has the type {format}, which is not supported: convert it first");
    SerializeError::format(path, message)
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
            return Err(format!("`{name}` lies at bytes {start} to {end}, but must begin at {next}"));
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
        self.load(name, None, device)
    }

    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        self.load(name, Some(rows), device)
    }

    fn not_finite(&self) -> Vec<String> {
        self.not_finite.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}
