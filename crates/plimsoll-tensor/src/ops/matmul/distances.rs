//! Norms, distances and angles of vectors, and the losses of metric learning. Composed of other operations, with PyTorch's
//! formulas.

use crate::cpu::kernels::loss::Reduction;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// Divides the vectors along a dimension by their Euclidean norm, or by `1e-12` if that is larger. Like
    /// `torch.nn.functional.normalize`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 4.0], &[1, 2], &Device::cpu())?;
    /// assert_eq!(x.normalize(1)?.to_vec::<f32>()?, [0.6, 0.8]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a dimension is out of range, the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn normalize(&self, dim: isize) -> Result<Tensor> {
        self.div(&self.norm_keepdim(2.0, &[dim])?.clamp_min(1e-12)?)
    }

    /// The cosine of the angle between vectors along a dimension; both are broadcast. Like
    /// `torch.nn.functional.cosine_similarity`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::normalize`], or if the shapes do not broadcast.
    #[track_caller]
    pub fn cosine_similarity(&self, other: impl AsRef<Tensor>, dim: isize) -> Result<Tensor> {
        let other = other.as_ref();
        let length = |x: &Tensor| x.norm_keepdim(2.0, &[dim])?.clamp_min(1e-8);
        self.div(&length(self)?)?.mul(&other.div(&length(other)?)?)?.sum_dims(&[dim])
    }

    /// The `p`-norm of the difference of vectors along the last dimension; `1e-6` is added to the difference. Like
    /// `torch.nn.functional.pairwise_distance`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cosine_similarity`].
    #[track_caller]
    pub fn pairwise_distance(&self, other: impl AsRef<Tensor>, p: f64) -> Result<Tensor> {
        let other = other.as_ref();
        self.sub(other)?.add_scalar(1e-6)?.norm_dims(p, &[-1])
    }

    /// `max(d(self, positive) - d(self, negative) + margin, 0)` with the Euclidean distance. Like
    /// `torch.nn.functional.triplet_margin_loss`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cosine_similarity`].
    #[track_caller]
    pub fn triplet_margin_loss(
        &self,
        positive: impl AsRef<Tensor>,
        negative: impl AsRef<Tensor>,
        margin: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let (positive, negative) = (positive.as_ref(), negative.as_ref());
        let near = self.pairwise_distance(positive, 2.0)?;
        let far = self.pairwise_distance(negative, 2.0)?;
        let losses = near.sub(&far)?.add_scalar(margin)?.clamp_min(0.0)?;
        match reduction {
            Reduction::None => Ok(losses),
            Reduction::Sum => losses.sum(),
            Reduction::Mean => losses.mean(),
        }
    }
}
