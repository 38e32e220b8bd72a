//! Which parameters form a unit: [`plan`].

use plimsoll_tensor::{DType, Error, Result, Tensor};

use super::NAME;
use super::layout::{Layout, Matrix};
use crate::parallel::norm::row_len;

/// A block of more bytes is divided into several units.
const UNIT_BYTES: usize = 256 << 20;
/// A unit is split into units of parameters with equal row lengths, each of which is gathered separately, only if this saves
/// at least this fraction of the unit.
const SAVED: f64 = 0.05;

/// The parameters of a unit, by their indices in the model.
#[derive(Debug)]
pub(super) struct UnitPlan {
    pub(super) name: String,
    /// Whether the unit contains the parameters that belong to no block.
    pub(super) is_root: bool,
    pub(super) members: Vec<usize>,
    pub(super) layout: Layout,
}

/// The properties that all parameters of a unit have in common.
#[derive(PartialEq)]
struct Kind<'a> {
    /// The name of the block; empty for the root.
    block: &'a str,
    dtype: DType,
    is_trained: bool,
}

/// Divides a model into units. `blocks` are names of modules; if there are none, the blocks are the modules whose name
/// is a number.
///
/// # Errors
/// If, for one of the names in `blocks`, no parameter's name begins with it.
pub(super) fn plan(
    parameters: &[(String, Tensor)],
    blocks: &[String],
    ranks: usize,
) -> Result<Vec<UnitPlan>> {
    let is_in = |name: &str, block: &str| name.strip_prefix(block).is_some_and(|rest| rest.starts_with('.'));
    if let Some(unknown) = blocks.iter().find(|block| !parameters.iter().any(|(name, _)| is_in(name, block)))
    {
        let message = format!("the unit `{unknown}` has no parameters: give names of modules, such as `h.0`");
        return Err(Error::argument(NAME, message));
    }
    let block_of = |name: &'_ str| -> usize {
        if blocks.is_empty() {
            return numbered(name);
        }
        let longest = blocks.iter().filter(|block| is_in(name, block)).map(String::len).max();
        longest.unwrap_or(0)
    };
    let mut units: Vec<(Kind<'_>, Vec<usize>)> = Vec::new();
    for (i, (name, tensor)) in parameters.iter().enumerate() {
        let block = &name[..block_of(name)];
        let kind = Kind { block, dtype: tensor.dtype(), is_trained: tensor.requires_grad() };
        match units.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, members)) => members.push(i),
            None => units.push((kind, vec![i])),
        }
    }
    let mut plans = Vec::new();
    for (kind, members) in units {
        let parts: Vec<UnitPlan> = by_bytes(members, parameters)
            .into_iter()
            .flat_map(|members| laid_out(members, parameters, ranks))
            .map(|(members, layout)| {
                let is_root = kind.block.is_empty();
                UnitPlan {
                    name: if is_root { "root" } else { kind.block }.to_owned(),
                    is_root,
                    members,
                    layout,
                }
            })
            .collect();
        plans.extend(parts);
    }
    number_equal_names(&mut plans);
    Ok(plans)
}

/// The length of the part of a parameter's name up to the first number: 3 for `h.0.attn.weight`. 0 if it has none.
fn numbered(name: &str) -> usize {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return end;
        }
        end += 1;
    }
    0
}

/// Divides a list of parameters into lists of at most [`UNIT_BYTES`] each, without splitting a parameter.
fn by_bytes(members: Vec<usize>, parameters: &[(String, Tensor)]) -> Vec<Vec<usize>> {
    let (mut lists, mut bytes) = (vec![Vec::new()], 0);
    for member in members {
        let tensor = &parameters[member].1;
        let own = tensor.numel() * tensor.dtype().size();
        match lists.last_mut() {
            Some(list) if list.is_empty() || bytes + own <= UNIT_BYTES => {
                list.push(member);
                bytes += own;
            }
            _ => {
                lists.push(vec![member]);
                bytes = own;
            }
        }
    }
    lists
}

/// Lays out a unit. If that needs much padding, tries one unit for each row length.
fn laid_out(members: Vec<usize>, parameters: &[(String, Tensor)], ranks: usize) -> Vec<(Vec<usize>, Layout)> {
    let layout_of = |members: &[usize]| {
        let matrices: Vec<Matrix> = members.iter().map(|member| matrix(&parameters[*member].1)).collect();
        Layout::of(&matrices, ranks, parameters[members[0]].1.dtype().size())
    };
    let whole = layout_of(&members);
    let worth = SAVED * whole.len() as f64;
    if (whole.padding() as f64) < worth {
        return vec![(members, whole)];
    }
    let mut by_rows: Vec<(usize, Vec<usize>)> = Vec::new();
    for &member in &members {
        let len = row_len(parameters[member].1.shape());
        match by_rows.iter_mut().find(|(other, _)| *other == len) {
            Some((_, list)) => list.push(member),
            None => by_rows.push((len, vec![member])),
        }
    }
    let apart: Vec<(Vec<usize>, Layout)> = by_rows
        .into_iter()
        .map(|(_, members)| {
            let layout = layout_of(&members);
            (members, layout)
        })
        .collect();
    let len: usize = apart.iter().map(|(_, layout)| layout.len()).sum();
    if len as f64 <= whole.len() as f64 - worth { apart } else { vec![(members, whole)] }
}

/// A parameter as a matrix of rows. A scalar is one row of one element.
pub(super) fn matrix(parameter: &Tensor) -> Matrix {
    let shape = parameter.shape();
    Matrix { rows: shape.first().copied().unwrap_or(1), row_len: row_len(shape) }
}

/// Numbers units that would otherwise have the same name.
fn number_equal_names(plans: &mut [UnitPlan]) {
    for i in 0..plans.len() {
        let name = plans[i].name.clone();
        if plans[i + 1..].iter().any(|plan| plan.name == name) {
            let same = plans.iter_mut().filter(|plan| plan.name == name);
            same.enumerate().for_each(|(number, plan)| plan.name = format!("{name} ({number})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_tensor::Device;

    use super::*;

    fn plans(names: &[&str], blocks: &[&str]) -> Vec<(String, Vec<usize>)> {
        let device = Device::cpu();
        let parameter = |name: &&str| {
            let tensor = Tensor::zeros(&[4], &device).unwrap();
            tensor.requires_grad_(!name.contains("frozen")).unwrap();
            ((*name).to_owned(), tensor)
        };
        let parameters: Vec<(String, Tensor)> = names.iter().map(parameter).collect();
        let blocks: Vec<String> = blocks.iter().map(|block| (*block).to_owned()).collect();
        let plans = plan(&parameters, &blocks, 2).unwrap();
        plans.into_iter().map(|plan| (plan.name, plan.members)).collect()
    }

    fn unit(name: &str, members: &[usize]) -> (String, Vec<usize>) {
        (name.to_owned(), members.to_vec())
    }

    #[test]
    fn units_are_numbered_modules_and_the_rest() {
        let names = ["wte.weight", "h.0.ln.weight", "h.0.fc.weight", "h.10.ln.weight", "ln_f.weight"];
        assert_eq!(plans(&names, &[]), [unit("root", &[0, 4]), unit("h.0", &[1, 2]), unit("h.10", &[3])]);
        assert_eq!(plans(&names, &["h.0.fc"]), [unit("root", &[0, 1, 3, 4]), unit("h.0.fc", &[2])]);
        assert_eq!(plans(&["h.frozen.w", "h.w"], &["h"]), [unit("h (0)", &[0]), unit("h (1)", &[1])]);
    }

    #[test]
    fn a_unit_without_parameters_is_an_error() {
        let parameters = [("fc.weight".to_owned(), Tensor::zeros(&[4], &Device::cpu()).unwrap())];
        let error = plan(&parameters, &["f".to_owned()], 2).unwrap_err().to_string();
        assert_eq!(
            error,
            "fully_shard: the unit `f` has no parameters: give names of modules, such as `h.0`"
        );
    }
}
