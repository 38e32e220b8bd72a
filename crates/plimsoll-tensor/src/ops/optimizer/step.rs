//! Optimizer steps: one pass over parameters, gradients and state, in place, without temporaries. One call updates any number
//! of parameters.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::captured_step::{self, CapturedStep};
use super::{adamw_8bit, one_by_one};
use crate::autograd::no_grad;
use crate::capturing;
use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::optim::rounding::Rounding;
use crate::cpu::kernels::optim::short::step_any;
use crate::cpu::kernels::optim::{AdamStep, AdamW8bitStep, Decay, Rule, SgdStep};
use crate::cuda::optimizer::StepSlot;
use crate::cuda::optimizer::adamw_8bit::Options;
use crate::cuda::optimizer::step::StepForm;
use crate::cuda::{self, CudaCall};
use crate::data::Data;
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::Layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};
use crate::ops::want_float;
use crate::suite::Case;
use crate::tensor::Tensor;
use crate::view::Out;

/// A parameter, and the tensors that an optimizer step reads and changes with it.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The parameter. It is changed.
    pub parameter: &'a Tensor,
    /// Its gradient.
    pub grad: &'a Tensor,
    /// The optimizer's state of this parameter, in the rule's order. It is changed.
    pub state: &'a [Tensor],
    /// The number of this step for this parameter, starting at 1.
    pub step: u64,
}

/// `grads -> parameters, states[, rounded]` in place. The inputs are each parameter with its state and, if there is one, the
/// tensor that gets its rounded values; then the gradients.
#[derive(Clone, Debug)]
struct Step {
    rule: Rule,
    /// Whether each parameter has a tensor that gets its values, rounded to that tensor's dtype. Only on a GPU, where the same
    /// kernel launch writes it.
    rounds: bool,
    slots: SmallVec<[StepSlot; 2]>,
}

impl Step {
    /// For each slot, the index of its parameter among the inputs, and the number of its state tensors.
    fn parameters(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.slots.iter().scan(0, |at, &StepSlot { states, .. }| {
            let parameter = *at;
            *at += 1 + states + usize::from(self.rounds);
            Some((parameter, states))
        })
    }
}

impl Kernel for Step {
    fn name(&self) -> &'static str {
        self.rule.name()
    }

    fn varies(&self) -> Option<Varies> {
        Some(Varies::Step)
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        if let Rule::AdamW8bit(options) = &self.rule {
            let options = Options { numbers: &|step| options.numbers(step), maps: AdamW8bitStep::maps() };
            return cuda::optimizer::adamw_8bit::step(call, &self.slots, self.rounds, &options);
        }
        let is_wide = call.outs.iter().any(|tensor| tensor.dtype == DType::F64);
        if !is_wide && numbers(&self.rule, 1).is_some() {
            return cuda::optimizer::step::step(call, &self.slots, self.rounds, |step| {
                numbers(&self.rule, step)
            });
        }
        for slot in &cuda::optimizer::one_by_one::slots(call, &self.slots, self.rounds) {
            one_by_one::step(call, &self.rule, slot)?;
            if let Some(rounded) = slot.rounded {
                cuda::elementwise::copy(call, slot.parameter, rounded)?;
            }
        }
        Ok(())
    }

    /// Elementwise rules read 16-bit floats directly, without converted copies.
    fn cpu_type(&self, dtype: DType) -> DType {
        if self.rule.is_whole() { dtype.accumulator() } else { dtype }
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let (mut changed, mut grads) = (call.outs.into_iter(), call.ins.into_iter());
        for &StepSlot { step, states, seed } in &self.slots {
            let rounding = seed.map(|seed| Rounding { seed, step });
            let (Some(parameter), Some(grad)) = (changed.next(), grads.next()) else {
                unreachable!("inferred")
            };
            let shape = parameter.shape();
            let state = changed.by_ref().take(states);
            if self.rule.is_whole() {
                by_float!(parameter.dtype(), T => {
                    let state = state.map(|state| state.elements::<T>()).collect();
                    self.rule.run_whole::<T>(step, shape, (parameter.elements(), grad.elements()), state, scratch);
                });
                continue;
            }
            let state: SmallVec<[Out<'_>; 3]> = state.collect();
            if let Rule::AdamW8bit(options) = &self.rule
                && options.is_8bit(shape)
            {
                adamw_8bit::step(options, step, parameter, &grad, state, rounding);
                continue;
            }
            let all = [parameter.dtype(), grad.dtype()];
            let dtype = parameter.dtype();
            let is_short = dtype != DType::F64
                && (all.iter().any(|dtype| *dtype != DType::F32)
                    || state.iter().any(|state| state.dtype() != DType::F32));
            if is_short {
                let changed = std::iter::once(parameter).chain(state);
                let changed = changed
                    .map(|out| {
                        let dtype = out.dtype();
                        (out.bytes(), dtype)
                    })
                    .collect();
                step_any(&self.rule, step, changed, (grad.bytes(), grad.dtype()), rounding);
                continue;
            }
            by_float!(dtype, T => {
                let state = state.into_iter().map(|state| state.elements::<T>()).collect();
                self.rule.run::<T>(step, (parameter.elements(), grad.elements()), state);
            });
        }
        Ok(())
    }
}

/// The arguments of a GPU's kernel for a rule at a step; `None` if there is no such kernel yet.
fn numbers(rule: &Rule, step: u64) -> Option<(StepForm, [f64; 8])> {
    match rule {
        Rule::Sgd(SgdStep { maximize: true, .. }) | Rule::Adam(AdamStep { maximize: true, .. }) => None,
        Rule::Adam(AdamStep { amsgrad: true, .. }) => None,
        Rule::Sgd(SgdStep { lr, momentum, dampening, weight_decay, nesterov, .. }) => {
            let form = if *momentum == 0.0 { StepForm::Sgd } else { StepForm::Momentum };
            let (first, nesterov) = (f64::from(u8::from(step == 1)), f64::from(u8::from(*nesterov)));
            Some((form, [*lr, *weight_decay, *momentum, 1.0 - dampening, first, nesterov, 0.0, 0.0]))
        }
        Rule::Adam(AdamStep { lr, beta1, beta2, eps, weight_decay, decay, .. }) => {
            let root_correction = (1.0 - beta2.powf(step as f64)).sqrt();
            let step_size = lr / (1.0 - beta1.powf(step as f64));
            let (in_grad, shrink) = match decay {
                Decay::InGradient => (*weight_decay, 1.0),
                Decay::Decoupled => (0.0, 1.0 - lr * weight_decay),
            };
            let numbers =
                [step_size, in_grad, shrink, 1.0 - beta1, *beta2, 1.0 - beta2, root_correction, *eps];
            Some((StepForm::Adam, numbers))
        }
        _ => None,
    }
}

impl Operator for Step {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let name = self.name();
        let changes = ins.len().saturating_sub(self.slots.len());
        let rounded = usize::from(self.rounds);
        if self.parameters().map(|(_, states)| 1 + states + rounded).sum::<usize>() != changes {
            return Err(Error::argument(name, "needs parameters, their state and their gradients"));
        }
        for (slot, (parameter, states)) in self.parameters().enumerate() {
            let after = &ins[parameter + 1..];
            check(&self.rule, &ins[parameter], &after[..states], &ins[changes + slot])?;
            if self.slots[slot].seed.is_some() && ins[parameter].dtype != DType::BF16 {
                let got = ins[parameter].dtype;
                return Err(Error::DType { op: name, expected: DType::BF16.name(), got });
            }
            if self.rounds && after[states].shape() != ins[parameter].shape() {
                let shapes = (ins[parameter].shape(), after[states].shape());
                let message = format!(
                    "a parameter of {:?} cannot be rounded into a tensor of {:?}",
                    shapes.0, shapes.1
                );
                return Err(Error::shape(name, message));
            }
            if self.rounds {
                want_float(name, after[states].dtype)?;
            }
        }
        Ok(ins[..changes].iter().enumerate().map(|(i, meta)| Output::in_place(i, meta)).collect())
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        if device.kind == DeviceKind::Cuda {
            let bytes =
                self.parameters().map(|(at, _)| one_by_one::scratch(&self.rule, ins[at].shape())).max();
            return bytes.unwrap_or(0);
        }
        let len = self.parameters().map(|(at, _)| self.rule.scratch_len(ins[at].shape())).max();
        (len.unwrap_or(0) * DType::F32.size()) as u64
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let flops = self.parameters().map(|(at, _)| self.rule.flops(ins[at].shape())).sum();
        Cost::streaming(flops, ins, outs)
    }
}

/// Checks that a parameter, its state and its gradient match.
fn check(rule: &Rule, parameter: &Meta<'_>, state: &[Meta<'_>], grad: &Meta<'_>) -> Result<()> {
    let name = rule.name();
    let shape = parameter.shape();
    if matches!(rule, Rule::Muon(_)) && shape.len() != 2 {
        let message =
            format!("a parameter of {shape:?}: only matrices are supported; give the others to AdamW");
        return Err(Error::shape(name, message));
    }
    let expected = rule.state_shapes(shape);
    if state.len() != expected.len() {
        let message = format!("a parameter has {} tensors of state, not {}", state.len(), expected.len());
        return Err(Error::argument(name, message));
    }
    let shapes = expected.iter().map(|shape| shape.as_slice()).chain([shape]);
    for (meta, expected) in state.iter().chain([grad]).zip(shapes) {
        if meta.shape() != expected {
            let message = format!("a parameter of {shape:?} does not match a tensor of {:?}", meta.shape());
            return Err(Error::shape(name, message));
        }
    }
    if matches!(rule, Rule::AdamW8bit(_)) && parameter.dtype == DType::F64 {
        return Err(Error::DType { op: name, expected: DType::F32.name(), got: DType::F64 });
    }
    for (nth, meta) in state.iter().enumerate() {
        if let Some(dtype) = rule.state_dtype(nth, shape).filter(|&dtype| dtype != meta.dtype) {
            return Err(Error::DType { op: name, expected: dtype.name(), got: meta.dtype });
        }
    }
    let state_of_any_type =
        state.iter().enumerate().filter(|(nth, _)| rule.state_dtype(*nth, shape).is_none());
    for meta in [parameter, grad].into_iter().chain(state_of_any_type.map(|(_, meta)| meta)) {
        want_float(name, meta.dtype)?;
        if meta.dtype.accumulator() != parameter.dtype.accumulator() {
            return Err(Error::DType { op: name, expected: parameter.dtype.name(), got: meta.dtype });
        }
    }
    // A rule that needs row-major order gets a row-major copy of a parameter in another order; dispatch copies it back.
    let strided = [parameter].into_iter().chain(state).find(|meta| !meta.layout.is_contiguous());
    if let Some(meta) = strided.filter(|_| !rule.is_ordered()) {
        let message = format!(
            "a parameter or its state has strides {:?}: it must be contiguous",
            meta.layout.strides()
        );
        return Err(Error::shape(name, message));
    }
    Ok(())
}

/// Updates parameters by a rule, all in one call.
///
/// ```
/// use plimsoll_tensor::op::{LionStep, Rule, Slot, optimizer_step};
/// use plimsoll_tensor::{Device, Tensor};
/// let device = Device::cpu();
/// let [w, grad, mean] = [1.0, 0.3, 0.0].map(|x| Tensor::from_slice(&[x as f32; 4], &[4], &device).unwrap());
/// let rule = Rule::Lion(LionStep { lr: 0.5, beta1: 0.9, beta2: 0.99, weight_decay: 0.0 });
/// optimizer_step(&rule, &[Slot { parameter: &w, grad: &grad, state: &[mean], step: 1 }])?;
/// assert_eq!(w.to_vec::<f32>()?, [0.5; 4]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// Incompatible shapes or dtypes; parameters with gaps, or state in another memory order; shared memory; a step number of 0.
/// After an error, nothing has changed.
#[track_caller]
pub fn optimizer_step(rule: &Rule, slots: &[Slot<'_>]) -> Result<()> {
    step(rule, slots, &[], &[])
}

/// [`optimizer_step`] of `bfloat16` parameters that rounds them, and state in `bfloat16`, stochastically: up or down at random, so
/// that the mean of many roundings is the value itself, and updates below half a unit of the parameter are not lost. `seeds` has a
/// seed for each slot. The bits follow from it, the number of the step and the position of the element, so they are the same on
/// every device and in a captured step.
///
/// # Errors
/// The errors of [`optimizer_step`]; not exactly one seed per slot; a parameter of another type; a rule that needs the complete
/// parameter.
#[track_caller]
pub fn optimizer_step_stochastic(rule: &Rule, slots: &[Slot<'_>], seeds: &[u64]) -> Result<()> {
    if seeds.len() != slots.len() {
        let message = format!("{} seeds for {} parameters: needs one for each", seeds.len(), slots.len());
        return Err(Error::argument(rule.name(), message));
    }
    if rule.is_whole() {
        return Err(Error::argument(
            rule.name(),
            "a rule that works on complete matrices cannot round stochastically",
        ));
    }
    step(rule, slots, &[], seeds)
}

/// [`optimizer_step`] that also writes rounded copies: each tensor of `rounded` gets the values of its slot's parameter after
/// the step, in its own dtype. So a model can compute in 16 bits while its parameters are updated in 32.
///
/// # Errors
/// The errors of [`optimizer_step`]; not exactly one tensor per slot; a tensor of another shape.
#[track_caller]
pub fn optimizer_step_rounded(rule: &Rule, slots: &[Slot<'_>], rounded: &[&Tensor]) -> Result<()> {
    if rounded.len() != slots.len() {
        let message = format!(
            "{} tensors for the rounded values of {} parameters: needs one for each",
            rounded.len(),
            slots.len()
        );
        return Err(Error::argument(rule.name(), message));
    }
    let is_one_launch =
        |slot: &Slot<'_>| slot.parameter.device().facts().kind == DeviceKind::Cuda && !rule.is_whole();
    if slots.iter().all(is_one_launch) {
        return step(rule, slots, rounded, &[]);
    }
    step(rule, slots, &[], &[])?;
    no_grad(|| slots.iter().zip(rounded).try_for_each(|(slot, to)| to.copy_(slot.parameter)))
}

#[track_caller]
fn step(rule: &Rule, slots: &[Slot<'_>], rounded: &[&Tensor], seeds: &[u64]) -> Result<()> {
    if slots.iter().any(|slot| slot.step == 0) {
        return Err(Error::argument(rule.name(), "steps are counted from 1"));
    }
    if slots.is_empty() {
        return Ok(());
    }
    let form = |(i, slot): (usize, &Slot<'_>)| StepSlot {
        step: slot.step,
        states: slot.state.len(),
        seed: seeds.get(i).copied(),
    };
    let forms = slots.iter().enumerate().map(form).collect();
    let op = Step { rule: *rule, rounds: !rounded.is_empty(), slots: forms };
    let mut changed: SmallVec<[Cow<'_, Tensor>; 4]> = SmallVec::new();
    let mut grads: SmallVec<[Cow<'_, Tensor>; 4]> = SmallVec::new();
    for (i, slot) in slots.iter().enumerate() {
        let lying = |tensor| as_it_lies(rule, slot.parameter, tensor);
        changed.push(lying(slot.parameter));
        changed.extend(slot.state.iter().map(lying));
        changed.extend(rounded.get(i).copied().map(lying));
        grads.push(lying(slot.grad));
    }
    let ins: SmallVec<[&Tensor; 4]> = changed.iter().chain(&grads).map(|tensor| &**tensor).collect();
    let device = slots[0].parameter.device();
    let captured = capturing::is_open(device.number()).then(|| captured(op.clone(), slots));
    no_grad(|| call(op, &ins))?;
    captured.into_iter().for_each(captured_step::note);
    Ok(())
}

/// The data from which a replay rebuilds this step.
fn captured(op: Step, slots: &[Slot<'_>]) -> CapturedStep {
    let parameters = slots.iter().map(|slot| slot.parameter.clone()).collect();
    CapturedStep::new(op.rule.name(), parameters, move |rule, steps| {
        let slots = op.slots.iter().zip(steps).map(|(slot, &step)| StepSlot { step, ..*slot }).collect();
        Arc::new(Step { rule: *rule, rounds: op.rounds, slots })
    })
}

/// Permutes a tensor of a parameter's shape into the parameter's memory order, so that an elementwise step sees a
/// channels-last parameter as a row-major one.
#[track_caller]
fn as_it_lies<'a>(rule: &Rule, parameter: &Tensor, tensor: &'a Tensor) -> Cow<'a, Tensor> {
    let layout = &parameter.data().layout;
    if layout.is_contiguous() || rule.is_ordered() || tensor.shape() != parameter.shape() {
        return Cow::Borrowed(tensor);
    }
    let Data { storage, layout: lies, dtype } = tensor.data();
    let lies = lies.permute(&layout.order());
    Cow::Owned(Tensor::from_data(Data { storage: storage.clone(), layout: lies, dtype: *dtype }))
}

impl Tensor {
    /// One step of stochastic gradient descent on this parameter. `momentum_buffer` is given exactly if the momentum is not 0.
    ///
    /// # Errors
    /// Different shapes or dtypes; tensors that are not contiguous.
    #[track_caller]
    pub fn sgd_step_(&self, grad: &Tensor, momentum_buffer: Option<&Tensor>, step: SgdStep) -> Result<()> {
        if momentum_buffer.is_some() != (step.momentum != 0.0) {
            let message = format!(
                "momentum {} with{} a buffer",
                step.momentum,
                if momentum_buffer.is_some() { "" } else { "out" }
            );
            return Err(Error::argument("sgd", message));
        }
        let state: SmallVec<[Tensor; 1]> = momentum_buffer.cloned().into_iter().collect();
        let number = if step.first { 1 } else { 2 };
        optimizer_step(&Rule::Sgd(step), &[Slot { parameter: self, grad, state: &state, step: number }])
    }

    /// One step of Adam on this parameter, with its first and second moments.
    ///
    /// # Errors
    /// Different shapes or dtypes; tensors that are not contiguous; a step number of 0.
    #[track_caller]
    pub fn adam_step_(
        &self,
        grad: &Tensor,
        exp_avg: &Tensor,
        exp_avg_sq: &Tensor,
        step: AdamStep,
    ) -> Result<()> {
        if step.amsgrad {
            return Err(Error::argument(
                "adam",
                "with `amsgrad` there is a third tensor of state: call `optimizer_step`",
            ));
        }
        let state = [exp_avg.clone(), exp_avg_sq.clone()];
        optimizer_step(&Rule::Adam(step), &[Slot { parameter: self, grad, state: &state, step: step.step }])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let sgd = SgdStep {
        lr: 0.5,
        momentum: 0.5,
        dampening: 0.0,
        weight_decay: 0.0,
        nesterov: false,
        first: false,
        maximize: false,
    };
    let naive = |ins: &[Vec<f64>]| {
        let step = |p: &[f64], b: &[f64], g: &[f64]| {
            let buffer: Vec<f64> = b.iter().zip(g).map(|(b, g)| 0.5 * b + g).collect();
            [p.iter().zip(&buffer).map(|(p, b)| p - 0.5 * b).collect(), buffer]
        };
        let [first, second] = [step(&ins[0], &ins[1], &ins[4]), step(&ins[2], &ins[3], &ins[5])];
        first.into_iter().chain(second).collect()
    };
    // A parameter and its state are made contiguous, as in an optimizer.
    let own = |ins: &[&Tensor]| ins.iter().map(|x| x.copy()).collect::<Result<Vec<_>>>();
    let slot = StepSlot { step: 2, states: 1, seed: None };
    let op = Step { rule: Rule::Sgd(sgd), rounds: false, slots: SmallVec::from_slice(&[slot, slot]) };
    let step = move |ins: &[&Tensor]| call(op.clone(), &own(ins)?.iter().collect::<Vec<_>>());
    let shapes: [&[usize]; 6] = [&[3, 4], &[3, 4], &[5], &[5], &[3, 4], &[5]];
    vec![Case::new("sgd", &shapes, step).expect(naive).without_derivative()]
}
