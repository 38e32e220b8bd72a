//! The state dict of an optimizer in a `.pt` file: [`PtFile::optimizer_state`].

use std::collections::BTreeMap;

use plimsoll_tensor::{DType, Device};
use serde_json::Value;

use super::PtFile;
use crate::optim::{GroupState, OptimizerState};
use crate::state_dict::{SerializeError, TensorSource};

/// The dictionary in which bitsandbytes hides the tensors of a parameter's state from FSDP.
const WRAPPED: &str = "__bnb_optimizer_quant_state__.";

impl PtFile {
    /// The state of an optimizer from a file of `torch.save(optimizer.state_dict(), path)`, by PyTorch or bitsandbytes, with its
    /// tensors on `device`. If it is a part of the file, select that with [`PtFile::part`].
    ///
    /// ```no_run
    /// use plimsoll::optim::{AdamW8bit, AdamW8bitOptions, Optimizer};
    /// use plimsoll::serialize::PtFile;
    /// # let model = plimsoll::nn::Identity;
    /// # use plimsoll::nn::Module;
    /// // torch.save({"model": model.state_dict(), "optimizer": adamw.state_dict()}, "checkpoint.pt")
    /// let mut adamw = AdamW8bit::new(model.parameters(), AdamW8bitOptions::default());
    /// let saved = PtFile::open("checkpoint.pt")?.part("optimizer");
    /// adamw.load_state_dict(&saved.optimizer_state(&plimsoll::Device::cpu())?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The file has no `param_groups`, or cannot be read; out of memory.
    pub fn optimizer_state(&self, device: &Device) -> Result<OptimizerState, SerializeError> {
        let mut state = OptimizerState::default();
        for (name, value) in &self.numbers {
            let parts: Vec<&str> = name.split('.').collect();
            match parts[..] {
                ["param_groups", group, ref option @ ..] => {
                    let Ok(group) = group.parse::<usize>() else { continue };
                    if group < self.numbers.len() {
                        let groups = state.param_groups.len().max(group + 1);
                        state.param_groups.resize_with(groups, GroupState::default);
                        add_option(&mut state.param_groups[group], option, value, self.numbers.len());
                    }
                }
                ["state", number, "step"] => {
                    if let Ok(number) = number.parse::<usize>() {
                        let whole = |step: &f64| step.fract() == 0.0 && (0.0..9e15).contains(step);
                        let step =
                            value.as_u64().or_else(|| value.as_f64().filter(whole).map(|step| step as u64));
                        let step = step.ok_or_else(|| {
                            let message =
                                format!("the step of parameter {number} is {value}, not a whole number");
                            SerializeError::format(&self.path, message)
                        })?;
                        state.state.entry(number).or_default().step = Some(step);
                    }
                }
                _ => {}
            }
        }
        if state.param_groups.is_empty() {
            let message = "no `param_groups`: not the state dict of an optimizer. If it is a part of the file, select that";
            return Err(SerializeError::format(&self.path, message));
        }
        let mut read: BTreeMap<&str, _> = BTreeMap::new();
        for name in &self.order {
            let Some((number, key)) = name.strip_prefix("state.").and_then(|rest| rest.split_once('.'))
            else {
                continue;
            };
            let (Ok(number), key) = (number.parse(), key.strip_prefix(WRAPPED).unwrap_or(key)) else {
                continue;
            };
            let of_parameter = state.state.entry(number).or_default();
            if key == "step" {
                let step = self.tensor(name, &Device::cpu())?.to_dtype(DType::F64)?.item::<f64>()?;
                of_parameter.step = Some(step as u64);
                continue;
            }
            // Parameters share the tensors that they share in the file, such as the quantization maps.
            let storage = &*self.entries[name].storage;
            let is_shared = key.starts_with("qmap");
            let tensor = match read.get(storage).filter(|_| is_shared) {
                Some(tensor) => Clone::clone(tensor),
                None => self.tensor(name, device)?,
            };
            read.insert(storage, tensor.clone());
            of_parameter.tensors.insert(key.to_owned(), tensor);
        }
        Ok(state)
    }
}

/// Adds a number of a group: an option, one of the numbers of an option, or the number of a parameter. They come in the order of
/// their names, in which 10 is before 2. A group has fewer than `most` parameters.
fn add_option(group: &mut GroupState, option: &[&str], value: &Value, most: usize) {
    match *option {
        ["params", at] => {
            let (Ok(at), Some(number)) = (at.parse::<usize>(), value.as_u64()) else { return };
            if at >= most {
                return;
            }
            group.params.resize(group.params.len().max(at + 1), 0);
            group.params[at] = number as usize;
        }
        [name] => drop(group.options.insert(name.to_owned(), value.clone())),
        [name, _] => {
            let list = group.options.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(value.clone());
            }
        }
        _ => {}
    }
}
