//! Optimizers: one step of many parameters in one launch.

use plimsoll_cuda::Args;

use super::one_by_one::{Stepped, slots};
use super::table::{Column, room_for, table};
use super::{StepSlot, halves};
use crate::cuda::{CudaCall, flag, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = concat!(include_str!("table.cu"), include_str!("rounding.cu"), include_str!("step.cu"));
/// Elements per block; the same value as in the kernel text.
const CHUNK: u64 = 4096;
/// The maximum number of parameters per launch: a kernel's arguments can have at most 32,764 bytes.
const MOST: usize = 512;

/// The properties that must be equal for all parameters of a launch.
fn kind(slot: &Stepped<'_>) -> (u64, [DType; 4], bool) {
    let state = slot.state.first().map_or(DType::F32, |state| state.dtype);
    let rounded = slot.rounded.map_or(DType::F32, |rounded| rounded.dtype);
    (slot.step, [slot.parameter.dtype, slot.grad.dtype, state, rounded], slot.seed.is_some())
}

/// The variant of the kernel text for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepForm {
    /// Stochastic gradient descent. Numbers: learning rate, weight decay.
    Sgd,
    /// Stochastic gradient descent with momentum. Additional numbers: momentum, 1 - dampening, whether this is the
    /// first step, whether to use Nesterov momentum.
    Momentum,
    /// Adam and AdamW. Numbers: step size, L2 penalty, decoupled decay factor, 1 - beta1, beta2, 1 - beta2, the square root of
    /// the second bias correction, eps.
    Adam,
}

/// The form of a rule and its numbers at a step; `None` if it has no kernel.
type NumbersAt<'n> = dyn Fn(u64) -> Option<(StepForm, [f64; 8])> + 'n;

/// `grads -> parameters, states[, rounded]` in place.
pub(crate) fn step(
    call: &mut CudaCall<'_>,
    forms: &[StepSlot],
    rounds: bool,
    numbers: impl Fn(u64) -> Option<(StepForm, [f64; 8])>,
) -> Result<()> {
    let all = slots(call, forms, rounds);
    for alike in all.chunk_by(|a, b| kind(a) == kind(b)) {
        alike.chunks(MOST).try_for_each(|some| launch(call, &numbers, some))?;
    }
    Ok(())
}

fn launch(call: &mut CudaCall<'_>, numbers: &NumbersAt<'_>, slots: &[Stepped<'_>]) -> Result<()> {
    let Some((form, numbers)) = numbers(slots[0].step) else { return call.missing() };
    let (step, [parameter, grad, state, rounded], is_random) = kind(&slots[0]);
    let room = room_for(slots.len(), MOST);
    let source = call
        .source(TEXT)
        .with("P", name(parameter))
        .with("G", name(grad))
        .with("S", name(state))
        .with("R", name(rounded))
        .with("ROUNDS", flag(slots[0].rounded.is_some()))
        .with("RANDOM", flag(is_random))
        .with("MOST", room.to_string())
        .with("RULE", (form as u8).to_string());
    let state = |nth: usize| move |slot: &Stepped<'_>| slot.state(nth);
    let (first, second) = (state(0), state(1));
    let columns: [Column<'_, Stepped<'_>>; 6] = [
        &|slot| slot.parameter.len() as u64,
        &|slot| slot.parameter.address,
        &|slot| slot.grad.address,
        &first,
        &second,
        &|slot| slot.seed.or(slot.rounded.map(|rounded| rounded.address)).unwrap_or(0),
    ];
    let (words, blocks) = table(slots, room, CHUNK, &columns);
    let [a, b, c, d] = halves(numbers);
    let args = Args::new().words(&words).words(&[a, b, c, d, 2 * step]);
    call.launch(source, [blocks, 1, 1], 256, args)
}
