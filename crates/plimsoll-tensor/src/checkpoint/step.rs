//! Functions that run one after the other: a [`Step`] is one of them, and a [`Sequence`] is all of them.

use std::ops::Range;
use std::sync::Arc;

use crate::error::Result;
use crate::tensor::Tensor;

/// One function of a sequence. Clones are the same function.
#[derive(Clone)]
pub struct Step(Arc<Apply>);

type Apply = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Step {
    /// Makes a step from a function that takes one tensor.
    pub fn new(f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Step {
        Step(Arc::new(f))
    }

    /// Runs the function.
    ///
    /// # Errors
    /// Its errors.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        (self.0)(x)
    }
}

/// Functions of one tensor that run one after the other, such as the blocks of a model. A list of [`Step`]s is a
/// sequence. Implement this trait for functions that are faster together than one by one, because the end of one is
/// fused with the beginning of the next.
///
/// ```
/// use plimsoll_tensor::checkpoint::{Budget, Checkpointer, Sequence};
/// use plimsoll_tensor::{Device, Result, Tensor};
/// use std::{ops::Range, sync::Arc};
/// /// `scale` times the input, `count` times.
/// struct Powers { scale: f64, count: usize }
/// impl Sequence for Powers {
///     fn len(&self) -> usize { self.count }
///     fn run(&self, range: Range<usize>, x: &Tensor) -> Result<Tensor> {
///         x * self.scale.powi(range.len() as i32)
///     }
/// }
/// let x = Tensor::ones(&[3], &Device::cpu())?.requires_grad_(true)?;
/// let powers: Arc<dyn Sequence> = Arc::new(Powers { scale: 2.0, count: 8 });
/// let y = Checkpointer::new(Budget::Auto).forward_sequence(&powers, &x)?;
/// assert_eq!(y.to_vec::<f32>()?, [256.0; 3]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[allow(clippy::len_without_is_empty, reason = "an empty sequence is as good as any other")]
pub trait Sequence: Send + Sync {
    /// The number of functions.
    fn len(&self) -> usize;

    /// Runs these functions, the first of them on `x`. The values must not depend on how the sequence is cut.
    ///
    /// # Errors
    /// The errors of the functions.
    fn run(&self, range: Range<usize>, x: &Tensor) -> Result<Tensor>;
}

impl Sequence for Vec<Step> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn run(&self, range: Range<usize>, x: &Tensor) -> Result<Tensor> {
        self[range].iter().try_fold(x.clone(), |x, function| function.forward(&x))
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Step")
    }
}
