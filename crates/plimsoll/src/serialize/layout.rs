//! Writing safetensors files, one tensor at a time: [`save`] and [`Layout`].
//!
//! Data is written tensor by tensor, so no second copy of a model is needed in memory.

use std::collections::BTreeMap;
use std::io::{Seek, Write};
use std::path::Path;

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{DType, Tensor};
use serde_json::{Map, Value, json};

use super::atomic::{self, Written};
use super::checksum::{self, Blocks, Sealed};
use crate::nn::check_listed;
use crate::state_dict::{SerializeError, StateDict};

/// The name of a type in safetensors.
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
pub(super) fn dtype_of(format: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| format_of(dtype) == Some(format))
}

/// A tensor to write. Its bytes are read when it is written.
pub(super) struct Piece<'a> {
    pub(super) name: &'a str,
    /// Its type, by safetensors' name.
    pub(super) format: String,
    pub(super) shape: Vec<usize>,
    /// The bytes of all elements.
    pub(super) bytes: usize,
    pub(super) read: Box<dyn Fn() -> Result<Vec<u8>, SerializeError> + 'a>,
}

impl<'a> Piece<'a> {
    /// A tensor in memory.
    pub(super) fn of(name: &'a str, tensor: &'a Tensor) -> Piece<'a> {
        let Some(format) = format_of(tensor.dtype()) else { unreachable!("every type has a name") };
        Piece {
            name,
            format: format.to_owned(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.numel() * tensor.dtype().size(),
            read: Box::new(|| Ok(tensor.to_bytes()?)),
        }
    }
}

/// The layout of the tensors to write: the widest types come first, so that all are aligned.
pub(super) struct Layout<'a> {
    header: Map<String, Value>,
    order: Vec<Piece<'a>>,
    /// Whether parts of large tensors have their own checksums, so that parts of the file can be read.
    has_blocks: bool,
}

impl<'a> Layout<'a> {
    /// Lays out tensors, each once. A tensor with several names is written under the first; the metadata lists the others, as
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
                    kept.push(Piece::of(name, tensor));
                }
            }
        }
        Layout::of(kept, texts, false)
    }

    /// Lays out these pieces. With `has_blocks`, parts of them can be read.
    pub(super) fn of(
        mut pieces: Vec<Piece<'a>>,
        mut texts: BTreeMap<String, String>,
        has_blocks: bool,
    ) -> Layout<'a> {
        pieces.sort_by_key(|piece| {
            let width = dtype_of(&piece.format).map_or(0, DType::size);
            std::cmp::Reverse(width)
        });
        texts.insert("format".to_owned(), "pt".to_owned());
        texts.extend(checksum::placeholders(pieces.iter().map(|piece| piece.name)));
        if has_blocks {
            let blocks = Blocks::placeholders(pieces.iter().map(|piece| (piece.name, piece.bytes)));
            texts.insert(checksum::BLOCKS.to_owned(), blocks.text());
        }
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!(texts));
        let mut end = 0;
        for Piece { name, format, shape, bytes, .. } in &pieces {
            let start = end;
            end += bytes;
            let entry = json!({ "dtype": format, "shape": shape, "data_offsets": [start, end] });
            header.insert((*name).to_owned(), entry);
        }
        Layout { header, order: pieces, has_blocks }
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

    /// Writes the header and the data, and then the header again, because the checksums are known only then.
    pub(super) fn write(
        mut self,
        path: &Path,
        out: &mut (impl Write + Seek),
    ) -> Result<Sealed, SerializeError> {
        let failed = |source| SerializeError::io(path, source);
        out.write_all(&self.beginning()).map_err(failed)?;
        let (mut sums, mut blocks, mut written) = (BTreeMap::new(), Blocks::default(), 0);
        for Piece { name, read, .. } in &self.order {
            let bytes = read()?;
            out.write_all(&bytes).map_err(failed)?;
            sums.insert(*name, checksum::of(&bytes));
            blocks.add(name, &bytes);
            written += bytes.len();
        }
        let sums = sums.iter().map(|(name, sum)| (*name, sum.as_str())).collect();
        let metadata = &mut self.header["__metadata__"];
        metadata[checksum::TENSORS] = json!(checksum::text(&sums));
        if self.has_blocks {
            metadata[checksum::BLOCKS] = json!(blocks.text());
        }
        let mut beginning = self.beginning();
        checksum::seal(&mut beginning);
        out.rewind().map_err(failed)?;
        out.write_all(&beginning).map_err(failed)?;
        let bytes = (beginning.len() + written) as u64;
        Ok(Sealed { bytes, xxh3: checksum::of(&beginning) })
    }

    /// Reads everything that the file would contain.
    fn read_all(&self) -> Result<(), SerializeError> {
        self.order.iter().try_for_each(|piece| (piece.read)().map(drop))
    }

    /// Writes a file that will replace `path`.
    pub(super) fn write_file(self, path: &Path) -> Result<(Written, Sealed), SerializeError> {
        let mut sealed = None;
        let written = atomic::write(path, |out| self.write(path, out).map(|it| sealed = Some(it)))?;
        match sealed {
            Some(sealed) => Ok((written, sealed)),
            None => unreachable!("a file was written"),
        }
    }
}

/// Writes a state dict as a safetensors file, each tensor once. The file is replaced atomically.
///
/// # Errors
/// If the disk is full, the folder does not exist, or tensors have no values. The previous save is unchanged.
#[track_caller]
pub fn save(dict: &StateDict, path: impl AsRef<Path>) -> Result<(), SerializeError> {
    let _entry = Entry::here();
    check_listed("save", dict.iter().map(|(_, tensor)| tensor))?;
    save_as(dict.iter(), BTreeMap::new(), path.as_ref())
}

/// Whether these tensors have no values. A rehearsal reads zeros in their place, and must not leave a file of them.
pub(super) fn is_rehearsed<'a>(mut tensors: impl Iterator<Item = &'a Tensor>) -> bool {
    tensors.any(|tensor| !tensor.device().has_values())
}

/// [`save`] with metadata in the header. In a rehearsal, the tensors are read and no file is written.
pub(super) fn save_as<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    texts: BTreeMap<String, String>,
    path: &Path,
) -> Result<(), SerializeError> {
    let tensors: Vec<_> = tensors.collect();
    if is_rehearsed(tensors.iter().map(|(_, tensor)| *tensor)) {
        return Layout::new(tensors.into_iter(), texts).read_all();
    }
    write_as(tensors.into_iter(), texts, path)?.replace_target()
}

/// Like [`save_as`], but does not replace the target file yet.
pub(super) fn write_as<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    texts: BTreeMap<String, String>,
    path: &Path,
) -> Result<Written, SerializeError> {
    Ok(Layout::new(tensors, texts).write_file(path)?.0)
}
