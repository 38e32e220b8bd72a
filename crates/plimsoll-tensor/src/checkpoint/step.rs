//! One function of a sequence: [`Step`].

use std::sync::Arc;

use crate::error::Result;
use crate::tensor::Tensor;

/// One function of a sequence. Clones are the same function.
#[derive(Clone)]
pub struct Step(Arc<Apply>);

type Apply = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Step {
    /// Makes a step from a function of one tensor.
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

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Step")
    }
}
