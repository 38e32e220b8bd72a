//! Calls the operations of `fixtures/training.json`.

use plimsoll_tensor::{
    BagMode, InterpolateMode, Interpolation, MaxPool1dOptions, MaxPool2dOptions, Reduction, ResizeTo, Result,
    ScatterReduction, Tensor, Tolerance,
};
use serde_json::Value;

use super::calls::{both, integer, integers, number, size};

/// Operations with several outputs or lists; `None` for an operation of another table.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>>> {
    let all: Vec<&Tensor> = inputs.iter().collect();
    let x = &inputs[0];
    Some(match op {
        "median_dim" => x.median_dim(integer(&args["dim"])).map(both),
        "kthvalue" => x.kthvalue(size(&args["k"]), integer(&args["dim"])).map(both),
        "var_mean" => x.var_mean(&integers(&args["dims"]), 1.0).map(both),
        "max_pool2d_with_indices" => {
            let options = MaxPool2dOptions {
                stride: [size(&args["stride"]); 2],
                padding: [size(&args["padding"]); 2],
                ceil_mode: args["padding"] == 1,
                ..MaxPool2dOptions::square(size(&args["kernel"]))
            };
            x.max_pool2d_with_indices(options).map(both)
        }
        "adaptive_max_pool2d_with_indices" => x.adaptive_max_pool2d_with_indices([2, 3]).map(both),
        "std_mean" => x.std_mean(&integers(&args["dims"]), 1.0).map(both),
        _ => return one(op, args, &all).map(|output| output.map(|output| vec![output])),
    })
}

fn scatter_reduce(args: &Value, inputs: &[&Tensor]) -> Result<Tensor> {
    let reduction = match args["reduce"].as_str() {
        Some("sum") => ScatterReduction::Sum,
        Some("mean") => ScatterReduction::Mean,
        Some("amax") => ScatterReduction::Amax,
        Some("prod") => ScatterReduction::Prod,
        _ => ScatterReduction::Amin,
    };
    let (dim, include_self) = (integer(&args["dim"]), args["include_self"] == true);
    inputs[0].scatter_reduce(dim, inputs[1], inputs[2], reduction, include_self)
}

/// The operations with one output.
fn one(op: &str, args: &Value, inputs: &[&Tensor]) -> Option<Result<Tensor>> {
    let x = inputs[0];
    let value = || number(&args["value"]);
    let diagonal = || integer(&args["diagonal"]);
    Some(match op {
        "remainder" => x.remainder(inputs[1]),
        "fmod" => x.fmod(inputs[1]),
        "floor_divide" => x.floor_divide(inputs[1]),
        "div_trunc" => x.div_trunc(inputs[1]),
        "remainder_scalar" => x.remainder_scalar(value()),
        "fmod_scalar" => x.fmod_scalar(value()),
        "floor_divide_scalar" => x.floor_divide_scalar(value()),
        "lerp" => x.lerp(inputs[1], inputs[2]),
        "lerp_scalar" => x.lerp_scalar(inputs[1], value()),
        "addcmul" => x.addcmul(inputs[1], inputs[2], value()),
        "addcdiv" => x.addcdiv(inputs[1], inputs[2], value()),
        "lerp_" | "addcmul_" | "addcdiv_" => in_place(op, inputs, value()),
        "logaddexp" => x.logaddexp(inputs[1]),
        "logaddexp_infinite" => x.detach().logaddexp(inputs[1].detach()),
        "hypot" => x.hypot(inputs[1]),
        "scatter_reduce" => scatter_reduce(args, inputs),
        "scatter_reduce_nan" => scatter_reduce(args, inputs).map(|out| out.detach()),
        "xlogy" => x.xlogy(inputs[1]),
        "xlogy_nan" => x.detach().xlogy(inputs[1].detach()),
        "median" => x.median(),
        "quantile" => x.quantiles(&numbers(&args["q"]), integer(&args["dim"]), between(args)),
        "quantile_all" => x.quantile(number(&args["q"]), None, Interpolation::Linear),
        "searchsorted" => x.searchsorted(inputs[1], args["right"] == true),
        "bucketize" => x.bucketize(inputs[1], args["right"] == true),
        "cdist" => x.cdist(inputs[1], number(&args["p"])),
        "masked_scatter" => x.masked_scatter(inputs[1], inputs[2]),
        "take" => x.take(inputs[1]),
        "isin" => x.isin(inputs[1]),
        "diag" => x.diag(diagonal()),
        "diag_embed" => x.diag_embed(diagonal()),
        "tril_indices" => Tensor::tril_indices(3, 4, diagonal(), x.device()),
        "triu_indices" => Tensor::triu_indices(3, 4, diagonal(), x.device()),
        "trace" => x.trace(),
        _ => return function(op, args, inputs).or_else(|| loss(op, args, inputs)),
    })
}

/// Changes a copy in place, so that the change is recorded.
fn in_place(op: &str, inputs: &[&Tensor], value: f64) -> Result<Tensor> {
    let y = inputs[0].mul_scalar(1)?;
    match op {
        "lerp_" => y.lerp_(inputs[1], inputs[2])?,
        "addcmul_" => y.addcmul_(inputs[1], inputs[2], value)?,
        _ => y.addcdiv_(inputs[1], inputs[2], value)?,
    }
    Ok(y)
}

/// Activations, and operations composed of others.
fn function(op: &str, args: &Value, inputs: &[&Tensor]) -> Option<Result<Tensor>> {
    let x = inputs[0];
    let value = || number(&args["value"]);
    let by = || size(&args["by"]);
    let dims = || integers(&args["dims"]);
    Some(match op {
        "sinh" => x.sinh(),
        "cosh" => x.cosh(),
        "asinh" => x.asinh(),
        "atanh" => x.atanh(),
        "exp2" => x.exp2(),
        "erfc" => x.erfc(),
        "frac" => x.frac(),
        "logit" => x.logit(None),
        "logit_eps" => x.logit(0.1),
        "hardshrink" => x.hardshrink(value()),
        "softshrink" => x.softshrink(value()),
        "threshold" => x.threshold(0.3, -2.0),
        "celu" => x.celu(value()),
        "softsign" => x.softsign(),
        "tanhshrink" => x.tanhshrink(),
        "softmin" => x.softmin(integer(&args["dim"])),
        "glu" => x.glu(integer(&args["dim"])),
        "prelu" => x.prelu(inputs[1]),
        "hstack" => Tensor::hstack(inputs),
        "vstack" => Tensor::vstack(inputs),
        "dstack" => Tensor::dstack(inputs),
        "pad_sequence" => Tensor::pad_sequence(inputs, args["batch_first"] == true, 1.5),
        "baddbmm" => x.baddbmm(inputs[1], inputs[2], number(&args["beta"]), number(&args["alpha"])),
        "inner" => x.inner(inputs[1]),
        "tensordot" => x.tensordot(inputs[1], &[0, 2], &[1, 0]),
        "cross" => x.cross(inputs[1], integer(&args["dim"])),
        "diff" => x.diff(size(&args["n"]), integer(&args["dim"])),
        "clamp_tensors" => x.clamp_tensors(Some(inputs[1]), Some(inputs[2])),
        "nan_to_num" => x.nan_to_num(0.5, None, -9.0),
        "nansum" => x.nansum(&dims()),
        "nanmean" => x.nanmean(&dims()),
        "isclose" => x.isclose(inputs[1], Tolerance::default()),
        "pixel_shuffle" => x.pixel_shuffle(by()),
        "pixel_unshuffle" => x.pixel_unshuffle(by()),
        "channel_shuffle" => x.channel_shuffle(by()),
        "max_unpool1d" => x.max_unpool1d(inputs[1], MaxPool1dOptions::square(2), None),
        "max_unpool2d" => {
            let output = args["size"].as_array().map(|to| [size(&to[0]), size(&to[1])]);
            x.max_unpool2d(inputs[1], MaxPool2dOptions::square(2), output)
        }
        "bicubic" => {
            let mode = InterpolateMode::Cubic { align_corners: args["corners"] == true };
            x.interpolate(ResizeTo::Size(&[size(&args["size"][0]), size(&args["size"][1])]), mode)
        }
        "bicubic_scale" => {
            x.interpolate(ResizeTo::Scale(&[1.7]), InterpolateMode::Cubic { align_corners: false })
        }
        "embedding_bag" => {
            let mode = match args["mode"].as_str() {
                Some("mean") => BagMode::Mean,
                Some("sum") => BagMode::Sum,
                _ => BagMode::Max,
            };
            inputs[1].embedding_bag(x, inputs.get(2).copied(), mode, None)
        }
        _ => return None,
    })
}

/// Losses. Their targets require no gradient, as in the script.
fn loss(op: &str, args: &Value, inputs: &[&Tensor]) -> Option<Result<Tensor>> {
    let x = inputs[0];
    let target = |at: usize| inputs[at].detach();
    let reduction = match args["reduction"].as_str() {
        Some("sum") => Reduction::Sum,
        Some("none") => Reduction::None,
        _ => Reduction::Mean,
    };
    let full = args["full"] == true;
    Some(match op {
        "margin_ranking_loss" => x.margin_ranking_loss(inputs[1], target(2), 0.5, reduction),
        "hinge_embedding_loss" => x.hinge_embedding_loss(target(1), 0.8, reduction),
        "cosine_embedding_loss" => x.cosine_embedding_loss(inputs[1], target(2), 0.1, reduction),
        "soft_margin_loss" => x.soft_margin_loss(target(1), reduction),
        "multilabel_soft_margin_loss" => x.multilabel_soft_margin_loss(target(1), None, reduction),
        "multi_margin_loss" if args["p"] == 2 => x.multi_margin_loss(inputs[1], 2, 0.7, reduction),
        "multi_margin_loss" => x.multi_margin_loss(inputs[1], 1, 0.7, reduction),
        "poisson_nll_loss" => x.poisson_nll_loss(target(1), true, full, 1e-8, reduction),
        "gaussian_nll_loss" => x.gaussian_nll_loss(target(1), inputs[2], full, 1e-6, reduction),
        _ => return None,
    })
}

fn between(args: &Value) -> Interpolation {
    match args["mode"].as_str() {
        Some("lower") => Interpolation::Lower,
        Some("higher") => Interpolation::Higher,
        Some("nearest") => Interpolation::Nearest,
        Some("midpoint") => Interpolation::Midpoint,
        _ => Interpolation::Linear,
    }
}

fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().map_or(Vec::new(), |values| values.iter().map(number).collect())
}
