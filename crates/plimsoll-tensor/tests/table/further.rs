//! Calls the operations of `fixtures/further.json`.

use plimsoll_tensor::{
    AvgPool1dOptions, AvgPool2dOptions, BatchNormOptions, GridPadding, GridSampleMode, GridSampleOptions,
    InterpolateMode, Reduction, ResizeTo, Result, Tensor, WindowOptions,
};
use serde_json::Value;

use super::calls::{both, integer, integers, number, size, sizes};

/// Our result; `None` for an operation of another table.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>>> {
    let x = inputs.first()?;
    Some(match op {
        "cummax" => x.cummax(integer(&args["dim"])).map(both),
        "cummin" => x.cummin(integer(&args["dim"])).map(both),
        _ => return one(op, args, inputs).or_else(|| odd(op, args, inputs)).map(|y| y.map(|y| vec![y])),
    })
}

/// Rarely used functions.
fn one(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Tensor>> {
    let (x, y) = (&inputs[0], inputs.get(1).unwrap_or(&inputs[0]));
    let window = || {
        let pair = |name: &str| [size(&args[name][0]), size(&args[name][1])];
        let (kernel, dilation) = (pair("kernel"), pair("dilation"));
        WindowOptions { kernel, dilation, padding: pair("padding"), stride: pair("stride") }
    };
    Some(match op {
        "logcumsumexp" => x.logcumsumexp(integer(&args["dim"])),
        "softplus_with" => x.softplus_with(number(&args["beta"]), number(&args["threshold"])),
        "poisson_nll_loss of means" => {
            x.poisson_nll_loss(y.detach(), false, args["full"] == true, number(&args["eps"]), Reduction::Mean)
        }
        "lgamma" => x.lgamma(),
        "lgamma at the edges" => x.detach().lgamma(),
        "erfinv at the edges" => x.detach().erfinv(),
        "digamma" => x.digamma(),
        "erfinv" => x.erfinv(),
        "acosh" => x.acosh(),
        "bitwise_and" => x & y,
        "bitwise_or" => x | y,
        "bitwise_xor" => x ^ y,
        "bitwise_not" => !x,
        "bitwise_left_shift" => x.bitwise_left_shift(y),
        "bitwise_right_shift" => x.bitwise_right_shift(y),
        "im2col" => x.im2col(window()),
        "col2im" => x.col2im([size(&args["size"][0]), size(&args["size"][1])], window()),
        "bilinear" => x.bilinear(y, &inputs[2], inputs.get(3)),
        "affine_grid" => x.affine_grid(&sizes(&args["size"]), args["corners"] == true),
        "grid_sample" => {
            let mode = match args["mode"].as_str() {
                Some("nearest") => GridSampleMode::Nearest,
                Some("bicubic") => GridSampleMode::Bicubic,
                _ => GridSampleMode::Bilinear,
            };
            let padding_mode = match args["padding"].as_str() {
                Some("border") => GridPadding::Border,
                Some("reflection") => GridPadding::Reflection,
                _ => GridPadding::Zeros,
            };
            let y = if mode == GridSampleMode::Nearest { y.detach() } else { y.clone() };
            x.grid_sample(
                &y,
                GridSampleOptions { mode, padding_mode, align_corners: args["corners"] == true },
            )
        }
        "ctc_loss" => {
            let reduction = match args["reduction"].as_str() {
                Some("sum") => Reduction::Sum,
                Some("none") => Reduction::None,
                _ => Reduction::Mean,
            };
            let (inputs, targets) = (sizes(&args["inputs"]), sizes(&args["targets"]));
            x.ctc_loss(y, &inputs, &targets, size(&args["blank"]), reduction, args["zero"] == true)
        }
        _ => return None,
    })
}

/// Unusual cases of operations of the other tables.
fn odd(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Tensor>> {
    let x = &inputs[0];
    let value = || args["value"].as_i64();
    let dims = || integers(&args["dims"]);
    Some(match op {
        "number - x" => value().map_or_else(|| number(&args["value"]) - x, |value| value - x),
        "number / x" => value().map_or_else(|| number(&args["value"]) / x, |value| value / x),
        "argmax_all" => x.argmax(None),
        "argmin_all" => x.argmin(None),
        "argmax of a scalar" => x.argmax(integer(&args["dim"])),
        "sum_dims" => x.sum_dims(&dims()),
        "sum_keepdim" => x.sum_keepdim(&dims()),
        "mean_dims" => x.mean_dims(&dims()),
        "softmax" => x.softmax(integer(&args["dim"])),
        "log_softmax" => x.log_softmax(integer(&args["dim"])),
        "squeeze" => x.squeeze(integer(&args["dim"])),
        "t" => x.t(),
        "asinh" => x.asinh(),
        "batch_norm" => {
            let options = BatchNormOptions { training: true, ..BatchNormOptions::default() };
            x.batch_norm(None, inputs.get(1), inputs.get(2), options)
        }
        "avg_pool1d" => x.avg_pool1d(AvgPool1dOptions { ceil_mode: true, ..AvgPool1dOptions::new([2]) }),
        "avg_pool2d" => {
            let options =
                AvgPool2dOptions { stride: [3, 3], ceil_mode: true, ..AvgPool2dOptions::new([1, 1]) };
            x.avg_pool2d(options)
        }
        "bilinear_resize" => {
            let to = sizes(&args["size"]);
            x.interpolate(ResizeTo::Size(&to), InterpolateMode::Linear { align_corners: true })
        }
        _ => return None,
    })
}
