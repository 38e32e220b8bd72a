//! The sum over the first dimension, in a fixed order, so that a sum over ranks is bit-identical on any device and with
//! any transport.

use smallvec::smallvec;

use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::reduce::ordered_sum::{ordered_sum, ordered_sum_of};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::want_float;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x -> out`: the sum over the first dimension, times `scale`.
#[derive(Clone, Copy, Debug)]
struct OrderedSum {
    scale: f64,
}

impl Kernel for OrderedSum {
    fn name(&self) -> &'static str {
        "ordered_sum"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let parts = call.ins[0].shape()[0];
        cuda::reduce::ordered_sum::ordered_sum(call, parts, None, self.scale)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        by_float!(x.dtype(), T => {
            ordered_sum::<T>(x.shape()[0], x.elements(), T::of(self.scale), out.elements());
        });
        Ok(())
    }
}

impl Operator for OrderedSum {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name(), ins)?;
        want_float(self.name(), x.dtype)?;
        match x.shape() {
            [parts, rest @ ..] if *parts > 0 => Ok(smallvec![Output::new(rest, x.dtype)]),
            shape => {
                let message =
                    format!("{shape:?} has no parts: the first dimension, their number, must be at least 1");
                Err(Error::shape(self.name(), message))
            }
        }
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let grad = grad.mul_scalar(self.scale)?.to_dtype(at.dtype(0))?;
        Ok(smallvec![Some(grad.unsqueeze(0)?.expand(at.shape(0))?)])
    }
}

impl Tensor {
    /// The sum over the first dimension, times `scale`, in a fixed order. The order is a balanced tree. For n parts, it adds two
    /// trees: one over the first k parts, where k is the largest power of two below n, and one over the rest. 16-bit floats are
    /// added in 32 bits and rounded once. The same values give the same bits on every device.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let parts = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2], &Device::cpu())?;
    /// assert_eq!(parts.ordered_sum(0.5)?.to_vec::<f32>()?, [4.5, 6.0]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor has no dimensions, or its first dimension is 0; if the type is not a floating-point type; or if
    /// memory runs out.
    #[track_caller]
    pub fn ordered_sum(&self, scale: f64) -> Result<Tensor> {
        call_one(OrderedSum { scale }, &[self])
    }
}

/// `others, own, out -> out`, or `others, out -> out`: the ordered sum of the parts of `others` and one more, `own`, whose
/// number among all parts is `at`. Without `own`, `out` holds it. `out` may have the type in which values are added.
#[derive(Clone, Copy, Debug)]
struct OrderedSumInto {
    at: usize,
    scale: f64,
}

impl Kernel for OrderedSumInto {
    fn name(&self) -> &'static str {
        "ordered_sum_into"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let parts = call.ins[0].shape()[0] + 1;
        cuda::reduce::ordered_sum::ordered_sum(call, parts, Some(self.at), self.scale)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let CpuCall { ins, mut outs, .. } = call;
        let Some(out) = outs.pop() else { unreachable!("inferred") };
        let (others, own) = (ins[0], ins.get(1));
        by_float!(others.dtype(), T => {
            // A sum of a different type has 32 bits; 16-bit floats are passed in 32 bits as well.
            let (count, out) = (others.shape()[0], out.elements::<T>());
            let all = others.elements::<T>();
            let other = |part: usize| Some(&all[part * out.len()..(part + 1) * out.len()]);
            let mut parts: Vec<Option<&[T]>> = (0..count).map(other).collect();
            parts.insert(self.at, own.map(|own| own.elements()));
            ordered_sum_of(&parts, T::of(self.scale), out);
        });
        Ok(())
    }
}

impl Operator for OrderedSumInto {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let out = ins.len() - 1;
        Ok(smallvec![Output::in_place(out, &ins[out])])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }
}

/// Writes to `out`, `[len]`, the [ordered sum](Tensor::ordered_sum) of the parts of `others`, `[parts - 1, len]`, and of `own`, `[len]`,
/// which is part number `at`. Without `own`, that part is read from `out`, which then has the type of the parts. Otherwise it
/// may have the type in which they are added.
pub(crate) fn ordered_sum_into(
    out: &Tensor,
    others: &Tensor,
    own: Option<&Tensor>,
    at: usize,
    scale: f64,
) -> Result<()> {
    let mut ins = vec![others];
    ins.extend(own);
    ins.push(out);
    call(OrderedSumInto { at, scale }, &ins).map(drop)
}

/// The cases that the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let run = |ins: &[&Tensor]| call(OrderedSum { scale: 0.25 }, ins);
    let sum = |ins: &[Vec<f64>], len: usize| {
        vec![(0..len).map(|i| ins[0].iter().skip(i).step_by(len).sum::<f64>() / 4.0).collect()]
    };
    vec![
        Case::new("ordered_sum", &[&[5, 7]], run).expect(move |ins| sum(ins, 7)),
        Case::new("ordered_sum of matrices", &[&[2, 3, 4]], run).expect(move |ins| sum(ins, 12)),
        Case::new("ordered_sum of one", &[&[1, 6]], run).expect(move |ins| sum(ins, 6)),
        Case::new("ordered_sum_into", &[&[4, 7], &[7], &[7]], |ins| {
            let out = ins[2].copy()?;
            call(OrderedSumInto { at: 2, scale: 0.25 }, &[ins[0], ins[1], &out])
        })
        .expect(move |ins| sum(&[[&ins[0][..], &ins[1]].concat()], 7))
        .without_derivative(),
        Case::new("ordered_sum_into of its own part", &[&[2, 5], &[5]], |ins| {
            let out = ins[1].copy()?;
            call(OrderedSumInto { at: 0, scale: 0.25 }, &[ins[0], &out])
        })
        .expect(move |ins| sum(&[ins.concat()], 5))
        .without_derivative(),
    ]
}
