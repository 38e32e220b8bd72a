//! Making and reading tensors; invalid calls give an error message instead of a panic.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::{CpuConfig, DType, Device, Error, Result, SimConfig, Tensor};

fn text<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, &Device::cpu()).unwrap()
}

#[test]
fn a_tensor_has_the_values_it_was_made_with() {
    let device = Device::cpu();
    assert_eq!(
        Tensor::from_slice(&[1u8, 2, 3], &[3, 1], &device).unwrap().to_vec::<u8>().unwrap(),
        [1, 2, 3]
    );
    assert_eq!(Tensor::from_slice(&[-5i64], &[], &device).unwrap().item::<i64>().unwrap(), -5);
    assert_eq!(Tensor::arange(4, &device).unwrap().to_vec::<i64>().unwrap(), [0, 1, 2, 3]);
    assert_eq!(Tensor::full(&[2], -1.9, DType::I32, &device).unwrap().to_vec::<i32>().unwrap(), [-1, -1]);
    let x = Tensor::full(&[2, 2], 2.5, DType::F32, &device).unwrap();
    assert_eq!(x.zeros_like().unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
    assert_eq!(x.ones_like().unwrap().to_vec::<f32>().unwrap(), [1.0; 4]);
    assert_eq!((x.rank(), x.numel(), x.strides(), x.dtype()), (2, 4, &[2, 1][..], DType::F32));
    assert_eq!(format!("{x:?}"), "Tensor([2, 2], float32, cpu)");
}

#[test]
fn errors_name_the_method_that_was_called() {
    let leaf = zeros(&[2]).requires_grad_(true).unwrap();
    for (result, name) in [
        (leaf.clamp_(0.0, 1.0), "clamp_"),
        (leaf.clamp_min_(0.0), "clamp_"),
        (leaf.mul_scalar_(2.0), "mul_"),
        (leaf.add_scalar_(2.0), "add_"),
        (leaf.sub_scalar_(2.0), "sub_"),
        (leaf.div_scalar_(2.0), "div_"),
        (leaf.pow_scalar_(3.0), "pow_"),
        (leaf.hardtanh_(0.0, 1.0), "hardtanh_"),
    ] {
        let error = text(result);
        assert!(error.starts_with(&format!("{name}: ")), "{error}");
    }
    let truths = zeros(&[2]).eq_scalar(0).unwrap();
    for (result, name) in [
        (truths.clamp_min(0.5).and_then(|x| x.add(zeros(&[3]))), "add"),
        (truths.clamp_tensors(None, None), "clamp"),
        (truths.abs(), "abs"),
        (truths.pow_scalar(-1), "pow"),
    ] {
        let error = text(result);
        assert!(error.starts_with(&format!("{name}: ")), "{error}");
    }
}

#[test]
fn truth_values_have_no_difference() {
    let (x, truths) = (zeros(&[2]), zeros(&[2]).eq_scalar(0).unwrap());
    for result in [&x - &truths, &truths - &x, &truths - &truths, &truths - 1, 1 - &truths, 1.5 - &truths] {
        assert_eq!(text(result), "sub: expected a numeric type, got bool; convert with `to_dtype`");
    }
    assert!(text(x.sub_(&truths)).starts_with("sub_: expected a numeric type, got bool"));
}

#[test]
fn whole_numbers_are_not_multiplied_by_fractions() {
    let x = Tensor::full(&[1, 2, 2], 3.0, DType::U8, &Device::cpu()).unwrap();
    assert_eq!(text(x.baddbmm(&x, &x, 0.5, 1.0)), "baddbmm: beta 0.5 and alpha 1 for uint8: need integers");
    assert!(text(x.baddbmm(x.long().unwrap(), x.long().unwrap(), 1.0, 1.0)).starts_with("baddbmm: "));
}

#[test]
fn values_that_do_not_fill_the_shape_are_refused() {
    let short = Tensor::from_slice(&[1.0f32, 2.0], &[3], &Device::cpu());
    assert_eq!(text(short), "from_bytes: shape [3] of float32 has 12 bytes, but the values have 8");
}

#[test]
fn reading_asks_for_the_right_type_and_number() {
    let x = zeros(&[2]);
    assert_eq!(text(x.to_vec::<i64>()), "to_vec: expected int64, got float32; convert with `to_dtype`");
    assert_eq!(text(x.item::<f32>()), "item: [2] has 2 elements, not one");
}

#[test]
fn shapes_that_do_not_go_together_are_named() {
    let (x, y) = (zeros(&[2, 3]), zeros(&[4, 5]));
    assert_eq!(text(&x + &y), "add: [2, 3] and [4, 5] do not broadcast: 2 and 4 differ at dimension 0 of 2");
    assert_eq!(text(x.matmul(&y)), "matmul: [2, 3] times [4, 5]");
    assert_eq!(text(x.add_(&y)), "add_: [4, 5] does not broadcast to [2, 3]");
    assert_eq!(text(x.reshape(&[4])), "reshape: [2, 3] into [4]");
    assert_eq!(text(x.reshape(&[-1, -1])), "reshape: [2, 3] into [-1, -1]");
    assert_eq!(text(x.sum_dims(&[2])), "sum: dimension 2 of a tensor with 2 dimensions: use -2 to 1");
    assert_eq!(text(x.sum_dims(&[0, -2])), "sum: dimension 0 is named twice in [0, -2]");
    assert_eq!(text(x.narrow(1, 2, 2)), "narrow: 2..2+2 is outside dimension 1 of size 3");
    assert_eq!(text(x.permute(&[0, 0])), "permute: [0, 0] does not name each of 2 dimensions once");
    assert_eq!(text(x.expand(&[3, 3])), "expand: [2, 3] does not broadcast to [3, 3]");
    assert_eq!(text(x.mse_loss(&y)), "mse_loss: [2, 3] and [4, 5]: the shapes must be equal");
    assert_eq!(text(zeros(&[2, 0]).argmax(1)), "argmax: dimension 1 of [2, 0] has no elements");
}

#[test]
fn a_type_that_an_operation_does_not_take_is_named() {
    let (x, n) = (zeros(&[2]), Tensor::arange(2, &Device::cpu()).unwrap());
    let expected =
        |op: &str| format!("{op}: expected a floating-point type, got int64; convert with `to_dtype`");
    assert_eq!(text(n.gelu()), expected("gelu"));
    assert_eq!(text(n.mean()), expected("mean"));
    assert_eq!(text(n.softmax(0)), expected("softmax"));
    assert_eq!(text(n.layer_norm(None, None, 1e-5)), expected("layer_norm"));
    let truth = n.eq(&n).unwrap();
    let message = "sub: expected a numeric type, got bool; convert with `to_dtype`";
    assert_eq!(text(&truth - &truth), message);
    let message = "matmul: expected float32, got float64; convert with `to_dtype`";
    assert_eq!(text(zeros(&[2, 2]).matmul(zeros(&[2, 2]).double().unwrap())), message);
    let message = "add_: the result has type float32, which a tensor of int64 cannot hold: convert one first";
    assert_eq!(text(n.add_(&x)), message);
    let message = "add_: alpha is 0.5: it must be an integer for a tensor of int64";
    assert_eq!(text(n.add_scaled_(&n, 0.5)), message);
    assert!(matches!(zeros(&[2, 2]).nll_loss(&x, Reduction::Mean), Err(Error::DType { op: "nll_loss", .. })));
}

#[test]
fn a_target_that_is_no_class_is_named_and_nothing_stays() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::zeros(&[2, 3], &device).unwrap();
    let target = Tensor::from_slice(&[0i64, 3], &[2], &device).unwrap();
    let loss = x.nll_loss(&target, Reduction::Mean);
    assert_eq!(text(loss), "nll_loss: target 3 in row 1 is not a class: classes are 0 to 2");
    let target = Tensor::from_slice(&[-1i64, 0], &[2], &device).unwrap();
    assert!(matches!(x.cross_entropy(&target), Err(Error::Target { row: 0, value: -1, classes: 3, .. })));
    drop(target);
    assert_eq!(device.memory_allocated(), 1024, "the input and the first target");
}

#[test]
fn a_size_beyond_all_memory_is_an_error() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let max = usize::MAX;
    assert!(matches!(Tensor::zeros(&[max, max], &device), Err(Error::Shape { .. })));
    assert!(matches!(Tensor::zeros(&[1 << 59], &device), Err(Error::Allocator { .. })));
    assert!(matches!(Tensor::zeros(&[1 << 40], &device), Err(Error::OutOfMemory(_))));
    assert_eq!(Tensor::zeros(&[max, 0], &device).unwrap().numel(), 0);
    let one = Tensor::zeros(&[1], &device).unwrap();
    assert!(one.expand(&[1 << 40]).unwrap().exp().is_err());
    assert!(one.expand(&[1 << 40, 1 << 40]).and_then(|huge| huge.exp()).is_err());
}

#[test]
fn a_probability_outside_0_to_1_is_refused_and_the_logits_loss_is_named() {
    let device = Device::cpu();
    let tensor = |values: &[f32]| Tensor::from_slice(values, &[values.len()], &device).unwrap();
    let loss = |x: &[f32], t: &[f32]| tensor(x).binary_cross_entropy(tensor(t), None, Reduction::Mean);
    for (x, shown) in [([0.5, 1.5], "1.5"), ([0.5, -0.25], "-0.25"), ([0.5, f32::NAN], "NaN")] {
        let message = loss(&x, &[1.0, 0.0]).unwrap_err().to_string();
        let expected = format!(
            "binary_cross_entropy: input {shown} (element 1) is not a probability: needs 0 to 1; for logits"
        );
        assert!(message.starts_with(&expected), "{message}");
    }
    // PyTorch does not check targets.
    assert!(loss(&[0.0, 1.0], &[2.0, -1.0]).is_ok());
}
