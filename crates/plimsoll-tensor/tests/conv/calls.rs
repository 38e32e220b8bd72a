//! Calls our operation for a case's operation name and options.

use plimsoll_tensor::{ConvOptions, ConvPadding, ConvTransposeOptions, Result, Tensor};
use serde_json::Value;

/// Our result for a case.
pub(crate) fn call(case: &Value, inputs: &[Tensor]) -> Result<Tensor> {
    let (x, w, bias) = (&inputs[0], &inputs[1], inputs.get(2));
    match case[0].as_str().unwrap() {
        "conv1d" => x.conv1d(w, bias, options(&case[1])),
        "conv2d" => x.conv2d(w, bias, options(&case[1])),
        "conv3d" => x.conv3d(w, bias, options(&case[1])),
        "conv_transpose1d" => x.conv_transpose1d(w, bias, transposed(&case[1])),
        "conv_transpose2d" => x.conv_transpose2d(w, bias, transposed(&case[1])),
        "conv_transpose3d" => x.conv_transpose3d(w, bias, transposed(&case[1])),
        other => panic!("{other} is not an operation of these cases"),
    }
}

/// A channels-last copy.
pub(crate) fn channels_last(x: &Tensor) -> Tensor {
    let rank = x.rank() as isize;
    let order: Vec<isize> = [0].into_iter().chain(2..rank).chain([1]).collect();
    let back: Vec<isize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    x.permute(&order).unwrap().copy().unwrap().permute(&back).unwrap()
}

/// One number for all dimensions, or a list.
fn sizes<const N: usize>(value: &Value, default: usize) -> [usize; N] {
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    match value {
        Value::Null => [default; N],
        Value::Array(all) => std::array::from_fn(|i| number(&all[i])),
        one => [number(one); N],
    }
}

fn options<const N: usize>(given: &Value) -> ConvOptions<N> {
    ConvOptions {
        stride: sizes(&given["stride"], 1),
        padding: match given["padding"].as_str() {
            Some("same") => ConvPadding::Same,
            Some(_) => ConvPadding::Valid,
            None => ConvPadding::Zeros(sizes(&given["padding"], 0)),
        },
        dilation: sizes(&given["dilation"], 1),
        groups: sizes::<1>(&given["groups"], 1)[0],
    }
}

fn transposed<const N: usize>(given: &Value) -> ConvTransposeOptions<N> {
    ConvTransposeOptions {
        stride: sizes(&given["stride"], 1),
        padding: sizes(&given["padding"], 0),
        output_padding: sizes(&given["output_padding"], 0),
        dilation: sizes(&given["dilation"], 1),
        groups: sizes::<1>(&given["groups"], 1)[0],
    }
}
