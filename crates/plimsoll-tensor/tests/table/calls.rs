//! From a case's operation and arguments to a call of ours.

use plimsoll_tensor::{Result, Tensor};
use serde_json::Value;

/// Our answer to one case: all outputs.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let all: Vec<&Tensor> = inputs.iter().collect();
    match op {
        "split" => inputs[0].split(size(&args["size"]), integer(&args["dim"])),
        "split_with_sizes" => inputs[0].split_with_sizes(&sizes(&args["sizes"]), integer(&args["dim"])),
        "chunk" => inputs[0].chunk(size(&args["chunks"]), integer(&args["dim"])),
        "unbind" => inputs[0].unbind(integer(&args["dim"])),
        "meshgrid" => Tensor::meshgrid(&all),
        _ => one(op, args, &all).map(|output| vec![output]),
    }
}

/// The operations with one output.
fn one(op: &str, args: &Value, inputs: &[&Tensor]) -> Result<Tensor> {
    let x = inputs[0];
    let dim = || integer(&args["dim"]);
    let value = || args["value"].as_f64().unwrap();
    match op {
        "slice" => x.slice(dim(), integer(&args["start"])..integer(&args["end"]), size(&args["step"])),
        "select" => x.select(dim(), integer(&args["index"])),
        "diagonal" => x.diagonal(integer(&args["offset"]), integer(&args["dim1"]), integer(&args["dim2"])),
        "unfold" => x.unfold(integer(&args["dimension"]), size(&args["size"]), size(&args["step"])),
        "one of a split" => Ok(x.split(2, 1)?.remove(1)),
        "movedim" => x.movedim(&integers(&args["from"]), &integers(&args["to"])),
        "unflatten" => x.contiguous()?.unflatten(dim(), integers(&args["sizes"]).as_slice()),
        "squeeze_dims" => x.squeeze_dims(&[0, 1, -1]),
        "squeeze_all" => x.squeeze_all(),
        "unsqueeze_dims" => x.unsqueeze_dims(&[0, 2]),
        "cat" => Tensor::cat(inputs, dim()),
        "stack" => Tensor::stack(inputs, dim()),
        "repeat" => x.repeat(&sizes(&args["times"])),
        "tile" => x.tile(&sizes(&args["times"])),
        "repeat_interleave" => x.repeat_interleave(size(&args["times"]), dim()),
        "repeat_interleave_each" => x.repeat_interleave_each(inputs[1], dim()),
        "gather" => x.gather(dim(), inputs[1]),
        "take_along_dim" => x.take_along_dim(inputs[1], dim()),
        "scatter" if inputs.len() == 2 => x.scatter_value(dim(), inputs[1], value()),
        "scatter" => x.scatter(dim(), inputs[1], inputs[2]),
        "scatter_add" => x.scatter_add(dim(), inputs[1], inputs[2]),
        "index_select" => x.index_select(dim(), inputs[1]),
        "index_add" => x.index_add(dim(), inputs[1], inputs[2]),
        "index_copy" => x.index_copy(dim(), inputs[1], inputs[2]),
        "index_fill" => x.index_fill(dim(), inputs[1], value()),
        "embedding" => x.embedding(inputs[1], args["padding_idx"].as_i64().map(|row| row as isize)),
        _ => panic!("no call for the operation {op}"),
    }
}

fn integer(value: &Value) -> isize {
    value.as_i64().unwrap_or_else(|| panic!("{value} is not an integer")) as isize
}

fn integers(values: &Value) -> Vec<isize> {
    values.as_array().unwrap().iter().map(integer).collect()
}

fn size(value: &Value) -> usize {
    integer(value) as usize
}

fn sizes(values: &Value) -> Vec<usize> {
    values.as_array().unwrap().iter().map(size).collect()
}
