//! Tensors in the tables' notation: `f32[2,3]1,2,3,4,5,6`.

use plimsoll_tensor::{DType, Device, Element, Tensor, bf16, f16};

use crate::forms::{self, Form};

/// The dtype, the shape, the values.
fn parse(text: &str) -> (&str, Vec<usize>, Vec<f64>) {
    let (dtype, rest) = text.split_once('[').unwrap();
    let (shape, values) = rest.split_once(']').unwrap();
    let list = |text: &str| text.split(',').filter(|x| !x.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let shape = list(shape).iter().map(|n| n.parse().unwrap()).collect();
    (dtype, shape, list(values).iter().map(|x| x.parse().unwrap()).collect())
}

/// The shape of a tensor of the table.
pub(crate) fn shape(text: &str) -> Vec<usize> {
    parse(text).1
}

/// A tensor of the table.
pub(crate) fn tensor(text: &str, form: Form, device: &Device) -> Tensor {
    let (dtype, shape, values) = parse(text);
    make(dtype, &shape, &values, form, device)
}

fn make(dtype: &str, shape: &[usize], values: &[f64], form: Form, device: &Device) -> Tensor {
    fn of<T: Element>(values: &[f64]) -> Vec<T> {
        values.iter().map(|&x| T::from_f64(x)).collect()
    }
    match dtype {
        "f64" => form.tensor(&of::<f64>(values), shape, device),
        "f32" => form.tensor(&of::<f32>(values), shape, device),
        "f16" => form.tensor(&of::<f16>(values), shape, device),
        "bf16" => form.tensor(&of::<bf16>(values), shape, device),
        "i64" => form.tensor(&of::<i64>(values), shape, device),
        "i32" => form.tensor(&of::<i32>(values), shape, device),
        "i16" => form.tensor(&of::<i16>(values), shape, device),
        "u8" => form.tensor(&of::<u8>(values), shape, device),
        "bool" => form.tensor(&of::<bool>(values), shape, device),
        _ => panic!("{dtype} is not a type of the table"),
    }
}

fn short_name(dtype: DType) -> String {
    dtype.name().replace("bfloat", "bf").replace("uint", "u").replace("float", "f").replace("int", "i")
}

/// The gradient of output `k`, by the formula in `table.py`.
pub(crate) fn upstream(output: &Tensor, k: usize, form: Form, device: &Device) -> Tensor {
    let values: Vec<f64> = (0..output.numel()).map(|i| ((i * 5 + k * 3) % 7) as f64 / 2.0 - 1.25).collect();
    make(&short_name(output.dtype()), output.shape(), &values, form, device)
}

/// The tolerances relative to the value, and relative to the largest value, for when large terms cancel.
fn tolerances(dtype: &str) -> (f64, f64) {
    match dtype {
        "f64" => (1e-12, 1e-13),
        "f32" => (1e-5, 2e-6),
        "f16" => (2e-3, 1e-3),
        "bf16" => (1.6e-2, 8e-3),
        _ => (0.0, 0.0),
    }
}

/// Returns a sentence that describes the difference if a tensor does not match PyTorch's.
pub(crate) fn compare(what: &str, got: &Tensor, expected: &str) -> Result<(), String> {
    let (dtype, shape, expected) = parse(expected);
    if (got.shape(), short_name(got.dtype()).as_str()) != (shape.as_slice(), dtype) {
        return Err(format!("{what} is {got:?}, PyTorch's {shape:?} of {dtype}"));
    }
    let got = forms::values(got);
    let (relative, of_largest) = tolerances(dtype);
    let largest = expected.iter().filter(|x| x.is_finite()).fold(1e-3f64, |max, x| max.max(x.abs()));
    let equal = |got: f64, expected: f64| {
        got == expected
            || got.is_nan() && expected.is_nan()
            || expected.is_finite()
                && (got - expected).abs() <= relative * expected.abs() + of_largest * largest
    };
    match (0..got.len()).find(|&i| !equal(got[i], expected[i])) {
        None => Ok(()),
        Some(at) => Err(format!("{what}[{at}] is {}, PyTorch's {}", got[at], expected[at])),
    }
}
