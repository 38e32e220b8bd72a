//! Weighted sampling of indices, reproducible from the device's seed.

use std::sync::Arc;

use smallvec::smallvec;

use crate::cpu::kernels::multinomial::{BadWeights, multinomial, multinomial_scratch_len};
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::parallel::scratch_workers;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::{Dims, Layout};
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::{scratch_bytes, want_float};
use crate::random::RandomStream;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `weights -> indices`, for each row.
#[derive(Clone, Copy, Debug)]
struct Multinomial {
    drawn: usize,
    replace: bool,
    from: RandomStream,
}

impl Kernel for Multinomial {
    fn name(&self) -> &'static str {
        "multinomial"
    }

    fn varies(&self) -> Option<Varies> {
        Some(Varies::Random(self.from))
    }

    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(Multinomial { from, ..*self }))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::random::multinomial(call, self.drawn, self.replace, self.from)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([weights], [out]) = call.split();
        let (cols, rank) = (weights.shape().last().copied().unwrap_or(1), weights.shape().len());
        let (how, from) = ((self.drawn, self.replace), self.from);
        let done = by_float!(weights.dtype(), T => {
            multinomial::<T>(cols, weights.elements(), how, from, out.elements(), scratch)
        });
        done.map_err(|bad| {
            let message = match bad {
                BadWeights::Weight { row, place, value } => {
                    let at = if rank == 2 { format!("[{row}, {place}]") } else { format!("[{place}]") };
                    format!("weight {value} at {at}: needs finite weights of at least 0")
                }
                BadWeights::Few { row, found, needed } => {
                    let of = if rank == 2 { format!("row {row}") } else { "the row".to_owned() };
                    format!("{of} has {found} weights above 0: needs at least {needed}")
                }
            };
            Error::argument("multinomial", message)
        })
    }
}

impl Operator for Multinomial {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [weights] = operands::inputs("multinomial", ins)?;
        want_float("multinomial", weights.dtype)?;
        let (1..=2, Some(&cols)) = (weights.rank(), weights.shape().last()) else {
            let message = format!("weights {:?}: needs one row or a matrix of rows", weights.shape());
            return Err(Error::shape("multinomial", message));
        };
        if self.drawn == 0 || cols == 0 || (!self.replace && self.drawn > cols) {
            let how = if self.replace { "with" } else { "without" };
            let message = format!("cannot draw {} of {cols} indices {how} replacement", self.drawn);
            return Err(Error::argument("multinomial", message));
        }
        let mut shape = Dims::from_slice(weights.shape());
        let last = shape.len() - 1;
        shape[last] = self.drawn;
        Ok(smallvec![Output::new(&shape, DType::I64)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda {
            return cuda::random::multinomial_scratch(ins[0].layout.len());
        }
        let shape = ins[0].shape();
        let cols = shape.last().copied().unwrap_or(1);
        let rows = if shape.len() == 2 { shape[0] } else { 1 };
        scratch_bytes(scratch_workers(rows) * multinomial_scratch_len(cols))
    }
}

impl Tensor {
    /// Draws `drawn` indices at random for each row of weights (`[n]` or `[rows, n]`, with any sum), as `int64`. Each index is
    /// drawn at most once unless `replace`. The numbers follow from the device's seed ([`crate::Device::manual_seed`]) and are
    /// the same on every machine. Like `torch.multinomial`, but with other random numbers.
    ///
    /// # Errors
    /// If a weight is negative, infinite or NaN, a row has too few positive weights, there are more samples than
    /// weights without replacement, or memory runs out.
    #[track_caller]
    pub fn multinomial(&self, drawn: usize, replace: bool) -> Result<Tensor> {
        let from = self.device().next_random();
        call_one(Multinomial { drawn, replace, from }, &[&self.detach()])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let from = RandomStream { seed: 1, stream: 2 };
    let case = |drawn: usize, replace: bool| {
        let op = Multinomial { drawn, replace, from };
        Case::new(format!("{op:?}"), &[&[3, 5]], move |ins| Ok(smallvec![call_one(op, ins)?]))
            .over(Domain::Positive)
            .without_derivative()
    };
    vec![case(7, true), case(5, false), case(2, false)]
}
