//! Saving and loading: state dicts, safetensors, PyTorch's `.pt` files, training checkpoints.
//!
//! A [`StateDict`] maps names to tensors; [`Module::state_dict`](crate::nn::Module::state_dict) makes one. [`save`] writes it as
//! safetensors, [`save_sharded`] in Hugging Face's layout; [`open`] reads either, and PyTorch's zip files (`pt/`), whose code is
//! never executed. Anything that can be loaded from is a [`TensorSource`]; [`Renamed`] changes a source's names. A [`Checkpoint`]
//! has a model and everything else that training resumes from; a [`DistributedCheckpoint`] is the same, saved by several ranks
//! together (`distributed/`). Either can be saved by a thread while training goes on: [`AsyncSave`], with copies of the tensors
//! (`staging.rs`). Files have checksums (`checksum.rs`), so a damaged tensor is an error. Files are replaced atomically
//! (`atomic.rs`).

mod async_save;
mod atomic;
mod checkpoint;
mod checksum;
mod distributed;
mod good;
mod layout;
mod lock;
mod pt;
mod renamed;
mod safetensors;
mod sharded;
mod staging;

pub use crate::state_dict::{
    IncompatibleKeys, Misshaped, SerializeError, StateDict, Strict, TensorSource, load_into,
};
pub use async_save::AsyncSave;
pub use checkpoint::Checkpoint;
pub use distributed::{DistributedCheckpoint, DistributedFiles, check_shared, checkpoints_in};
pub(crate) use distributed::{NamedGroup, TensorRows, state_name};
pub use layout::save;
pub use lock::FolderLock;
pub use pt::PtFile;
pub use renamed::Renamed;
pub use safetensors::SafetensorsFile;
pub use sharded::{ShardedFiles, save_sharded};

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Opens a file or folder of tensors: safetensors, a folder or index of sharded safetensors, the model of a checkpoint of several
/// ranks, or a `.pt` file. The format is detected from the content, not from the name. In a folder without safetensors,
/// `pytorch_model.bin` is opened. Only the list of tensors is read.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::serialize::{self, Strict};
/// use plimsoll::Device;
/// let model = Sequential::new(&Scope::new(&Device::cpu(), 1)).add("fc", |s| Linear::new(s, 4, 2))?;
/// let path = std::env::temp_dir().join(format!("plimsoll-open-{}.safetensors", std::process::id()));
/// serialize::save(&model.state_dict(), &path)?;
/// let other = Sequential::new(&Scope::new(&Device::cpu(), 2)).add("fc", |s| Linear::new(s, 4, 2))?;
/// other.load_state_dict(serialize::open(&path)?.as_ref(), Strict::Yes)?;
/// assert_eq!(other.parameters()[0].to_vec::<f32>()?, model.parameters()[0].to_vec::<f32>()?);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the file is missing, damaged, or in none of these formats.
pub fn open(path: impl AsRef<Path>) -> Result<Box<dyn TensorSource>, SerializeError> {
    let path = path.as_ref();
    let pickled = path.join("pytorch_model.bin");
    let path = if !ShardedFiles::is_in(path) && pickled.is_file() { &pickled } else { path };
    let is_index = path.to_string_lossy().ends_with(".json");
    if path.is_dir() && !ShardedFiles::is_in(path) && DistributedFiles::is_in(path) {
        return Ok(Box::new(DistributedFiles::open(path)?));
    }
    if path.is_dir() || is_index {
        return Ok(Box::new(ShardedFiles::open(path)?));
    }
    let mut first = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read(&mut first));
    let read = read.map_err(|source| SerializeError::io(path, source))?;
    match &first[..read] {
        [b'P', b'K', ..] => Ok(Box::new(PtFile::open(path)?)),
        // The start of a pickle, of protocol 2 or later or of an older one: PyTorch saved such files before 1.6.
        [0x80, 0x02..=0x05, b'c' | b'}' | b']' | b'(' | b'\x8a', ..] => Err(pt::legacy(path)),
        [0x80, 0x04..=0x05, 0x95, _] => Err(pt::pickle(path)),
        _ => Ok(Box::new(SafetensorsFile::open(path)?)),
    }
}
