//! Sequences of functions that are checkpointed within a budget: [`checkpoint_sequential`] and [`Checkpointer`].

use std::sync::{Arc, Mutex, PoisonError};

use super::piece::checkpoint;
use super::profile::profile;
use super::schedule::{Budget, Part, Schedule, equal};
use super::step::{Sequence, Step};
use crate::autocast_mode;
use crate::autograd::{hooks_are_open, is_grad_enabled};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Dims;
use crate::tensor::Tensor;

/// Runs `functions` one after the other and checkpoints some of them. The budget is a number of segments, as for
/// `torch.utils.checkpoint.checkpoint_sequential`, or a [`Budget`]. For a budget in bytes, each function first runs an
/// extra time to measure what it saves; to measure once for many steps, use a [`Checkpointer`].
///
/// ```
/// use plimsoll_tensor::checkpoint::{Budget, Step, checkpoint_sequential};
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let x = Tensor::ones(&[1 << 18], &device)?.requires_grad_(true)?; // 1 MiB
/// let steps: Vec<Step> = (0..16).map(|_| Step::new(Tensor::tanh)).collect();
/// let y = checkpoint_sequential(&steps, Budget::Auto, &x)?;
/// assert!(device.memory_allocated() <= 8 << 20); // 17 MiB if all outputs are kept
/// y.sum()?.backward()?;
/// assert!(device.max_memory_allocated() <= 11 << 20); // 2·√16 + 3
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The same errors as [`checkpoint`] and [`Schedule::of`].
pub fn checkpoint_sequential(
    functions: &[Step],
    budget: impl Into<Budget>,
    input: &Tensor,
) -> Result<Tensor> {
    Checkpointer::new(budget).forward(functions, input)
}

/// Checkpoints sequences of functions within a budget. It measures the first input of each shape; others with that shape get the
/// same schedule. Call [`Checkpointer::forget`] when the functions save different tensors than before: after `train`,
/// `eval`, or a change of the parameters that require gradients. Ranks that share a model must use inputs of the same
/// shapes, because a schedule determines which parameters are gathered again.
///
/// ```
/// use plimsoll_tensor::checkpoint::{Budget, Checkpointer, Step};
/// use plimsoll_tensor::{Device, Tensor};
/// let x = Tensor::ones(&[64, 64], &Device::cpu())?.requires_grad_(true)?;
/// let layers: Vec<Step> = (0..16).map(|_| Step::new(Tensor::tanh)).collect();
/// let checkpointer = Checkpointer::new(Budget::Bytes(10 * 64 * 64 * 4));
/// for _ in 0..3 {
///     checkpointer.forward(&layers, &x)?.sum()?.backward()?;
/// }
/// assert!(checkpointer.schedule(&layers, &x)?.recomputed() < 0.9);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpointer {
    budget: Budget,
    known: Mutex<Vec<(Kind, Arc<Schedule>)>>,
}

/// What a schedule depends on: the number of functions, the input's shape, type and device, whether it requires a gradient,
/// autocast, and whether hooks receive saved tensors.
type Kind = (usize, Dims, DType, Device, bool, Option<DType>, bool);

/// How many of the latest schedules are kept.
const KNOWN: usize = 64;

impl Checkpointer {
    /// Creates a checkpointer that has measured nothing yet.
    pub fn new(budget: impl Into<Budget>) -> Checkpointer {
        Checkpointer { budget: budget.into(), known: Mutex::default() }
    }

    /// Runs the functions, which must be the same ones each time.
    ///
    /// # Errors
    /// The same errors as [`checkpoint_sequential`].
    pub fn forward(&self, functions: &[Step], input: &Tensor) -> Result<Tensor> {
        self.forward_sequence(&shared(functions), input)
    }

    /// Runs a sequence, which must be the same one each time.
    ///
    /// # Errors
    /// The same errors as [`checkpoint_sequential`].
    pub fn forward_sequence(&self, sequence: &Arc<dyn Sequence>, input: &Tensor) -> Result<Tensor> {
        let len = sequence.len();
        match self.budget {
            Budget::Segments(segments) => run_parts(&equal(len, segments)?, sequence, 0, input),
            _ if !is_grad_enabled() => sequence.run(0..len, input),
            _ => run_parts(&self.schedule_of(&**sequence, input)?.parts, sequence, 0, input),
        }
    }

    /// Forgets all schedules, so that the functions are measured again.
    pub fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The schedule for inputs like this one. If there is none yet, each function runs once, to measure what it saves.
    ///
    /// # Errors
    /// The errors of the functions and of [`Schedule::of`].
    pub fn schedule(&self, functions: &[Step], input: &Tensor) -> Result<Arc<Schedule>> {
        self.schedule_of(&*shared(functions), input)
    }

    /// [`Checkpointer::schedule`] for any sequence.
    ///
    /// # Errors
    /// The errors of the functions and of [`Schedule::of`].
    pub fn schedule_of(&self, sequence: &dyn Sequence, input: &Tensor) -> Result<Arc<Schedule>> {
        let shape = Dims::from_slice(input.shape());
        let (dtype, device) = (input.dtype(), input.device().clone());
        let lower = autocast_mode::lower();
        let kind = (sequence.len(), shape, dtype, device, input.requires_grad(), lower, hooks_are_open());
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().iter().find(|(like, _)| *like == kind).map(|(_, schedule)| schedule.clone());
        if let Some(schedule) = found {
            return Ok(schedule);
        }
        // No lock is held while the functions run.
        let schedule = Arc::new(Schedule::of(&profile(sequence, input)?, self.budget)?);
        let mut all = known();
        if all.len() >= KNOWN {
            all.remove(0);
        }
        all.push((kind, schedule.clone()));
        drop(all);
        Ok(schedule)
    }
}

fn shared(functions: &[Step]) -> Arc<dyn Sequence> {
    Arc::new(functions.to_vec())
}

/// Runs a sequence in parts. Blocks are counted from `first`.
fn run_parts(parts: &[Part], sequence: &Arc<dyn Sequence>, first: usize, input: &Tensor) -> Result<Tensor> {
    let mut x = input.clone();
    for part in parts {
        let range = first + part.range().start..first + part.range().end;
        x = match part {
            Part::Keep(_) => sequence.run(range, &x)?,
            Part::Checkpoint(_, inner) => {
                let (sequence, inner) = (sequence.clone(), inner.clone());
                let again = move |x: &[Tensor]| match &inner {
                    None => sequence.run(range.clone(), &x[0]),
                    Some(inner) => run_parts(&inner.parts, &sequence, range.start, &x[0]),
                };
                checkpoint(again, &[&x])?
            }
        };
    }
    Ok(x)
}
