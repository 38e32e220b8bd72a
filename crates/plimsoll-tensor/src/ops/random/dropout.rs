//! Dropout that saves a seed, not a mask: its derivative draws the same elements again.

use std::sync::Arc;

use smallvec::smallvec;

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::parallel::for_each_piece;
use crate::cpu::kernels::philox::{Dropout as Factors, GROUP};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::Layout;
use crate::operator::{Backward, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::{want_float, want_same};
use crate::random::RandomStream;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> out`, or `x, residual -> out`: elements of `x` become 0 with probability `p`, the others are divided by `1 - p`.
#[derive(Clone, Copy, Debug)]
struct Dropout {
    p: f64,
    stream: RandomStream,
    residual: bool,
}

impl Kernel for Dropout {
    fn name(&self) -> &'static str {
        if self.residual { "dropout_add" } else { "dropout" }
    }

    fn varies(&self) -> Option<Varies> {
        Some(Varies::Random(self.stream))
    }

    fn with_random(&self, stream: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(Dropout { stream, ..*self }))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::random::dropout(call, self.p, self.stream)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [x, residual @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        let factors = Factors::new(self.p, self.stream);
        by_float!(out.dtype(), T => {
            let (x, residual) = (x.elements::<T>(), residual.first().map(|residual| residual.elements::<T>()));
            for_each_piece(out.elements::<T>(), 64 * GROUP, |start, out| {
                factors.write((start / GROUP) as u64, &x[start..], out);
                if let Some(residual) = residual {
                    out.iter_mut().zip(&residual[start..]).for_each(|(out, &x)| *out += x);
                }
            });
        });
        Ok(())
    }
}

impl Operator for Dropout {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, ..] = ins else { return Err(Error::argument(self.name(), "needs an input")) };
        want_float(self.name(), x.dtype)?;
        want_same(self.name(), ins)?;
        operands::equal_shapes(self.name(), ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    /// Elements are counted in row-major order, regardless of their layout.
    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        let same = Dropout { residual: false, ..*self };
        let mut results: Grads = smallvec![at.wants(0).then(|| call_one(same, &[grad])).transpose()?];
        if self.residual {
            results.push(Some(grad.clone()));
        }
        Ok(results)
    }
}

/// Whether any elements are dropped.
fn drops(op: &'static str, p: f64, training: bool) -> Result<bool> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(op, format!("p is {p}: a probability must be from 0 to 1")));
    }
    Ok(training && p > 0.0)
}

impl Tensor {
    /// In training, sets each element to 0 with probability `p` and divides the others by `1 - p`; otherwise returns the tensor
    /// itself. The elements follow from the device's seed, so nothing is saved for the backward pass. Like
    /// `torch.nn.functional.dropout`.
    ///
    /// # Errors
    /// If a probability is outside 0 to 1, the dtype is not floating-point, or memory runs out.
    #[track_caller]
    pub fn dropout(&self, p: f64, training: bool) -> Result<Tensor> {
        if !drops("dropout", p, training)? {
            return Ok(self.clone());
        }
        call_one(Dropout { p, stream: self.device().next_random(), residual: false }, &[self])
    }

    /// `self.dropout(p, training) + residual`, in one pass without an intermediate tensor if the dtypes are equal.
    ///
    /// # Errors
    /// The same errors as [`Tensor::dropout`], or if the shapes differ.
    #[track_caller]
    pub fn dropout_add(&self, residual: impl AsRef<Tensor>, p: f64, training: bool) -> Result<Tensor> {
        let residual = residual.as_ref();
        if !drops("dropout_add", p, training)? {
            return self.add(residual);
        }
        // Under autocast, a 16-bit branch is added to a 32-bit residual stream.
        if self.dtype() != residual.dtype() {
            return self.dropout(p, training)?.add(residual);
        }
        call_one(Dropout { p, stream: self.device().next_random(), residual: true }, &[self, residual])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let stream = RandomStream { seed: 4, stream: 2 };
    let case = |residual: bool, shapes: &[&[usize]]| {
        let op = Dropout { p: 0.4, stream, residual };
        Case::new(format!("{} {shapes:?}", op.name()), shapes, move |ins| call(op, ins))
    };
    vec![case(false, &[&[3, 50]]), case(true, &[&[2, 3, 4], &[2, 3, 4]])]
}
