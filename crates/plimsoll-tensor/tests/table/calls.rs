//! Calls our operation for a case's operation name and arguments.

use plimsoll_tensor::{AttentionOptions, DType, PadMode, Result, Tensor};
use serde_json::Value;

/// Our result for a case: all outputs.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let all: Vec<&Tensor> = inputs.iter().collect();
    if let Some(outputs) = super::further::call(op, args, inputs) {
        return outputs;
    }
    if let Some(outputs) = super::linalg::call(op, args, inputs) {
        return outputs;
    }
    if let Some(output) = super::edges::call(op, args, inputs) {
        return output.map(|output| vec![output]);
    }
    if let Some(outputs) = super::training::call(op, args, inputs) {
        return outputs;
    }
    match op {
        "split" => inputs[0].split(size(&args["size"]), integer(&args["dim"])),
        "split_with_sizes" => inputs[0].split_with_sizes(&sizes(&args["sizes"]), integer(&args["dim"])),
        "chunk" => inputs[0].chunk(size(&args["chunks"]), integer(&args["dim"])),
        "tensor_split" => inputs[0].tensor_split(&sizes(&args["places"]), integer(&args["dim"])),
        "unique" => inputs[0].unique_counts().map(|(values, inverse, counts)| vec![values, inverse, counts]),
        "unbind" => inputs[0].unbind(integer(&args["dim"])),
        "meshgrid" => Tensor::meshgrid(&all),
        "sort" => inputs[0].sort(integer(&args["dim"]), args["descending"] == true).map(both),
        "topk" => {
            inputs[0].topk(size(&args["k"]), integer(&args["dim"]), args["largest"] == true, true).map(both)
        }
        "max_dim" => inputs[0].max_dim(integer(&args["dim"])).map(both),
        "max_keepdim" => inputs[0].max_keepdim(integer(&args["dim"])).map(both),
        "min_dim" => inputs[0].min_dim(integer(&args["dim"])).map(both),
        "min_keepdim" => inputs[0].min_keepdim(integer(&args["dim"])).map(both),
        _ => one(op, args, &all).map(|output| vec![output]),
    }
}

pub(crate) fn both((value, index): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![value, index]
}

/// The operations with one output.
fn one(op: &str, args: &Value, inputs: &[&Tensor]) -> Result<Tensor> {
    let x = inputs[0];
    let dim = || integer(&args["dim"]);
    let value = || number(&args["value"]);
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
        _ => reduced(op, args, inputs),
    }
}

/// Operations that reorder, compare and reduce.
fn reduced(op: &str, args: &Value, inputs: &[&Tensor]) -> Result<Tensor> {
    let x = inputs[0];
    let dim = || integer(&args["dim"]);
    let dims = || integers(&args["dims"]);
    let value = || number(&args["value"]);
    match op {
        "flip" => x.flip(&dims()),
        "roll" => x.roll(&integers(&args["shifts"]), &dims()),
        "pad" => {
            let mode = match args["mode"].as_str().unwrap() {
                "constant" => PadMode::Constant(1.5),
                "reflect" => PadMode::Reflect,
                "replicate" => PadMode::Replicate,
                _ => PadMode::Circular,
            };
            x.pad(&integers(&args["pads"]), mode)
        }
        "triu" => x.triu(integer(&args["diagonal"])),
        "tril" => x.tril(integer(&args["diagonal"])),
        "one_hot" => x.one_hot(args["classes"].as_u64().map(|n| n as usize)),
        "where" => x.where_cond(inputs[1], inputs[2]),
        "masked_fill" => x.masked_fill(inputs[1], value()),
        "masked_select" => x.masked_select(inputs[1]),
        "eq" => x.eq(inputs[1]),
        "ne" => x.ne(inputs[1]),
        "lt" => x.lt(inputs[1]),
        "le" => x.le(inputs[1]),
        "gt" => x.gt(inputs[1]),
        "ge" => x.ge(inputs[1]),
        "eq_scalar" => x.eq_scalar(value()),
        "ne_scalar" => x.ne_scalar(value()),
        "lt_scalar" => x.lt_scalar(value()),
        "le_scalar" => x.le_scalar(value()),
        "gt_scalar" => x.gt_scalar(value()),
        "ge_scalar" => x.ge_scalar(value()),
        "isnan" => x.isnan(),
        "isinf" => x.isinf(),
        "isfinite" => x.isfinite(),
        "logical_not" => x.logical_not(),
        "logical_and" => x.logical_and(inputs[1]),
        "logical_or" => x.logical_or(inputs[1]),
        "logical_xor" => x.logical_xor(inputs[1]),
        "all" => x.all(),
        "any" => x.any(),
        "count_nonzero" => x.count_nonzero(),
        "all_dims" => x.all_dims(&dims()),
        "any_dims" => x.any_dims(&dims()),
        "count_nonzero_dims" => x.count_nonzero_dims(&dims()),
        "max" => x.max(),
        "min" => x.min(),
        "amax" => x.amax(&dims()),
        "amin" => x.amin(&dims()),
        "amax_keepdim" => x.amax_keepdim(&dims()),
        "amin_keepdim" => x.amin_keepdim(&dims()),
        "argmin" => x.argmin(dim()),
        "prod" => x.prod(),
        "prod_dim" => x.prod_dim(dim()),
        "var" => x.var(number(&args["correction"])),
        "std" => x.std(number(&args["correction"])),
        "var_dims" => x.var_dims(&dims(), number(&args["correction"])),
        "std_dims" => x.std_dims(&dims(), number(&args["correction"])),
        "norm" => x.norm(number(&args["p"])),
        "norm_dims" => x.norm_dims(number(&args["p"]), &dims()),
        "argsort" => x.argsort(dim(), args["descending"] == true),
        "addmm" => x.addmm(inputs[1], inputs[2], number(&args["beta"]), number(&args["alpha"])),
        "bmm" => x.bmm(inputs[1]),
        "mv" => x.mv(inputs[1]),
        "dot" => x.dot(inputs[1]),
        "outer" => x.outer(inputs[1]),
        "einsum" => Tensor::einsum(args["equation"].as_str().unwrap(), inputs),
        "logsumexp" => x.logsumexp(&dims()),
        "cumsum" => x.cumsum(dim()),
        "cumprod" => x.cumprod(dim()),
        _ => functions(op, args, inputs),
    }
}

/// Mathematical functions, and indexing with several indices.
fn functions(op: &str, args: &Value, inputs: &[&Tensor]) -> Result<Tensor> {
    let x = inputs[0];
    let value = || number(&args["value"]);
    let index = |at: &str| {
        let mut indices: Vec<Option<&Tensor>> = vec![None; x.rank()];
        for (dim, index) in at.bytes().zip(&inputs[1..]) {
            indices[usize::from(dim - b'0')] = Some(*index);
        }
        let named = indices.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        x.index(&indices[..named])
    };
    match op {
        "abs" => x.abs(),
        "sign" => x.sign(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "asin" => x.asin(),
        "acos" => x.acos(),
        "atan" => x.atan(),
        "atan2" => x.atan2(inputs[1]),
        "expm1" => x.expm1(),
        "log1p" => x.log1p(),
        "log2" => x.log2(),
        "log10" => x.log10(),
        "rsqrt" => x.rsqrt(),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "round" => x.round(),
        "trunc" => x.trunc(),
        "selu" => x.selu(),
        "pow" => x.pow(inputs[1]),
        "pow_scalar" => match args["value"].as_i64() {
            Some(whole) => x.pow_scalar(whole),
            None => x.pow_scalar(value()),
        },
        "maximum" => x.maximum(inputs[1]),
        "minimum" => x.minimum(inputs[1]),
        "clamp" => x.clamp(number(&args["low"]), number(&args["high"])),
        "clamp_min" => x.clamp_min(value()),
        "clamp_max" => x.clamp_max(value()),
        "nonzero" => x.nonzero(),
        "bincount" => x.bincount(None, size(&args["min_length"])),
        "arange" => {
            let [start, end, step] = ["start", "end", "step"].map(|name| number(&args[name]));
            Tensor::arange_from(start, end, step, DType::F32, x.device())
        }
        "linspace" => {
            Tensor::linspace(number(&args["start"]), number(&args["end"]), size(&args["count"]), x.device())
        }
        "eye" => Tensor::eye(3, 4, x.device()),
        "attention" => {
            let options = AttentionOptions {
                attn_mask: inputs.get(3).copied(),
                is_causal: args["causal"] == true,
                ..AttentionOptions::default()
            };
            x.scaled_dot_product_attention(inputs[1], inputs[2], options)
        }
        _ => match op.strip_prefix("index ") {
            Some(at) => index(at),
            None => panic!("no call for the operation {op}"),
        },
    }
}

pub(crate) fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .or_else(|| value.as_str()?.parse().ok())
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

pub(crate) fn integer(value: &Value) -> isize {
    value.as_i64().unwrap_or_else(|| panic!("{value} is not an integer")) as isize
}

pub(crate) fn integers(values: &Value) -> Vec<isize> {
    values.as_array().unwrap().iter().map(integer).collect()
}

pub(crate) fn size(value: &Value) -> usize {
    integer(value) as usize
}

pub(crate) fn sizes(values: &Value) -> Vec<usize> {
    values.as_array().unwrap().iter().map(size).collect()
}
