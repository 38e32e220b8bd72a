//! Pooling and resampling compared with PyTorch: values, gradients and errors of `fixtures/pool.json`, which
//! `fixtures/make_pool.py` made, for images in any layout. Channels-last images stay channels-last.

use plimsoll_tensor::{
    AvgPoolOptions, BackwardOptions, Device, InterpolateMode, MaxPool2dOptions, MaxPoolOptions, ResizeTo,
    Result, Tensor,
};
use serde_json::Value;

use crate::forms::Form;
use crate::table::tensors;

fn cases() -> Vec<Value> {
    let table: Value = serde_json::from_str(include_str!("../fixtures/pool.json")).unwrap();
    table.as_array().unwrap().clone()
}

fn numbers<const D: usize>(value: &Value) -> [usize; D] {
    serde_json::from_value::<Vec<usize>>(value.clone()).unwrap().try_into().unwrap()
}

fn max_options<const D: usize>(args: &Value) -> MaxPoolOptions<D> {
    MaxPoolOptions {
        kernel: numbers(&args["kernel"]),
        stride: numbers(&args["stride"]),
        padding: numbers(&args["padding"]),
        dilation: numbers(&args["dilation"]),
        ceil_mode: args["ceil_mode"] == true,
    }
}

fn avg_options<const D: usize>(args: &Value) -> AvgPoolOptions<D> {
    AvgPoolOptions {
        kernel: numbers(&args["kernel"]),
        stride: numbers(&args["stride"]),
        padding: numbers(&args["padding"]),
        ceil_mode: args["ceil_mode"] == true,
        count_include_pad: args["count_include_pad"] == true,
        divisor_override: args["divisor"].as_u64().map(|n| n as usize),
    }
}

fn call(op: &str, args: &Value, x: &Tensor) -> Result<Tensor> {
    match op {
        "max_pool1d" => x.max_pool1d(max_options(args)),
        "max_pool2d" => x.max_pool2d(max_options(args)),
        "max_pool3d" => x.max_pool3d(max_options(args)),
        "avg_pool1d" => x.avg_pool1d(avg_options(args)),
        "avg_pool2d" => x.avg_pool2d(avg_options(args)),
        "avg_pool3d" => x.avg_pool3d(avg_options(args)),
        "adaptive_avg_pool1d" => x.adaptive_avg_pool1d(numbers(&args["size"])),
        "adaptive_avg_pool2d" => x.adaptive_avg_pool2d(numbers(&args["size"])),
        "adaptive_avg_pool3d" => x.adaptive_avg_pool3d(numbers(&args["size"])),
        "adaptive_max_pool1d" => x.adaptive_max_pool1d(numbers(&args["size"])),
        "adaptive_max_pool2d" => x.adaptive_max_pool2d(numbers(&args["size"])),
        "adaptive_max_pool3d" => x.adaptive_max_pool3d(numbers(&args["size"])),
        "interpolate" => {
            let mode = match args["mode"].as_str().unwrap() {
                "nearest" => InterpolateMode::Nearest,
                "nearest-exact" => InterpolateMode::NearestExact,
                _ => InterpolateMode::Linear { align_corners: args["align_corners"] == true },
            };
            let sizes: Vec<usize> = serde_json::from_value(args["size"].clone()).unwrap_or_default();
            let scale = [args["scale"].as_f64().unwrap_or(1.0)];
            x.interpolate(
                if sizes.is_empty() { ResizeTo::Scale(&scale) } else { ResizeTo::Size(&sizes) },
                mode,
            )
        }
        _ => panic!("no call for {op}"),
    }
}

/// A channels-last copy of the tensor.
fn channels_last(x: &Tensor) -> Tensor {
    let rank = x.rank() as isize;
    let order: Vec<isize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let back: Vec<isize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    x.permute(&order).unwrap().contiguous().unwrap().permute(&back).unwrap()
}

fn is_channels_last(x: &Tensor) -> bool {
    channels_last(x).strides() == x.strides()
}

fn run(case: &Value, x: &Tensor, upstream: impl Fn(&Tensor) -> Tensor) -> Result<Tensor, String> {
    let x = x.detach().requires_grad_(x.dtype().is_float()).unwrap();
    let output = match (call(case[0].as_str().unwrap(), &case[1], &x), &case[3]) {
        (Err(_), Value::Null) => return Ok(x),
        (Ok(got), Value::Null) => return Err(format!("gives {got:?} where PyTorch refuses")),
        (result, _) => result.map_err(|error| format!("error: {error}"))?,
    };
    tensors::compare("the output", &output, case[3][0].as_str().unwrap())?;
    if let Some(expected) = case[4][0].as_str() {
        let options = BackwardOptions { gradient: Some(upstream(&output)), ..BackwardOptions::default() };
        output.backward_with(options).map_err(|error| format!("error in backward: {error}"))?;
        tensors::compare("the gradient", &x.grad().unwrap(), expected)?;
    }
    Ok(output)
}

#[test]
fn pooling_and_resampling_are_pytorchs_in_every_type_and_layout() {
    let device = Device::cpu();
    let mut differences = Vec::new();
    for case in &cases() {
        let text = case[2][0].as_str().unwrap();
        let mut check = |form: &str, found: Result<Tensor, String>| {
            if let Err(found) = found {
                differences.push(format!("{} {} of {text} ({form}): {found}", case[0], case[1]));
            }
        };
        for form in Form::ALL {
            let x = tensors::tensor(text, form, &device);
            check(&format!("{form:?}"), run(case, &x, |y| tensors::upstream(y, 0, form, &device)));
        }
        let x = tensors::tensor(text, Form::Dense, &device);
        let has_batch =
            case[0] == "interpolate" || case[0].as_str().unwrap().contains(&format!("{}d", x.rank() - 2));
        if has_batch && x.rank() > 2 {
            let upstream = |y: &Tensor| channels_last(&tensors::upstream(y, 0, Form::Dense, &device));
            let found = run(case, &channels_last(&x), upstream);
            let moved = found.as_ref().is_ok_and(|y| y.numel() > 0 && !is_channels_last(y));
            check("channels-last", if moved { Err("the output is not".to_owned()) } else { found });
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let x = Tensor::ones(&[1, 2, 4, 4], &Device::cpu()).unwrap();
    let refused = |options: MaxPool2dOptions| x.max_pool2d(options).unwrap_err().to_string();
    for options in [
        MaxPool2dOptions::square(5),
        MaxPool2dOptions::square(0),
        MaxPool2dOptions { stride: [0, 1], ..MaxPool2dOptions::square(2) },
        MaxPool2dOptions { dilation: [0, 1], ..MaxPool2dOptions::square(2) },
        MaxPool2dOptions { dilation: [4, 1], ..MaxPool2dOptions::square(2) },
        MaxPool2dOptions { padding: [2, 0], ..MaxPool2dOptions::square(3) },
        MaxPool2dOptions {
            kernel: [usize::MAX; 2],
            dilation: [usize::MAX; 2],
            ..MaxPool2dOptions::square(2)
        },
    ] {
        let error = refused(options);
        assert!(error.starts_with("max_pool2d: the window must be inside the padded image"), "{error}");
    }
    let error = x.max_pool1d(MaxPoolOptions::square(2)).unwrap_err().to_string();
    assert!(error.contains("needs [batch, channels, length] or [channels, length]"), "{error}");
    let error = x.interpolate(ResizeTo::Size(&[3]), InterpolateMode::Nearest).unwrap_err().to_string();
    assert!(error.contains("one size or scale for each dimension"), "{error}");
    for scales in [[0.0, 1.0], [f64::NAN, 1.0], [1e-3, 1.0]] {
        assert!(x.interpolate(ResizeTo::Scale(&scales), InterpolateMode::Nearest).is_err(), "{scales:?}");
    }
}
