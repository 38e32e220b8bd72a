//! The tensors that normalizations, dropout, activations and rotary embeddings save for the backward pass, and their second
//! derivatives.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::{Activation, BatchNormOptions, CpuConfig, Device, Result, Rotary, SimConfig, Tensor};

use crate::second::check_second;

const MIB: u64 = 1 << 20;

/// Bytes, not counting the input, that remain after `f` of a tensor of one mebibyte. With `drop_output`, its outputs are
/// dropped.
fn kept(drop_output: bool, f: impl Fn(&Tensor) -> Result<Vec<Tensor>>) -> u64 {
    let device = Device::sim(SimConfig::new(1 << 34));
    let x = Tensor::randn(&[4, 16, 64, 64], &device).unwrap().requires_grad_(true).unwrap();
    let x = x.affine(1.0, 0.5).unwrap();
    let before = device.memory_allocated();
    let outs = f(&x).unwrap();
    if !drop_output {
        return device.memory_allocated() - before;
    }
    // A scalar that depends on each output keeps the graph alive; the outputs themselves are dropped.
    let sums: Vec<Tensor> = outs.iter().map(|out| out.sum().unwrap()).collect();
    drop(outs);
    let left = device.memory_allocated() - before;
    drop(sums);
    left
}

#[test]
fn dropout_keeps_no_mask() {
    assert!(kept(true, |x| Ok(vec![x.dropout(0.3, true)?])) < 2048);
    assert!(kept(true, |x| Ok(vec![x.dropout_add(x, 0.3, true)?])) < 2048);
    assert_eq!(kept(false, |x| Ok(vec![x.dropout(0.3, false)?])), 0, "in evaluation it is the input itself");
}

#[test]
fn dropout_drops_the_same_forward_and_backward_and_follows_the_seed() {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::ones(&[1000], &device).unwrap().requires_grad_(true).unwrap();
    device.manual_seed(3);
    let y = x.dropout(0.25, true).unwrap();
    y.sum().unwrap().backward().unwrap();
    let (values, grads) = (y.to_vec::<f32>().unwrap(), x.grad().unwrap().to_vec::<f32>().unwrap());
    assert_eq!(values, grads);
    let zeros = values.iter().filter(|&&x| x == 0.0).count();
    assert!((200..300).contains(&zeros) && values.iter().all(|&x| x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6));
    device.manual_seed(3);
    assert_eq!(x.dropout(0.25, true).unwrap().to_vec::<f32>().unwrap(), values);
    assert!(x.dropout(1.5, true).unwrap_err().to_string().contains("a probability must be from 0 to 1"));
}

#[test]
fn batch_normalization_with_its_relu_keeps_the_input_alone() {
    let training = BatchNormOptions { training: true, ..BatchNormOptions::default() };
    let fused = kept(true, |x| Ok(vec![x.batch_norm_relu(None, None, None, training)?]));
    assert!(fused < 4096, "{fused}");
    let apart = kept(true, |x| Ok(vec![x.batch_norm(None, None, None, training)?.relu()?]));
    assert!((MIB..MIB + 4096).contains(&apart), "{apart}");
}

#[test]
fn a_normalized_sum_keeps_the_sum_alone() {
    let both = |x: &Tensor| x.add_rms_norm(x, None, 1e-5).map(|(sum, y)| vec![sum, y]);
    let left = kept(true, both);
    assert!((MIB..MIB + 80 * 1024).contains(&left), "{left}");
}

#[test]
fn an_activation_before_a_layer_keeps_its_input_alone() {
    let wide = |x: &Tensor| {
        let weight = Tensor::ones(&[8, 64], x.device())?;
        Ok(vec![x.activation_linear(Activation::Silu, &weight, None)?])
    };
    let left = kept(true, wide);
    assert!(left < 4096, "{left}");
}

type Layer<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

#[test]
fn channels_last_images_stay_so() {
    let device = Device::cpu();
    let weight = Tensor::from_slice(&[0.5f32, 2.0, -1.0, 1.5], &[4], &device).unwrap();
    let training = BatchNormOptions { training: true, ..BatchNormOptions::default() };
    let layers: [(&str, Layer<'_>); 4] = [
        ("batch_norm", &|x| x.batch_norm(None, Some(&weight), None, training)),
        ("batch_norm_relu", &|x| x.batch_norm_relu(None, Some(&weight), Some(&weight), training)),
        ("group_norm", &|x| x.group_norm(2, Some(&weight), Some(&weight), 1e-5)),
        ("group_norm without weight", &|x| x.group_norm(4, None, None, 1e-5)),
    ];
    for (name, layer) in layers {
        let dense = Tensor::randn(&[2, 5, 6, 4], &device).unwrap();
        let x = dense.permute(&[0, 3, 1, 2]).unwrap().detach().requires_grad_(true).unwrap();
        let row_major = x.detach().contiguous().unwrap().requires_grad_(true).unwrap();
        let run = |x: &Tensor| {
            let y = layer(x).unwrap();
            y.square().unwrap().mul(&y).unwrap().sum().unwrap().backward().unwrap();
            let of_weight = weight.grad();
            weight.clear_grad();
            (y, x.grad().unwrap(), of_weight)
        };
        weight.requires_grad_(true).unwrap();
        let ((y, grad, of_weight), (expected, expected_grad, expected_weight)) = (run(&x), run(&row_major));
        assert_eq!(y.strides(), x.strides(), "{name}");
        assert_eq!(grad.strides(), x.strides(), "{name}, the gradient");
        let pairs =
            [(Some(y), Some(expected)), (Some(grad), Some(expected_grad)), (of_weight, expected_weight)];
        for (got, expected) in pairs {
            let [got, expected] =
                [got, expected].map(|x| x.map(|x| x.to_vec::<f32>().unwrap()).unwrap_or_default());
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-4 * b.abs().max(1.0);
            assert!(
                got.len() == expected.len() && got.iter().zip(&expected).all(close),
                "{name}: {got:?} {expected:?}"
            );
        }
    }
}

#[test]
fn one_value_a_channel_has_no_statistics() {
    let x = Tensor::ones(&[1, 3], &Device::cpu()).unwrap();
    let training = BatchNormOptions { training: true, ..BatchNormOptions::default() };
    let error = x.batch_norm(None, None, None, training).unwrap_err().to_string();
    assert!(error.contains("one value per channel in input [1, 3]"), "{error}");
}

#[test]
fn their_derivatives_have_derivatives() {
    let device = Device::cpu();
    let fixed = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| (i * 3 % 5) as f32 / 5.0 - 0.3).collect();
        Tensor::from_slice(&values, shape, &device).unwrap()
    };
    let training = BatchNormOptions { training: true, eps: 1e-1, ..BatchNormOptions::default() };
    check_second("rms_norm", &[2, 3], |x| x.rms_norm(Some(&fixed(&[3])), 1e-2));
    check_second("add_rms_norm", &[2, 3], |x| {
        let (sum, y) = x.add_rms_norm(fixed(&[2, 3]), Some(&fixed(&[3])), 1e-1)?;
        sum.mul(&y)
    });
    check_second("add_layer_norm", &[2, 3], |x| {
        let (sum, y) = x.add_layer_norm(fixed(&[2, 3]), Some(&fixed(&[3])), None, 1e-1)?;
        sum.mul(&y)
    });
    check_second("group_norm", &[1, 4, 2], |x| x.group_norm(2, Some(&fixed(&[4])), None, 1e-1));
    check_second("batch_norm", &[3, 2], |x| x.batch_norm(None, Some(&fixed(&[2])), None, training));
    check_second("silu", &[2, 3], Tensor::silu);
    check_second("mish", &[2, 3], Tensor::mish);
    check_second("swiglu", &[2, 3], |x| x.swiglu(&x.square()?));
    let weight = fixed(&[2, 3]);
    check_second("activation_linear", &[2, 3], |x| x.activation_linear(Activation::Gelu, &weight, None));
    check_second("linear_activation", &[2, 3], |x| x.linear_activation(Activation::Silu, &weight, None));
    let (cos, sin) = Tensor::rotary_tables(2, 4, 100.0, &device).unwrap();
    check_second("apply_rotary", &[2, 4], |x| x.apply_rotary(&cos, &sin, Rotary::Halves)?.square());
    let target = fixed(&[2, 3]);
    check_second("huber_loss", &[2, 3], |x| x.huber_loss(&target, 0.7, Reduction::Sum));
    check_second("bce", &[2, 3], |x| {
        x.binary_cross_entropy_with_logits(&target, None, None, Reduction::Mean)
    });
}
