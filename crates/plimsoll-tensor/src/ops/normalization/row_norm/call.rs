//! The row-normalization methods of tensors, and their cases for the conformance suite.

use smallvec::{SmallVec, smallvec};

use super::RowNorm;
use crate::autocast;
use crate::cpu::kernels::row_norm::Center;
use crate::dispatch::{Tensors, call};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::suite::Case;
use crate::tensor::Tensor;

/// The dtype of a sum: under autocast it is computed in 32 bits.
fn sum_type(x: &Tensor) -> Option<DType> {
    Some(if autocast::is_enabled() { x.dtype().accumulator() } else { x.dtype() })
}

impl RowNorm {
    #[track_caller]
    fn run(self, operands: &[&Tensor], weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensors> {
        if weight.is_none() && bias.is_some() {
            return Err(Error::argument(self.name(), "a bias without a weight: give a weight of ones"));
        }
        let mut ins: SmallVec<[&Tensor; 4]> = SmallVec::from_slice(operands);
        ins.extend(weight);
        ins.extend(bias);
        call(self, &ins)
    }
}

impl Tensor {
    /// Normalizes each row along the last dimension to mean 0 and standard deviation 1, then multiplies by `weight` and adds
    /// `bias`. `eps` is added to the variance. Like `torch.nn.functional.layer_norm`.
    ///
    /// # Errors
    /// If there is a bias but no weight, the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn layer_norm<'a>(
        &self,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.into(), bias.into());
        let op = RowNorm { center: Center::Mean, sum: None, eps };
        Ok(op.run(&[self], weight, bias)?.remove(0))
    }

    /// Divides each row along the last dimension by its root mean square, then multiplies by `weight`. `eps` is added to the
    /// mean square. Like `torch.nn.functional.rms_norm`.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn rms_norm<'a>(&self, weight: impl Into<Option<&'a Tensor>>, eps: f64) -> Result<Tensor> {
        let weight = weight.into();
        let op = RowNorm { center: Center::Zero, sum: None, eps };
        Ok(op.run(&[self], weight, None)?.remove(0))
    }

    /// Returns the sum `self + residual`, and that sum normalized by [`Tensor::rms_norm`]: one pass each in forward and
    /// backward.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn add_rms_norm<'a>(
        &self,
        residual: impl AsRef<Tensor>,
        weight: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        let (residual, weight) = (residual.as_ref(), weight.into());
        let op = RowNorm { center: Center::Zero, sum: sum_type(self), eps };
        let mut outs = op.run(&[self, residual], weight, None)?;
        Ok((outs.remove(2), outs.remove(0)))
    }

    /// Returns the sum `self + residual`, and that sum normalized by [`Tensor::layer_norm`]: one pass each in forward and
    /// backward.
    ///
    /// # Errors
    /// If there is a bias but no weight, the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn add_layer_norm<'a>(
        &self,
        residual: impl AsRef<Tensor>,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        let (residual, weight, bias) = (residual.as_ref(), weight.into(), bias.into());
        let op = RowNorm { center: Center::Mean, sum: sum_type(self), eps };
        let mut outs = op.run(&[self, residual], weight, bias)?;
        Ok((outs.remove(3), outs.remove(0)))
    }
}

/// The conformance suite's cases of layer normalization.
pub(crate) fn layer_norm_cases() -> Vec<Case> {
    let naive = |cols: usize| {
        move |ins: &[Vec<f64>]| {
            let row = |row: &[f64]| -> Vec<f64> {
                let mean = row.iter().sum::<f64>() / cols as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
                let normal = row.iter().map(|x| (x - mean) / (variance + 1e-5).sqrt()).enumerate();
                let scale = |i: usize, at: usize, none: f64| ins.get(i).map_or(none, |scale| scale[at]);
                normal.map(|(at, x)| x * scale(1, at, 1.0) + scale(2, at, 0.0)).collect()
            };
            vec![ins[0].chunks(cols).flat_map(row).collect()]
        }
    };
    let run =
        |ins: &[&Tensor]| Ok(smallvec![ins[0].layer_norm(ins.get(1).copied(), ins.get(2).copied(), 1e-5)?]);
    let shapes: [(usize, &[&[usize]]); 6] = [
        (5, &[&[3, 5]]),
        (5, &[&[3, 5], &[5]]),
        (7, &[&[2, 3, 7], &[7], &[7]]),
        (33, &[&[33], &[33], &[33]]),
        (64, &[&[19, 64], &[64], &[64]]),
        (1104, &[&[2, 1104], &[1104], &[1104]]),
    ];
    shapes
        .map(|(cols, shapes)| Case::new(format!("layer_norm {shapes:?}"), shapes, run).expect(naive(cols)))
        .into()
}

/// The conformance suite's cases of the other methods.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        let row = |row: &[f64]| -> Vec<f64> {
            let scale = (row.iter().map(|x| x * x).sum::<f64>() / 5.0 + 1e-5).sqrt();
            row.iter()
                .enumerate()
                .map(|(i, x)| x / scale * ins.get(1).map_or(1.0, |weight| weight[i]))
                .collect()
        };
        vec![ins[0].chunks(5).flat_map(row).collect()]
    };
    let rms = |shapes: &[&[usize]]| {
        let run = |ins: &[&Tensor]| Ok(smallvec![ins[0].rms_norm(ins.get(1).copied(), 1e-5)?]);
        Case::new(format!("rms_norm {shapes:?}"), shapes, run).expect(naive)
    };
    let add = |center: Center, shapes: &[&[usize]]| {
        let get = |ins: &[&Tensor], i: usize| ins.get(i).map(|&tensor| tensor.clone());
        Case::new(format!("normalized sum, {center:?}, {shapes:?}"), shapes, move |ins| {
            let (weight, bias) = (get(ins, 2), get(ins, 3));
            let (sum, normal) = match center {
                Center::Zero => ins[0].add_rms_norm(ins[1], weight.as_ref(), 1e-5)?,
                Center::Mean => ins[0].add_layer_norm(ins[1], weight.as_ref(), bias.as_ref(), 1e-5)?,
            };
            Ok(smallvec![sum, normal])
        })
    };
    vec![
        rms(&[&[3, 5]]),
        rms(&[&[2, 2, 5], &[5]]),
        add(Center::Zero, &[&[3, 5], &[3, 5]]),
        add(Center::Zero, &[&[3, 7], &[3, 7], &[7]]),
        add(Center::Zero, &[&[11, 32], &[11, 32], &[32]]),
        add(Center::Mean, &[&[3, 5], &[3, 5]]),
        add(Center::Mean, &[&[2, 2, 17], &[2, 2, 17], &[17], &[17]]),
        add(Center::Mean, &[&[13, 32], &[13, 32], &[32], &[32]]),
    ]
}
