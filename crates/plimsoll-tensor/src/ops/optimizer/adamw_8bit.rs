//! A step of AdamW with moments in 8 bits, on the host.

use smallvec::SmallVec;

use crate::cpu::kernels::optim::AdamW8bitStep;
use crate::cpu::kernels::optim::adamw_8bit::{Quantized, adamw_8bit_step};
use crate::cpu::kernels::optim::rounding::Rounding;
use crate::view::{In, Out};

/// One step of a parameter with this state: the codes of both moments, then the largest size in each block of both.
pub(super) fn step(
    options: &AdamW8bitStep,
    step: u64,
    parameter: Out<'_>,
    grad: &In<'_>,
    state: SmallVec<[Out<'_>; 3]>,
    rounding: Option<Rounding>,
) {
    let mut state = state.into_iter();
    let mut next = || state.next().unwrap_or_else(|| unreachable!("inferred"));
    let (first, second) = (next(), next());
    let quantized: [Quantized<'_>; 2] =
        [first, second].map(|moment| (moment.elements::<u8>(), next().elements::<f32>()));
    let dtype = parameter.dtype();
    let grad = (grad.bytes(), grad.dtype());
    adamw_8bit_step(options, step, (parameter.bytes(), dtype), grad, quantized, rounding);
}
