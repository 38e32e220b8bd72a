//! Tensors under other names: [`Renamed`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use plimsoll_tensor::{Device, Error, Tensor};

use crate::state_dict::{SerializeError, TensorSource};

/// A source in which tensors are renamed or left out, for a state dict whose names differ from the model's.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::serialize::{Renamed, Strict};
/// use plimsoll::Device;
/// let scope = Scope::new(&Device::cpu(), 1);
/// let trained = Sequential::new(&scope.at("module")).add("fc", |s| Linear::new(s, 4, 2))?;
/// // `DistributedDataParallel` saves under `module.`; `fc.weight` is wanted.
/// let saved: plimsoll::serialize::StateDict =
///     trained.state_dict().iter().map(|(name, tensor)| (format!("module.{name}"), tensor.clone())).collect();
/// let model = Sequential::new(&scope).add("fc", |s| Linear::new(s, 4, 2))?;
/// let renamed = Renamed::new(&saved, |name| name.strip_prefix("module.").map(str::to_owned))?;
/// model.load_state_dict(&renamed, Strict::Yes)?;
/// assert_eq!(model.parameters()[0].to_vec::<f32>()?, trained.parameters()[0].to_vec::<f32>()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Renamed<'a> {
    source: &'a dyn TensorSource,
    names: Vec<String>,
    /// The source's name of each tensor.
    old: BTreeMap<String, String>,
}

impl<'a> Renamed<'a> {
    /// The tensors of `source` under the names that `rename` gives them; those for which it gives `None` are left out.
    ///
    /// # Errors
    /// If two tensors have the same name.
    pub fn new(
        source: &'a dyn TensorSource,
        rename: impl Fn(&str) -> Option<String>,
    ) -> Result<Renamed<'a>, SerializeError> {
        let (mut names, mut old) = (Vec::new(), BTreeMap::new());
        for name in source.names() {
            let Some(new) = rename(&name) else { continue };
            if let Some(other) = old.insert(new.clone(), name.clone()) {
                let message = format!("`{other}` and `{name}` would both be `{new}`");
                return Err(Error::Argument { op: "renamed", message }.into());
            }
            names.push(new);
        }
        Ok(Renamed { source, names, old })
    }
}

impl TensorSource for Renamed<'_> {
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.source.shape(self.old.get(name)?)
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor, SerializeError> {
        // The source reports a missing name.
        self.source.tensor(self.old.get(name).map_or(name, String::as_str), device)
    }

    fn rows(&self, name: &str, rows: Range<usize>, device: &Device) -> Result<Tensor, SerializeError> {
        self.source.rows(self.old.get(name).map_or(name, String::as_str), rows, device)
    }

    fn not_finite(&self) -> Vec<String> {
        let old: BTreeSet<String> = self.source.not_finite().into_iter().collect();
        self.names.iter().filter(|name| old.contains(&self.old[*name])).cloned().collect()
    }
}
