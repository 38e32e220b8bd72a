//! Operations in every dtype that PyTorch's CPU backend supports: results, gradients and errors of `fixtures/dtypes.json`,
//! which `fixtures/dtypes.py` made.

use plimsoll_tensor::{BackwardOptions, CrossEntropyOptions, DType, Device, Tensor, autocast, no_grad};
use serde_json::Value;

use crate::call;
use crate::forms::{self, Form};
use crate::table::tensors;

fn cases() -> Vec<Value> {
    let table: Value = serde_json::from_str(include_str!("../fixtures/dtypes.json")).unwrap();
    table.as_array().unwrap().clone()
}

fn texts(values: &Value) -> Vec<Option<&str>> {
    values.as_array().unwrap().iter().map(Value::as_str).collect()
}

fn run(case: &Value, form: Form, device: &Device) -> Result<(), String> {
    let op = case[0].as_str().unwrap();
    let changes = op.ends_with('_');
    let inputs: Vec<Tensor> = texts(&case[2])
        .into_iter()
        .map(|text| tensors::tensor(text.unwrap(), form, device))
        .map(|tensor| tensor.requires_grad_(tensor.dtype().is_float() && !changes).unwrap())
        .collect();
    let output = match (call::call(op, &case[1], &inputs), &case[3]) {
        (Err(_), Value::Null) => return Ok(()),
        (Ok(got), Value::Null) => return Err(format!("gives {got:?} where PyTorch refuses")),
        (result, _) => result.map_err(|error| format!("error: {error}"))?,
    };
    tensors::compare("the output", &output, texts(&case[3])[0].unwrap())?;
    if output.requires_grad() {
        let gradient = Some(tensors::upstream(&output, 0, form, device));
        let options = BackwardOptions { gradient, ..BackwardOptions::default() };
        output.backward_with(options).map_err(|error| format!("error in backward: {error}"))?;
    }
    for (i, (input, expected)) in inputs.iter().zip(texts(&case[4])).enumerate() {
        match (input.grad(), expected) {
            (Some(got), Some(expected)) => tensors::compare(&format!("gradient {i}"), &got, expected)?,
            (None, None) => {}
            (got, expected) => return Err(format!("gradient {i} is {got:?}, PyTorch's {expected:?}")),
        }
    }
    Ok(())
}

#[test]
fn every_operation_is_pytorchs_in_every_type() {
    let device = Device::cpu();
    let mut differences = Vec::new();
    for case in &cases() {
        for form in Form::ALL {
            if let Err(found) = run(case, form, &device) {
                differences.push(format!("{} {} of {} ({form:?}): {found}", case[0], case[1], case[2]));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn truth_values_go_in_and_out() {
    let device = Device::cpu();
    let x = Tensor::from_slice(&[true, false, true], &[3], &device).unwrap();
    assert_eq!((x.dtype(), x.to_vec::<bool>().unwrap()), (DType::Bool, vec![true, false, true]));
    assert_eq!(x.sum().unwrap().item::<i64>().unwrap(), 2);
    let error = Tensor::from_bytes(&[1, 2], DType::Bool, &[2], &device).unwrap_err().to_string();
    assert_eq!(error, "from_bytes: byte 1 is 2; booleans are 0 or 1");
}

#[test]
fn drawn_values_are_the_same_in_every_type_up_to_rounding() {
    let device = Device::cpu();
    let drawn = |dtype| {
        let x = Tensor::empty(&[1000], dtype, &device).unwrap();
        let from = plimsoll_tensor::op::RandomStream { seed: 1, stream: 2 };
        x.normal_(1.0, 2.0, from).unwrap();
        forms::values(&x)
    };
    let exact = drawn(DType::F64);
    for (dtype, error) in [(DType::F32, 1e-6), (DType::F16, 8e-3), (DType::BF16, 6e-2)] {
        let off = drawn(dtype).iter().zip(&exact).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(off < error, "{dtype}: {off}");
    }
}

/// The dtypes that autocast gives a chain of operations: PyTorch's lists for CUDA.
#[test]
fn autocast_lowers_products_and_widens_what_needs_it() {
    let device = Device::cpu();
    let parameter = |shape: &[usize]| Tensor::ones(shape, &device).unwrap().requires_grad_(true).unwrap();
    let (w, b, x) = (parameter(&[4, 4]), parameter(&[4]), Tensor::ones(&[2, 4], &device).unwrap());
    let loss = autocast::autocast(DType::BF16, || -> plimsoll_tensor::Result<Tensor> {
        let y = x.linear(&w, Some(&b))?;
        assert_eq!(y.dtype(), DType::BF16);
        assert_eq!(y.relu()?.dtype(), DType::BF16, "as given");
        assert_eq!((&y + &x)?.dtype(), DType::F32, "promoted");
        assert_eq!(y.softmax(-1)?.dtype(), DType::F32, "in full");
        assert_eq!(autocast::autocast(None, || x.matmul(&w))?.dtype(), DType::F32, "switched off within");
        y.mse_loss(&x)
    })
    .unwrap();
    assert!(!autocast::is_enabled());
    loss.backward().unwrap();
    for parameter in [&w, &b] {
        assert_eq!(parameter.grad().unwrap().dtype(), DType::F32);
    }
    // The sum of four ones and a bias is 5; minus a target of 1, each of 8 elements has the gradient 2 · 4 / 8 = 1.
    assert_eq!(b.grad().unwrap().to_vec::<f32>().unwrap(), [2.0; 4]);
    let wrong = autocast::autocast(DType::I64, || Ok::<_, plimsoll_tensor::Error>(())).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "autocast: expected float16 or bfloat16, got int64; convert with `to_dtype`"
    );
}

/// The fused operators return the dtypes that `cross_entropy` of a `linear`, and `dropout` followed by an addition, would:
/// under autocast, a language model's loss and its residual stream stay in 32 bits.
#[test]
fn under_autocast_fused_operators_have_the_types_of_what_they_fuse() {
    let device = Device::cpu();
    let w = Tensor::ones(&[3, 4], &device).unwrap().requires_grad_(true).unwrap();
    let x = Tensor::ones(&[2, 4], &device).unwrap().requires_grad_(true).unwrap();
    let target = Tensor::from_slice(&[0i64, 2], &[2], &device).unwrap();
    let loss = autocast::autocast(DType::BF16, || -> plimsoll_tensor::Result<Tensor> {
        let stream = x.linear(&w, None)?.dropout_add(&Tensor::ones(&[2, 3], &device)?, 0.5, true)?;
        assert_eq!(stream.dtype(), DType::F32);
        let loss = x.linear_cross_entropy(&w, None, &target, CrossEntropyOptions::default())?;
        assert_eq!(loss.dtype(), x.linear(&w, None)?.cross_entropy(&target)?.dtype());
        &loss + &stream.sum()?.mul_scalar(0.0)?
    })
    .unwrap();
    // ln 3 in 32 bits; in bfloat16 it would be 1.1016.
    assert!((loss.item::<f32>().unwrap() - 3f32.ln()).abs() < 1e-6, "{}", loss.item::<f32>().unwrap());
    loss.backward().unwrap();
    for tensor in [&w, &x] {
        assert_eq!(tensor.grad().unwrap().dtype(), DType::F32);
    }
}

#[test]
fn a_parameter_is_cast_once_and_the_cast_is_freed_at_the_end() {
    let device = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    let w = Tensor::ones(&[256, 256], &device).unwrap().requires_grad_(true).unwrap();
    let x = Tensor::ones(&[1, 256], &device).unwrap();
    let before = device.memory_allocated();
    autocast::autocast(DType::BF16, || -> plimsoll_tensor::Result<()> {
        drop((x.matmul(&w)?, x.matmul(&w)?));
        assert_eq!(device.memory_allocated() - before, 256 * 256 * 2, "one cast of the weight");
        no_grad(|| x.matmul(&w)).map(drop)?;
        assert_eq!(device.memory_allocated() - before, 256 * 256 * 2, "one outside of recording is not kept");
        Ok(())
    })
    .unwrap();
    assert_eq!(device.memory_allocated(), before);
}
