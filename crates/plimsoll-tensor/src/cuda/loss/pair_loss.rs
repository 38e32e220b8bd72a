//! Elementwise losses of an input and a target of equal shape, from one expression: unreduced, summed, and the gradients.

use plimsoll_cuda::Args;

use crate::cuda::elementwise::expression::{Expression, NUMBERS, evaluate, hoisted};
use crate::cuda::{CudaCall, Placed, name};
use crate::error::Result;

const TEXT: &str = include_str!("pair_loss.cu");

/// The number of partial sums, which are added in a fixed order.
const PARTS: usize = 256;

/// Bytes of scratch memory of a summed loss.
pub(crate) const SCRATCH_BYTES: u64 = (PARTS * 8) as u64;

/// `x, target -> loss`: the sum of an expression of `a` and `b` over all pairs, times `weight`. Both inputs are contiguous.
pub(crate) fn sum(call: &mut CudaCall<'_>, expression: &str, weight: f64) -> Result<()> {
    let ([x, target], out) =
        (<[Placed<'_>; 2]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    let (dtype, parts) = (call.float(&[x, target, out])?, call.scratch_address());
    let (text, numbers): (String, [f64; NUMBERS]) = hoisted(expression);
    let source = call.source(TEXT).with("C", name(dtype.accumulator())).with("T", name(dtype));
    let args = Args::new().address(parts).address(x.address).address(target.address).size(x.len());
    let first = source.clone().with("PASS", "0").with("EXPRESSION", format!("({text})"));
    call.launch(first, [PARTS, 1, 1], 512, args.words(&numbers.map(f64::to_bits)))?;
    let args = Args::new().address(out.address).address(parts).size(PARTS).f64(weight);
    call.launch(source.with("PASS", "1"), [1; 3], 512, args)
}

/// `grad, x, target -> grad` of the input or the target: the derivative, an expression of `b` and `c`, times `grad` and
/// `weight`.
pub(crate) fn gradient(call: &mut CudaCall<'_>, derivative: &str, weight: f64) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let text = format!("{derivative} * (a * C({weight:?}))");
    evaluate(call, Expression::new(text, out.dtype), &ins, out)
}
