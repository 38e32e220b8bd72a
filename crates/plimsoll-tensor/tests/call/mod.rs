//! Calls our operation for a case's operation name and arguments.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::{Conv2dOptions, DType, MaxPool2dOptions, Result, Tensor};
use serde_json::Value;

/// Our result for a case. In-place operations return their first tensor.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Result<Tensor> {
    let x = &inputs[0];
    let dim = || integer(&args["dim"]) as isize;
    let dims = || integers(&args["dims"]).into_iter().map(|d| d as isize).collect::<Vec<_>>();
    let value = || number(&args["value"]);
    match op {
        "add" => x + &inputs[1],
        "sub" => x - &inputs[1],
        "mul" => x * &inputs[1],
        "div" => x / &inputs[1],
        "add_scalar" => x + value(),
        "sub_scalar" => x - value(),
        "mul_scalar" => x * value(),
        "div_scalar" => x / value(),
        "add_whole" => x + value() as i64,
        "mul_whole" => x * value() as i64,
        "eq" => x.eq(&inputs[1]),
        "ne" => x.ne(&inputs[1]),
        "lt" => x.lt(&inputs[1]),
        "le" => x.le(&inputs[1]),
        "gt" => x.gt(&inputs[1]),
        "ge" => x.ge(&inputs[1]),
        "affine" => x.affine(number(&args["mul"]), number(&args["add"])),
        "neg" => -x,
        "relu" => x.relu(),
        "exp" => x.exp(),
        "log" => x.log(),
        "sqrt" => x.sqrt(),
        "square" => x.square(),
        "tanh" => x.tanh(),
        "sigmoid" => x.sigmoid(),
        "gelu" => x.gelu(),
        "erf" => x.erf(),
        "reciprocal" => x.reciprocal(),
        "layer_norm" => x.layer_norm(inputs.get(1), inputs.get(2), 1e-5),
        "matmul" => x.matmul(&inputs[1]),
        "linear" => x.linear(&inputs[1], inputs.get(2)),
        "addmm" => x.addmm(&inputs[1], &inputs[2], number(&args["beta"]), number(&args["alpha"])),
        "conv2d" => {
            let padding = pair(&args["padding"]).into();
            let options = Conv2dOptions { stride: pair(&args["stride"]), padding, ..Default::default() };
            x.conv2d(&inputs[1], inputs.get(2), options)
        }
        "max_pool2d" => x.max_pool2d(MaxPool2dOptions {
            stride: pair(&args["stride"]),
            padding: pair(&args["padding"]),
            ..MaxPool2dOptions::new(pair(&args["kernel_size"]))
        }),
        "softmax" => x.softmax(dim()),
        "log_softmax" => x.log_softmax(dim()),
        "nll_loss" => x.nll_loss(&inputs[1], reduction(args)),
        "cross_entropy" => x.cross_entropy(&inputs[1]),
        "mse_loss" => x.mse_loss_with(&inputs[1], reduction(args)),
        "sum" => x.sum(),
        "sum_dims" => x.sum_dims(&dims()),
        "sum_keepdim" => x.sum_keepdim(&dims()),
        "mean" => x.mean(),
        "mean_dims" => x.mean_dims(&dims()),
        "mean_keepdim" => x.mean_keepdim(&dims()),
        "argmax" => x.argmax(dim()),
        "reshape" => x.reshape(integers(&args["shape"]).as_slice()),
        "flatten" => x.flatten(integer(&args["start"]) as isize, integer(&args["end"]) as isize),
        "transpose" => x.transpose(integer(&args["a"]) as isize, integer(&args["b"]) as isize),
        "permute" => x.permute(&dims()),
        "narrow" => x.narrow(dim(), integer(&args["start"]) as usize, integer(&args["len"]) as usize),
        "unsqueeze" => x.unsqueeze(dim()),
        "squeeze" => x.squeeze(dim()),
        "expand" => x.expand(&sizes(&args["shape"])),
        "copy" => x.copy(),
        "contiguous" => x.contiguous(),
        "to_dtype" => x.to_dtype(dtype(&args["dtype"])),
        "copy_" => x.copy_(&inputs[1]).map(|()| x.clone()),
        "add_" => x.add_(&inputs[1]).map(|()| x.clone()),
        "add_scaled_" => x.add_scaled_(&inputs[1], number(&args["alpha"])).map(|()| x.clone()),
        "mul_" => x.mul_(&inputs[1]).map(|()| x.clone()),
        _ => panic!("no call for the operation {op}"),
    }
}

/// The dtype with this PyTorch name.
pub(crate) fn dtype(name: &Value) -> DType {
    let found = DType::ALL.into_iter().find(|dtype| Some(dtype.name()) == name.as_str());
    found.unwrap_or_else(|| panic!("{name} is not a type of ours"))
}

/// The sizes of a shape.
pub(crate) fn sizes(shape: &Value) -> Vec<usize> {
    integers(shape).into_iter().map(|n| n as usize).collect()
}

fn reduction(args: &Value) -> Reduction {
    if args["reduction"] == "mean" { Reduction::Mean } else { Reduction::Sum }
}

fn integer(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is not an integer"))
}

fn integers(values: &Value) -> Vec<i64> {
    values.as_array().unwrap().iter().map(integer).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn pair(value: &Value) -> [usize; 2] {
    sizes(value).try_into().unwrap()
}
