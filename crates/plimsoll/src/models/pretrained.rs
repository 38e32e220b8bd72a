//! Loading the weights of published models: [`load_pretrained`].

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::nn::Module;
use crate::serialize::{IncompatibleKeys, Renamed, SerializeError, Strict, TensorSource};

/// Tables that older files contain and that models now compute.
const COMPUTED: [&str; 4] = [".attn.bias", ".attn.masked_bias", ".position_ids", ".rotary_emb.inv_freq"];

/// Loads weights by name, as `from_pretrained` of `transformers` does. Names may have or lack the prefix of the inner model
/// (`transformer.`, `bert.`, `model.`); `gamma` and `beta` of normalizations are read as `weight` and `bias`; tables that models
/// now compute are skipped. Tensors that the model does not have, such as another head, are left out and listed as unexpected.
///
/// ```
/// use plimsoll::models::{Gpt2, Gpt2Config, load_pretrained};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::serialize::StateDict;
/// use plimsoll::Device;
/// let config = Gpt2Config::from_json(r#"{"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}"#)?;
/// let scope = Scope::new(&Device::cpu(), 1);
/// let published = Gpt2::new(&scope.at("published"), config.clone())?;
/// // In the file of the Hub's `gpt2` there is no `transformer.`.
/// let file: StateDict = published.state_dict().iter().filter_map(|(name, tensor)| {
///     Some((name.strip_prefix("transformer.")?.to_owned(), tensor.clone()))
/// }).collect();
/// let model = Gpt2::new(&scope, config)?;
/// let keys = load_pretrained(&model, &file)?;
/// assert!(keys.missing.is_empty() && keys.unexpected.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If a tensor of the model is missing or has a different shape, in which case nothing has changed; also if the file is
/// damaged, or memory runs out.
pub fn load_pretrained(
    model: &dyn Module,
    source: &dyn TensorSource,
) -> Result<IncompatibleKeys, SerializeError> {
    let state = model.state_dict();
    let inner: BTreeSet<&str> = state.iter().filter_map(|(name, _)| Some(name.split_once('.')?.0)).collect();
    let has = |name: &String| state.get(name).is_some();
    let place = |name: &str| {
        let name = match name.rsplit_once("LayerNorm.") {
            Some((before, "gamma")) => format!("{before}LayerNorm.weight"),
            Some((before, "beta")) => format!("{before}LayerNorm.bias"),
            _ => name.to_owned(),
        };
        let bare = name.split_once('.').map(|(_, rest)| rest.to_owned());
        let under = inner.iter().map(|inner| format!("{inner}.{name}"));
        std::iter::once(name.clone()).chain(under).chain(bare).find(has)
    };
    let unexpected = RefCell::new(Vec::new());
    let renamed = Renamed::new(source, |name| {
        let place = place(name);
        let is_computed = COMPUTED.iter().any(|table| name.ends_with(table));
        if place.is_none() && !is_computed {
            unexpected.borrow_mut().push(name.to_owned());
        }
        place
    })?;
    let unexpected = unexpected.take();
    match model.load_state_dict(&renamed, Strict::Yes) {
        Ok(keys) => Ok(IncompatibleKeys { unexpected, ..keys }),
        Err(SerializeError::Keys(keys)) => {
            Err(SerializeError::Keys(Box::new(IncompatibleKeys { unexpected, ..*keys })))
        }
        Err(other) => Err(other),
    }
}
