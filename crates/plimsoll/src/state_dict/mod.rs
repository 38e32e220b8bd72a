//! Named tensors ([`StateDict`]), the sources that models are loaded from ([`TensorSource`]), and the errors
//! ([`SerializeError`]).

mod error;

pub use error::{IncompatibleKeys, Misshaped, SerializeError};

use std::collections::BTreeMap;
use std::ops::Range;

use plimsoll_tensor::{Device, Tensor, no_grad};

/// Something that tensors can be loaded from by name: a [`StateDict`] or a file.
pub trait TensorSource {
    /// The names, in order.
    fn names(&self) -> Vec<String>;

    /// The shape of a tensor; `None` if there is none of this name.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// A tensor, on a device.
    ///
    /// # Errors
    /// If the name is missing, the file is damaged, or memory runs out.
    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError>;

    /// Some rows of a tensor, on a device: those with these indices in its first dimension. A tensor without dimensions is one row.
    /// The shape of the result is that of the tensor, with the number of rows as its first size. Safetensors files read
    /// only these rows, if their checksums allow it.
    ///
    /// # Errors
    /// If the tensor does not have these rows; otherwise as for [`TensorSource::tensor`].
    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        let whole = self.tensor(name, device)?;
        let count = whole.shape().first().copied().unwrap_or(1);
        if rows.start > rows.end || rows.end > count {
            let message = format!("`{name}` has {count} rows, not {} to {}", rows.start, rows.end);
            return Err(plimsoll_tensor::Error::Argument { op: "rows", message }.into());
        }
        Ok(no_grad(|| {
            let whole = if whole.shape().is_empty() { whole.reshape(&[1])? } else { whole };
            whole.narrow(0, rows.start, rows.len())
        })?)
    }

    /// The tensors read so far whose values include NaN or infinity. Tensors that are already in memory are not checked.
    fn not_finite(&self) -> Vec<String> {
        Vec::new()
    }

    /// All tensors, on a device.
    ///
    /// # Errors
    /// The same errors as [`TensorSource::tensor`].
    fn state_dict(&self, device: &Device) -> Result<StateDict, SerializeError> {
        let names = self.names().into_iter();
        names.map(|name| self.tensor(&name, device).map(|tensor| (name, tensor))).collect()
    }
}

/// Whether names that do not match the model's are an error: PyTorch's `strict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strict {
    /// Such names are an error.
    Yes,
    /// Such names are listed. A shape that does not match is still an error, as in PyTorch.
    No,
}

/// Named tensors in order, like PyTorch's `state_dict()`. The tensors are the model's, not copies.
///
/// ```
/// use plimsoll::serialize::StateDict;
/// use plimsoll::{Device, Tensor};
/// let mut dict = StateDict::default();
/// dict.insert("w", Tensor::ones(&[2], &Device::cpu())?);
/// assert_eq!(dict.get("w").unwrap().shape(), [2]);
/// assert_eq!(dict.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["w"]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StateDict {
    entries: Vec<(String, Tensor)>,
    places: BTreeMap<String, usize>,
}

impl StateDict {
    /// Adds a tensor, or replaces the one of this name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        let name = name.into();
        match self.places.get(&name) {
            Some(&at) => self.entries[at].1 = tensor,
            None => {
                self.places.insert(name.clone(), self.entries.len());
                self.entries.push((name, tensor));
            }
        }
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&at| &self.entries[at].1)
    }

    /// Names and tensors, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<T: IntoIterator<Item = (String, Tensor)>>(entries: T) -> StateDict {
        let mut dict = StateDict::default();
        entries.into_iter().for_each(|(name, tensor)| dict.insert(name, tensor));
        dict
    }
}

impl TensorSource for StateDict {
    fn names(&self) -> Vec<String> {
        self.entries.iter().map(|(name, _)| name.clone()).collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.get(name).map(|tensor| tensor.shape().to_vec())
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        let Some(tensor) = self.get(name) else {
            let message = format!("the state dict has no `{name}`");
            return Err(plimsoll_tensor::Error::Argument { op: "state_dict", message }.into());
        };
        Ok(no_grad(|| tensor.detach().to_device(device))?)
    }
}

/// Copies the tensors of a source into those of a model, one tensor at a time. Types are converted. Returns the names
/// that do not match, which are an error with [`Strict::Yes`].
///
/// A name does not count as missing if the source has another name of the same tensor (tied weights).
///
/// # Errors
/// A list of all names and shapes that do not match, in which case nothing has changed; also if the file is damaged, or
/// memory runs out.
pub fn load_into(
    model: &StateDict,
    kind: &str,
    source: &dyn TensorSource,
    strict: Strict,
) -> Result<IncompatibleKeys, SerializeError> {
    let mut keys = IncompatibleKeys { kind: kind.to_owned(), ..IncompatibleKeys::default() };
    let mut found = Vec::new();
    let mut loaded = std::collections::BTreeSet::new();
    for (name, tensor) in model.iter() {
        match source.shape(name) {
            Some(shape) if shape == tensor.shape() => {
                loaded.insert(tensor.id());
                found.push((name, tensor));
            }
            Some(shape) => {
                let expected = tensor.shape().to_vec();
                keys.misshaped.push(Misshaped { name: name.to_owned(), found: shape, expected });
            }
            None => keys.missing.push(name.to_owned()),
        }
    }
    keys.missing.retain(|name| model.get(name).is_none_or(|tensor| !loaded.contains(&tensor.id())));
    keys.unexpected = source.names().into_iter().filter(|name| model.get(name).is_none()).collect();
    let differ = !keys.missing.is_empty() || !keys.unexpected.is_empty();
    if !keys.misshaped.is_empty() || (strict == Strict::Yes && differ) {
        return Err(SerializeError::Keys(Box::new(keys)));
    }
    for (name, tensor) in found {
        let value = source.tensor(name, tensor.device())?;
        no_grad(|| tensor.copy_(&value))?;
    }
    keys.not_finite = source.not_finite();
    keys.not_finite.retain(|name| model.get(name).is_some());
    Ok(keys)
}
