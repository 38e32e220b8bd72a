//! The operator: transforms the rows of the last dimension, or of the one before the pairs.

use smallvec::smallvec;

use crate::cpu::kernels::fft::{Factors, Transform, fft_scratch_len, transform};
use crate::cpu::kernels::number::by_float;
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::{scratch_bytes, want_full};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> out`: rows of length `n`, which is not 0.
#[derive(Clone, Copy, Debug)]
struct Rows {
    transform: Transform,
    n: usize,
    factors: Factors,
}

impl Rows {
    /// The transposed operator, which is the derivative.
    fn transposed(self) -> Rows {
        let Factors { all, doubled } = self.factors;
        let (transform, doubled) = match self.transform {
            Transform::Forward => (Transform::Backward, doubled),
            Transform::Backward => (Transform::Forward, doubled),
            // In the backward transform of real rows, a number that represents a conjugate pair counts twice.
            Transform::FromReal => (Transform::ToReal, doubled / 2.0),
            Transform::ToReal => (Transform::FromReal, doubled * 2.0),
        };
        Rows { transform, n: self.n, factors: Factors { all, doubled } }
    }

    /// The dimensions of a row that is read, and of one that is written.
    fn sizes(self) -> [Vec<usize>; 2] {
        let (real, half, whole) = (vec![self.n], vec![self.n / 2 + 1, 2], vec![self.n, 2]);
        match self.transform {
            Transform::Forward | Transform::Backward => [whole.clone(), whole],
            Transform::FromReal => [real, half],
            Transform::ToReal => [half, real],
        }
    }
}

impl Kernel for Rows {
    fn name(&self) -> &'static str {
        match self.transform {
            Transform::Forward => "fft_fft",
            Transform::Backward => "fft_ifft",
            Transform::FromReal => "fft_rfft",
            Transform::ToReal => "fft_irfft",
        }
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([x], [out]) = call.split();
        by_float!(x.dtype(), T => {
            transform::<T>(self.transform, self.n, self.factors, x.elements(), out.elements(), scratch);
        });
        Ok(())
    }
}

impl Operator for Rows {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        want_full(self.name(), x.dtype)?;
        let [read, written] = self.sizes();
        let Some(lead) = x.shape().strip_suffix(&read[..]) else {
            return Err(Error::shape(self.name(), format!("{:?}: needs […, {read:?}]", x.shape())));
        };
        Ok(smallvec![Output::new(&[lead, &written].concat(), x.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, _: &[Meta<'_>], outs: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let rows = outs[0].layout.len() / self.sizes()[1].iter().product::<usize>();
        let floats = by_float!(outs[0].dtype, T => fft_scratch_len::<T>(self.transform, self.n, rows));
        scratch_bytes(floats)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let longest = ins[0].layout.len().max(outs[0].layout.len()) as u64;
        Cost::streaming(5 * longest / 2 * u64::from(self.n.ilog2() + 1), ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        Ok(smallvec![Some(call_one(self.transposed(), &[grad])?)])
    }
}

/// Transforms rows of length `n`, and multiplies the results by `factor`.
#[track_caller]
pub(super) fn rows(x: &Tensor, transform: Transform, n: usize, factor: f64) -> Result<Tensor> {
    call_one(Rows { transform, n, factors: Factors { all: factor, doubled: 1.0 } }, &[x])
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |transform: Transform, n: usize, doubled: f64| {
        let op = Rows { transform, n, factors: Factors { all: 0.5, doubled } };
        let shape = [&[2][..], &op.sizes()[0]].concat();
        Case::new(format!("{op:?}"), &[&shape], move |ins| call(op, ins))
    };
    vec![
        case(Transform::Forward, 5, 1.0),
        case(Transform::Backward, 4, 1.0),
        case(Transform::FromReal, 4, 1.0),
        case(Transform::FromReal, 5, 3.0),
        case(Transform::FromReal, 1, 1.0),
        case(Transform::ToReal, 4, 1.0),
        case(Transform::ToReal, 3, 0.5),
        case(Transform::ToReal, 1, 1.0),
    ]
}
