//! Edge cases of operations: NaN and infinity, ties, integers out of range, empty images.

use plimsoll_tensor::{ConvTranspose2dOptions, Result, Tensor};
use serde_json::Value;

use super::calls::{integer, integers, number};

/// Our result; `None` for an operation of another table.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Tensor>> {
    let (x, y) = (inputs.first()?, inputs.get(1));
    let dims = || integers(&args["dims"]);
    let value = || args["value"].as_i64().unwrap();
    Some(match op {
        "relu" => x.relu(),
        "relu6" => x.relu6(),
        "hardtanh" => x.hardtanh(-1.0, 1.0),
        "leaky_relu" => x.leaky_relu(0.01),
        "threshold of 1" => x.threshold(1.0, 20.0),
        "hardswish" => x.hardswish(),
        "hardsigmoid" => x.hardsigmoid(),
        "elu" => x.elu(1.0),
        "silu" => x.silu(),
        "softplus" => x.softplus(),
        "log_sigmoid" => x.log_sigmoid(),
        "mish" => x.mish(),
        "amax" => x.amax(&dims()),
        "amin" => x.amin(&dims()),
        "max_all" => x.max(),
        "min_all" => x.min(),
        "norm of infinity" => x.norm(f64::INFINITY),
        "prod" => x.prod(),
        "prod_dim" => x.prod_dim(integer(&args["dim"])),
        "all" => x.all(),
        "any" => x.any(),
        "all_dims" => x.all_dims(&dims()),
        "any_dims" => x.any_dims(&dims()),
        "fmod by a number" => x.fmod_scalar(value()),
        "remainder by a number" => x.remainder_scalar(value()),
        "floor_divide by a number" => x.floor_divide_scalar(value()),
        "div_trunc by a number" => x.div_trunc_scalar(value()),
        "mul" => x * y?,
        "lt" => x.lt(y?),
        "eq" => x.eq(y?),
        "fmod" => x.fmod(y?),
        "baddbmm" => x.baddbmm(y?, &inputs[2], number(&args["beta"]), number(&args["alpha"])),
        "transposed to nothing" => {
            let options = ConvTranspose2dOptions { padding: [1, 1], ..ConvTranspose2dOptions::default() };
            x.conv_transpose2d(y?, None, options)
        }
        _ => return None,
    })
}
