//! Connectionist temporal classification (CTC) loss: the total probability of all alignments of a label sequence.
//! Composed of tensor operations, one time step after the other, in log space.

use crate::autograd::is_grad_enabled;
use crate::caller::Entry;
use crate::cpu::kernels::loss::Reduction;
use crate::dispatch::Tensors;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::function::{Function, FunctionBackward, Save, apply};
use crate::operator::Autocast;
use crate::tensor::{Grads, Tensor};

const NAME: &str = "ctc_loss";

/// `log_probs [time, batch, classes], labels [batch, 2 · longest + 1] -> losses [batch]`; the labels have a blank before,
/// between and after them.
struct CtcLoss {
    input_lengths: Vec<usize>,
    target_lengths: Vec<usize>,
    blank: usize,
    zero_infinity: bool,
}

/// `ln(e^a + e^b + e^c)`; minus infinity if all three are.
#[track_caller]
fn log_add(parts: [&Tensor; 3]) -> Result<Tensor> {
    let [a, b, c] = parts;
    let largest = a.maximum(b)?.maximum(c)?;
    let largest = largest.masked_fill(&largest.eq_scalar(f64::NEG_INFINITY)?, 0.0)?;
    let term = |x: &Tensor| x.sub(&largest)?.exp();
    term(a)?.add(&term(b)?)?.add(&term(c)?)?.log()?.add(&largest)
}

impl CtcLoss {
    /// Where a path may skip the blank before a label: where the labels on both sides of it differ.
    #[track_caller]
    fn skips(&self, labels: &Tensor) -> Result<Tensor> {
        let (batch, states) = (labels.shape()[0], labels.shape()[1]);
        let never = Tensor::full(&[batch, states.min(2)], 0.0, DType::Bool, labels.device())?;
        if states <= 2 {
            return Ok(never);
        }
        let label = labels.narrow(1, 2, states - 2)?;
        let differs = label.ne(&labels.narrow(1, 0, states - 2)?)?;
        let skips = differs.logical_and(&label.ne_scalar(self.blank as i64)?)?;
        Tensor::cat(&[&never, &skips], 1)
    }

    /// Integers of the batch as a column.
    #[track_caller]
    fn column(values: impl Iterator<Item = usize>, like: &Tensor) -> Result<Tensor> {
        let values: Vec<i64> = values.map(|value| value as i64).collect();
        Tensor::from_slice(&values, &[values.len(), 1], like.device())
    }

    /// One time step: each state is reached from itself, the previous one and, where `skips`, the one before that.
    #[track_caller]
    fn step(last: &Tensor, skips: &Tensor, emitted: &Tensor) -> Result<Tensor> {
        let (batch, states) = (last.shape()[0], last.shape()[1]);
        let none = Tensor::full(&[batch, 2], f64::NEG_INFINITY, last.dtype(), last.device())?;
        let padded = Tensor::cat(&[&none, last], 1)?;
        let before = padded.narrow(1, 0, states)?.masked_fill(&skips.logical_not()?, f64::NEG_INFINITY)?;
        log_add([last, &padded.narrow(1, 1, states)?, &before])?.add(emitted)
    }

    /// The total log-probability of all paths to each state at each time, `[time, batch, states]`.
    #[track_caller]
    fn forward_paths(&self, emitted: &Tensor, skips: &Tensor) -> Result<Tensor> {
        let states = emitted.shape()[2];
        let mut last = emitted.select(0, 0)?;
        if states > 2 {
            let begins = Tensor::arange(states, emitted.device())?.ge_scalar(2)?;
            last = last.masked_fill(&begins, f64::NEG_INFINITY)?;
        }
        let mut all = vec![last.clone()];
        for time in 1..emitted.shape()[0] {
            last = Self::step(&last, skips, &emitted.select(0, time as isize)?)?;
            all.push(last.clone());
        }
        Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)
    }

    /// The total log-probability of all paths from each state to the end.
    #[track_caller]
    fn backward_paths(&self, emitted: &Tensor, skips: &Tensor) -> Result<Tensor> {
        let states = emitted.shape()[2];
        // Seen from the end, a path skips the blank after a label.
        let skips_back = {
            let (batch, wide) = (skips.shape()[0], states.saturating_sub(2));
            let never = Tensor::full(&[batch, states.min(2)], 0.0, DType::Bool, skips.device())?;
            Tensor::cat(&[&skips.narrow(1, states - wide, wide)?, &never], 1)?.flip(&[1])?
        };
        let place = Tensor::arange(states, emitted.device())?;
        let last_state = Self::column(self.target_lengths.iter().map(|length| 2 * length), emitted)?;
        let ends = place.le(&last_state)?.logical_and(&place.ge(&(&last_state - 1)?)?)?;
        let last_time =
            Self::column(self.input_lengths.iter().map(|length| length.saturating_sub(1)), emitted)?;
        let mut all = Vec::new();
        let mut next: Option<Tensor> = None;
        for time in (0..emitted.shape()[0]).rev() {
            let here = emitted.select(0, time as isize)?;
            let none = here.full_like(f64::NEG_INFINITY)?;
            let begins = last_time.eq_scalar(time as i64)?.logical_and(&ends)?.where_cond(&here, &none)?;
            let now = match &next {
                None => begins,
                Some(next) => {
                    let step = Self::step(&next.flip(&[1])?, &skips_back, &here.flip(&[1])?)?.flip(&[1])?;
                    last_time.gt_scalar(time as i64)?.where_cond(&step, &begins)?
                }
            };
            all.push(now.clone());
            next = Some(now);
        }
        all.reverse();
        Tensor::stack(&all.iter().collect::<Vec<_>>(), 0)
    }

    /// The log-probability of each label's state at each time.
    #[track_caller]
    fn emitted(log_probs: &Tensor, labels: &Tensor) -> Result<Tensor> {
        log_probs
            .gather(2, &labels.unsqueeze(0)?.expand(&[&log_probs.shape()[..1], labels.shape()].concat())?)
    }
}

impl Function for CtcLoss {
    fn name(&self) -> &'static str {
        NAME
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let (log_probs, labels) = (ins[0], ins[1]);
        let paths = self.forward_paths(&Self::emitted(log_probs, labels)?, &self.skips(labels)?)?;
        // The last label, or the blank after it, at the last time step.
        let batch = Self::column(0..labels.shape()[0], labels)?;
        let time = Self::column(self.input_lengths.iter().map(|length| length.saturating_sub(1)), labels)?;
        let at = |state: Tensor| paths.index(&[Some(&time), Some(&batch), Some(&state)]);
        let blank = at(Self::column(self.target_lengths.iter().map(|length| 2 * length), labels)?)?;
        let label = at(Self::column(
            self.target_lengths.iter().map(|length| (2 * length).saturating_sub(1)),
            labels,
        )?)?;
        let empty = Self::column(self.target_lengths.iter().copied(), labels)?.eq_scalar(0)?;
        let label = label.masked_fill(&empty, f64::NEG_INFINITY)?;
        let none = label.full_like(f64::NEG_INFINITY)?;
        let losses = log_add([&blank, &label, &none])?.neg()?.squeeze(1)?;
        for tensor in [log_probs, labels, &paths, &losses] {
            save.tensor(tensor)?;
        }
        let losses = match self.zero_infinity {
            true => losses.masked_fill(&losses.isinf()?, 0.0)?,
            false => losses,
        };
        Ok(vec![losses].into())
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    /// Like PyTorch's gradient, without the part that cancels out in `log_softmax`: `e^log_probs - e^(paths through the class)`.
    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(vec![None, None].into()) };
        if is_grad_enabled() {
            return Err(Error::autograd(NAME, "it has no second derivative, as in PyTorch"));
        }
        let (log_probs, labels, paths, losses) = (at.saved(0)?, at.saved(1)?, at.saved(2)?, at.saved(3)?);
        let emitted = Self::emitted(&log_probs, &labels)?;
        let from_here = self.backward_paths(&emitted, &self.skips(&labels)?)?;
        let of_sample = |x: &Tensor| x.reshape(&[1, x.numel(), 1]);
        // Both include this time step's emission. No path leads to a state that is never emitted.
        let through = paths.add(&from_here)?.sub(&emitted)?.add(&of_sample(&losses)?)?.exp()?;
        let through = through.masked_fill(&emitted.eq_scalar(f64::NEG_INFINITY)?, 0.0)?;
        let index = labels.unsqueeze(0)?.expand(through.shape())?;
        let of_class = log_probs.zeros_like()?.detach().scatter_add(2, &index, &through)?;
        let mut result = log_probs.exp()?.sub(&of_class)?.mul(&of_sample(grad)?)?;
        if self.zero_infinity {
            result = result.masked_fill(&of_sample(&losses.isinf()?)?, 0.0)?;
        }
        let time = Tensor::arange(log_probs.shape()[0], log_probs.device())?;
        let lengths = Self::column(self.input_lengths.iter().copied(), &labels)?;
        let outside = time.ge(&lengths)?.t()?.unsqueeze(2)?;
        Ok(vec![Some(result.masked_fill(&outside, 0.0)?), None].into())
    }
}

impl Tensor {
    /// Connectionist temporal classification (CTC) loss of these log-probabilities, `[time, batch, classes]`. The targets are
    /// `[batch, longest]`, or one concatenated vector; class `blank` means no label. `Mean` first divides each loss by the
    /// length of its target. With `zero_infinity`, infinite losses, of targets too long for their inputs, become 0. Like
    /// `torch.nn.functional.ctc_loss`.
    ///
    /// ```
    /// use plimsoll_tensor::Reduction;
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let log_probs = Tensor::zeros(&[5, 1, 3], &device)?.log_softmax(2)?;
    /// let targets = Tensor::from_slice(&[1i64, 2], &[1, 2], &device)?;
    /// let loss = log_probs.ctc_loss(&targets, &[5], &[2], 0, Reduction::Sum, false)?;
    /// // 35 of the 3⁵ sequences of classes mean the labels 1 and 2.
    /// assert!((loss.item::<f32>()? + (35.0f32 / 243.0).ln()).abs() < 1e-5);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the lengths are not one per sample or exceed the tensors, a blank is not a class, or memory runs out.
    #[track_caller]
    pub fn ctc_loss(
        &self,
        targets: impl AsRef<Tensor>,
        input_lengths: &[usize],
        target_lengths: &[usize],
        blank: usize,
        reduction: Reduction,
        zero_infinity: bool,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let targets = targets.as_ref();
        let &[time, batch, classes] = self.shape() else {
            let message = format!("{:?}: needs [time, batch, classes]", self.shape());
            return Err(Error::shape(NAME, message));
        };
        if input_lengths.len() != batch || target_lengths.len() != batch {
            let (inputs, targets) = (input_lengths.len(), target_lengths.len());
            let message = format!(
                "{inputs} input lengths and {targets} target lengths for {batch} samples: needs one of each per sample"
            );
            return Err(Error::argument(NAME, message));
        }
        if let Some(length) = input_lengths.iter().find(|&&length| length > time || length == 0) {
            return Err(Error::argument(NAME, format!("an input length of {length}: needs 1 to {time}")));
        }
        if blank >= classes {
            return Err(Error::argument(
                NAME,
                format!("blank is {blank}; it must be below the number of classes, {classes}"),
            ));
        }
        let labels = labels(targets, target_lengths, blank)?;
        let (input_lengths, target_lengths) = (input_lengths.to_vec(), target_lengths.to_vec());
        let divisors: Vec<f32> = target_lengths.iter().map(|&length| length.max(1) as f32).collect();
        let op = CtcLoss { input_lengths, target_lengths, blank, zero_infinity };
        let losses = apply(op, &[self, &labels])?.remove(0);
        match reduction {
            Reduction::None => Ok(losses),
            Reduction::Sum => losses.sum(),
            Reduction::Mean => {
                let divisors = Tensor::from_slice(&divisors, &[batch], self.device())?;
                losses.div(&divisors.to_dtype(losses.dtype())?)?.mean()
            }
        }
    }
}

/// The targets with a blank before, between and after the labels, `[batch, 2 · longest + 1]`.
#[track_caller]
fn labels(targets: &Tensor, lengths: &[usize], blank: usize) -> Result<Tensor> {
    let (batch, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
    let targets = targets.detach().to_dtype(DType::I64)?;
    let rows = match *targets.shape() {
        [rows, width] if rows == batch && width >= longest => targets.narrow(1, 0, longest)?,
        [all] if all == lengths.iter().sum::<usize>() => {
            let rows: Vec<Tensor> = targets.split_with_sizes(lengths, 0)?;
            match rows.is_empty() {
                true => targets.reshape(&[0, 0])?,
                false => Tensor::pad_sequence(&rows.iter().collect::<Vec<_>>(), true, blank as f64)?,
            }
        }
        _ => {
            let message = format!(
                "targets {:?}: needs [{batch}, {longest} or more], or all {} one after the other",
                targets.shape(),
                lengths.iter().sum::<usize>()
            );
            return Err(Error::shape(NAME, message));
        }
    };
    let blanks = rows.full_like(blank as f64)?;
    let pairs = Tensor::stack(&[&blanks, &rows], 2)?.reshape(&[batch, 2 * longest])?;
    let last = Tensor::full(&[batch, 1], blank as f64, DType::I64, targets.device())?;
    Tensor::cat(&[&pairs, &last], 1)
}
