//! Bicubic resampling of images: a product with a small matrix along each of the two dimensions.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The coefficient of cubic convolution that PyTorch uses.
const A: f64 = -0.75;

/// One dimension: the sizes of input and output, and the number of input elements per output element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) size: usize,
    pub(super) out: usize,
    pub(super) ratio: f64,
}

impl Axis {
    /// `[out, size]`: the weight of each input element in each output element. Positions outside read the nearest edge.
    fn shares(self, align_corners: bool) -> Vec<f64> {
        let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
        let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
        let mut shares = vec![0.0; self.out * self.size];
        for (i, row) in shares.chunks_mut(self.size).enumerate() {
            let at = match align_corners {
                true => i as f64 * self.ratio,
                false => (i as f64 + 0.5) * self.ratio - 0.5,
            };
            let (first, t) = (at.floor(), at - at.floor());
            for (tap, share) in [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)].into_iter().enumerate() {
                let place = (first + tap as f64 - 1.0).clamp(0.0, self.size as f64 - 1.0);
                row[place as usize] += share;
            }
        }
        shares
    }
}

impl Tensor {
    /// `[batch, channels, height, width]` resampled by cubic convolution.
    #[track_caller]
    pub(super) fn bicubic(&self, axes: [Axis; 2], align_corners: bool) -> Result<Tensor> {
        if !self.dtype().is_float() {
            let expected = "a floating-point type";
            return Err(Error::DType { op: "interpolate", expected, got: self.dtype() });
        }
        let matrix = |axis: Axis| {
            let shares = axis.shares(align_corners);
            Tensor::from_slice(&shares, &[axis.out, axis.size], self.device())?.to_dtype(self.dtype())
        };
        let (height, width) = (matrix(axes[0])?, matrix(axes[1])?.t()?);
        // First resample the dimension that gives the smaller intermediate tensor.
        match axes[0].out * axes[1].size <= axes[0].size * axes[1].out {
            true => height.matmul(self)?.matmul(&width),
            false => height.matmul(&self.matmul(&width)?),
        }
    }
}
