//! Cases for the conformance suite: batch normalization compared with its definition.

use smallvec::smallvec;

use super::call::{BatchNormArgs, BatchNormOptions};
use crate::suite::Case;
use crate::tensor::Tensor;

/// The definition, for `[batch, channels, inner]`; with weight and bias if given.
fn naive([batch, channels, inner]: [usize; 3], ins: &[Vec<f64>], relu: bool) -> Vec<f64> {
    let mut out = vec![0.0; ins[0].len()];
    for channel in 0..channels {
        let at = |i: usize| (i / inner * channels + channel) * inner + i % inner;
        let n = batch * inner;
        let mean = (0..n).map(|i| ins[0][at(i)]).sum::<f64>() / n as f64;
        let variance = (0..n).map(|i| (ins[0][at(i)] - mean).powi(2)).sum::<f64>() / n as f64;
        let scale = |i: usize, none: f64| ins.get(i).map_or(none, |scale| scale[channel]);
        for i in 0..n {
            let y = (ins[0][at(i)] - mean) / (variance + 1e-2).sqrt() * scale(1, 1.0) + scale(2, 0.0);
            out[at(i)] = if relu && y <= 0.0 { 0.0 } else { y };
        }
    }
    out
}

/// The definition with a residual, which is the second input, followed by ReLU.
fn naive_residual(sizes: [usize; 3], ins: &[Vec<f64>]) -> Vec<f64> {
    let rest: Vec<Vec<f64>> = [0, 2, 3].iter().filter_map(|&i| ins.get(i).cloned()).collect();
    let normal = naive(sizes, &rest, false);
    normal.iter().zip(&ins[1]).map(|(y, residual)| (y + residual).max(0.0)).collect()
}

pub(crate) fn cases() -> Vec<Case> {
    // An `eps` at which the third derivative is small enough for finite differences.
    let training = BatchNormOptions { training: true, eps: 1e-2, ..BatchNormOptions::default() };
    let case = |sizes: [usize; 3], shapes: &[&[usize]], relu: bool| {
        Case::new(format!("batch_norm {shapes:?}, relu {relu}"), shapes, move |ins| {
            let (weight, bias) = (ins.get(1).copied(), ins.get(2).copied());
            Ok(smallvec![match relu {
                true => ins[0].batch_norm_relu(None, weight, bias, training)?,
                false => ins[0].batch_norm(None, weight, bias, training)?,
            }])
        })
        .expect(move |ins| vec![naive(sizes, ins, relu)])
    };
    let given = |relu: bool| {
        let shapes: [&[usize]; 3] = [&[2, 3, 2, 2], &[3], &[3]];
        Case::new(format!("batch_norm by given statistics, relu {relu}"), &shapes, move |ins| {
            let (device, options) = (ins[0].device(), BatchNormOptions::default());
            let mean = Tensor::full(&[3], 0.1, ins[0].dtype(), device)?;
            let variance = Tensor::full(&[3], 2.0, ins[0].dtype(), device)?;
            let running = Some((&mean, &variance));
            Ok(smallvec![match relu {
                true => ins[0].batch_norm_relu(running, Some(ins[1]), Some(ins[2]), options)?,
                false => ins[0].batch_norm(running, Some(ins[1]), Some(ins[2]), options)?,
            }])
        })
    };
    let residual = |shapes: &[&[usize]]| {
        Case::new(format!("batch_norm, a residual and relu, {shapes:?}"), shapes, move |ins| {
            let (weight, bias) = (ins.get(2).copied(), ins.get(3).copied());
            let args = BatchNormArgs { training: true, eps: 1e-2, relu: true, ..BatchNormArgs::default() };
            let args = BatchNormArgs { residual: Some(ins[1]), weight, bias, ..args };
            Ok(smallvec![ins[0].batch_norm_with(args)?])
        })
        .without_derivative()
    };
    vec![
        residual(&[&[2, 3, 2, 2], &[2, 3, 2, 2], &[3], &[3]])
            .expect(|ins| vec![naive_residual([2, 3, 4], ins)]),
        residual(&[&[4, 2], &[4, 2]]),
        case([6, 3, 1], &[&[6, 3]], false),
        case([3, 2, 6], &[&[3, 2, 2, 3], &[2], &[2]], false),
        case([2, 3, 4], &[&[2, 3, 4], &[3], &[3]], true).without_derivative(),
        given(false),
        given(true).without_derivative(),
    ]
}
