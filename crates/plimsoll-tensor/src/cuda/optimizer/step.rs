//! Optimizers: one step of many parameters in one launch.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;

const TEXT: &str = include_str!("step.cu");
/// Elements per block; the same value as in the kernel text.
const CHUNK: usize = 4096;
/// The maximum number of parameters per launch: a kernel's arguments can have at most 32,764 bytes.
const MOST: usize = 512;

/// A parameter, its gradient and its state.
#[derive(Clone)]
struct Slot<'a> {
    parameter: Placed<'a>,
    grad: Placed<'a>,
    state: SmallVec<[Placed<'a>; 2]>,
    /// The tensor that receives the parameter's rounded values.
    rounded: Option<Placed<'a>>,
    step: u64,
}

impl Slot<'_> {
    /// The properties that must be equal for all parameters of a launch.
    fn kind(&self) -> (u64, [DType; 4]) {
        let state = self.state.first().map_or(DType::F32, |state| state.dtype);
        let rounded = self.rounded.map_or(DType::F32, |rounded| rounded.dtype);
        (self.step, [self.parameter.dtype, self.grad.dtype, state, rounded])
    }
}

/// The variant of the kernel text for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepForm {
    /// Stochastic gradient descent. Numbers: learning rate, weight decay.
    Sgd,
    /// The same with momentum. Additional numbers: momentum, 1 - dampening, whether this is the first step, whether to use
    /// Nesterov momentum.
    Momentum,
    /// Adam and AdamW. Numbers: step size, L2 penalty, decoupled decay factor, 1 - beta1, beta2, 1 - beta2, the square root of
    /// the second bias correction, eps.
    Adam,
}

/// The form of a rule and its numbers at a step; `None` if it has no kernel.
type NumbersAt<'n> = dyn Fn(u64) -> Option<(StepForm, [f64; 8])> + 'n;

/// `grads -> parameters, states[, rounded]` in place. `slots` has each parameter's step number and its number of state tensors.
pub(crate) fn step(
    call: &mut CudaCall<'_>,
    slots: &[(u64, usize)],
    rounds: bool,
    numbers: impl Fn(u64) -> Option<(StepForm, [f64; 8])>,
) -> Result<()> {
    let (mut changed, mut grads) = (call.outs.clone().into_iter(), call.ins.clone().into_iter());
    let mut all: Vec<Slot<'_>> = Vec::with_capacity(slots.len());
    for &(step, states) in slots {
        let (Some(parameter), Some(grad)) = (changed.next(), grads.next()) else { return call.missing() };
        let state = changed.by_ref().take(states).collect();
        let rounded = rounds.then(|| changed.next()).flatten();
        all.push(Slot { parameter, grad, state, rounded, step });
    }
    all.retain(|slot| !slot.parameter.is_empty());
    let mut rest = &all[..];
    while let [first, ..] = rest {
        let alike = rest.iter().take_while(|slot| slot.kind() == first.kind()).count().min(MOST);
        let (now, later) = rest.split_at(alike);
        launch(call, &numbers, now)?;
        rest = later;
    }
    Ok(())
}

fn launch(call: &mut CudaCall<'_>, numbers: &NumbersAt<'_>, slots: &[Slot<'_>]) -> Result<()> {
    let Some((form, numbers)) = numbers(slots[0].step) else { return call.missing() };
    let (_, [parameter, grad, state, rounded]) = slots[0].kind();
    let most = [16, 64, 192, MOST].into_iter().find(|&most| most >= slots.len()).unwrap_or(MOST);
    let source = call
        .source(TEXT)
        .with("P", name(parameter))
        .with("G", name(grad))
        .with("S", name(state))
        .with("R", name(rounded))
        .with("ROUNDS", if slots[0].rounded.is_some() { "1" } else { "0" })
        .with("MOST", most.to_string())
        .with("RULE", (form as u8).to_string());
    let mut words = vec![slots.len() as u64];
    let mut chunks = 0;
    for slot in slots {
        words.push(chunks as u64);
        chunks += slot.parameter.len().div_ceil(CHUNK);
    }
    words.resize(1 + most + 1, chunks as u64);
    let state = |nth: usize| move |slot: &Slot<'_>| slot.state.get(nth).map_or(0, |state| state.address);
    let (first, second) = (state(0), state(1));
    let rounded = |slot: &Slot<'_>| slot.rounded.map_or(0, |rounded| rounded.address);
    let columns: [&dyn Fn(&Slot<'_>) -> u64; 6] = [
        &|slot| slot.parameter.len() as u64,
        &|slot| slot.parameter.address,
        &|slot| slot.grad.address,
        &first,
        &second,
        &rounded,
    ];
    for (nth, column) in columns.into_iter().enumerate() {
        words.extend(slots.iter().map(column));
        words.resize(2 + most + (nth + 1) * most, 0);
    }
    let pair = |i: usize| {
        let low = u64::from((numbers[2 * i] as f32).to_bits());
        low | u64::from((numbers[2 * i + 1] as f32).to_bits()) << 32
    };
    let args = Args::new().words(&words).words(&[pair(0), pair(1), pair(2), pair(3)]);
    call.launch(source, [chunks, 1, 1], 256, args)
}
