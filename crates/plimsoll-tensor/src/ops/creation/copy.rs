//! Copies: into new memory, and between dtypes.

use smallvec::smallvec;

use crate::dispatch::{Copy, call, call_one};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

impl Operator for Copy {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![match self.to {
            None => Output::new(x.shape(), x.dtype),
            Some(dtype) => Output::laid_out(x.layout.dense(), dtype),
        }])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        Ok(smallvec![at.grad(0).map(|grad| grad.to_dtype(at.dtype(0))).transpose()?])
    }
}

impl Tensor {
    /// The values in row-major order without gaps. Returns the tensor itself if it is contiguous, otherwise a copy.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A contiguous copy with its own storage. Gradients flow through it. Like `Tensor.clone`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn copy(&self) -> Result<Tensor> {
        call_one(Copy::AS_IT_IS, &[self])
    }

    /// Converts the values to a different dtype. Floats round to the nearest; conversion to integers truncates and saturates;
    /// integers wrap; `bool` is true where a value is not zero. Gradients flow between floating-point dtypes. Like
    /// `Tensor.to(dtype)`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        call_one(Copy { to: Some(dtype) }, &[self])
    }
}

impl Tensor {
    /// Converts to `float64`. Like `Tensor.double()`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn double(&self) -> Result<Tensor> {
        self.to_dtype(DType::F64)
    }

    /// Converts to `float32`. Like `Tensor.float()`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn float(&self) -> Result<Tensor> {
        self.to_dtype(DType::F32)
    }

    /// Converts to `float16`. Like `Tensor.half()`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn half(&self) -> Result<Tensor> {
        self.to_dtype(DType::F16)
    }

    /// Converts to `bfloat16`. Like `Tensor.bfloat16()`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn bfloat16(&self) -> Result<Tensor> {
        self.to_dtype(DType::BF16)
    }

    /// Converts to `int64`. Like `Tensor.long()`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn long(&self) -> Result<Tensor> {
        self.to_dtype(DType::I64)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let same = |ins: &[Vec<f64>]| vec![ins[0].clone()];
    let whole = |ins: &[Vec<f64>]| vec![ins[0].iter().map(|x| x.trunc()).collect()];
    vec![
        Case::new("copy", &[&[3, 4]], |ins| call(Copy::AS_IT_IS, ins)).expect(same),
        Case::new("to_dtype", &[&[3, 4]], |ins| call(Copy { to: Some(DType::I32) }, ins))
            .expect(whole)
            .without_derivative(),
        Case::new("to_dtype there and back", &[&[3, 4]], |ins| {
            Ok(smallvec![ins[0].to_dtype(DType::F64)?.to_dtype(DType::F32)?])
        })
        .expect(same),
    ]
}
