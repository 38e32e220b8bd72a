//! Sequences of functions that are checkpointed within a budget: [`checkpoint_sequential`] and [`Checkpointer`].

use std::ops::Range;
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
use crate::offload::{OffloadActivations, OffloadOptions, leave, stay};
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
    /// What offloads saved tensors, if they may wait on the host.
    offload: Option<OffloadActivations>,
    known: Mutex<Vec<(Kind, Arc<Schedule>)>>,
}

/// What a schedule depends on, besides the functions themselves.
#[derive(Debug, PartialEq)]
struct Kind {
    /// The number of functions.
    len: usize,
    /// The input's.
    shape: Dims,
    dtype: DType,
    device: Device,
    requires_grad: bool,
    /// The type of autocast, if it is on.
    autocast: Option<DType>,
    /// Whether hooks receive saved tensors.
    has_hooks: bool,
}

impl Kind {
    fn of(sequence: &dyn Sequence, input: &Tensor) -> Kind {
        Kind {
            len: sequence.len(),
            shape: Dims::from_slice(input.shape()),
            dtype: input.dtype(),
            device: input.device().clone(),
            requires_grad: input.requires_grad(),
            autocast: autocast_mode::lower(),
            has_hooks: hooks_are_open(),
        }
    }
}

/// How many of the latest schedules are kept.
const KNOWN: usize = 64;

impl Checkpointer {
    /// Creates a checkpointer that has measured nothing yet.
    pub fn new(budget: impl Into<Budget>) -> Checkpointer {
        Checkpointer { budget: budget.into(), offload: None, known: Mutex::default() }
    }

    /// Returns a checkpointer that may also offload the tensors that functions save: a number of bytes of pinned
    /// memory, or options. [`Schedule::with_offload`] decides, and [`OffloadActivations`] copies; the device never
    /// waits on purpose. Host devices have nothing to offload.
    ///
    /// ```
    /// use plimsoll_tensor::checkpoint::{Budget, Checkpointer, Step};
    /// use plimsoll_tensor::{DType, Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::like("H200")?);
    /// let weight = Tensor::empty(&[8192, 8192], DType::BF16, &device)?.requires_grad_(true)?; // 128 MiB
    /// let steps: Vec<Step> = (0..16).map(|_| {
    ///     let weight = weight.clone();
    ///     Step::new(move |x| x.matmul(&weight)?.tanh())
    /// }).collect();
    /// let checkpointer = Checkpointer::new(Budget::Bytes(1700 << 20)).with_offload(8 << 30);
    /// let x = Tensor::empty(&[8192, 8192], DType::BF16, &device)?;
    /// checkpointer.forward(&steps, &x)?.sum()?.backward()?;
    /// assert_eq!(checkpointer.schedule(&steps, &x)?.recomputed(), 0.0); // without it: 0.2
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    #[must_use]
    pub fn with_offload(mut self, options: impl Into<OffloadOptions>) -> Checkpointer {
        let options = OffloadOptions { wait: false, ..options.into() };
        self.offload = Some(OffloadActivations::new(options));
        self
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
            Budget::Segments(segments) => run_parts(&equal(len, segments)?, &[], sequence, 0, input),
            _ if !is_grad_enabled() => sequence.run(0..len, input),
            _ => {
                let schedule = self.schedule_of(&**sequence, input)?;
                let run = || run_parts(&schedule.parts, &schedule.is_offloaded, sequence, 0, input);
                match &self.offload {
                    Some(offload) if !schedule.is_offloaded.is_empty() => offload.open(false, || stay(run)),
                    _ => run(),
                }
            }
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
        let kind = Kind::of(sequence, input);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().iter().find(|(like, _)| *like == kind).map(|(_, schedule)| schedule.clone());
        if let Some(schedule) = found {
            return Ok(schedule);
        }
        // No lock is held while the functions run.
        let costs = profile(sequence, input)?;
        let schedule = match &self.offload {
            Some(offload) => Schedule::with_offload(&costs, self.budget, offload.max_bytes()),
            None => Schedule::of(&costs, self.budget),
        };
        let schedule = Arc::new(schedule?);
        let mut all = known();
        if all.len() >= KNOWN {
            all.remove(0);
        }
        all.push((kind, schedule.clone()));
        drop(all);
        Ok(schedule)
    }
}

impl From<Budget> for Option<Checkpointer> {
    fn from(budget: Budget) -> Option<Checkpointer> {
        Some(Checkpointer::new(budget))
    }
}

fn shared(functions: &[Step]) -> Arc<dyn Sequence> {
    Arc::new(functions.to_vec())
}

/// Runs a sequence in parts. Blocks are counted from `first`. Those whose entry in `is_offloaded` is set are offloaded.
fn run_parts(
    parts: &[Part],
    is_offloaded: &[bool],
    sequence: &Arc<dyn Sequence>,
    first: usize,
    input: &Tensor,
) -> Result<Tensor> {
    let mut x = input.clone();
    for part in parts {
        let range = first + part.range().start..first + part.range().end;
        x = match part {
            Part::Keep(_) if is_offloaded.is_empty() => sequence.run(range, &x)?,
            Part::Keep(_) => alike(range, is_offloaded).into_iter().try_fold(x, |x, range| {
                let leaves = is_offloaded[range.start];
                let run = || sequence.run(range, &x);
                if leaves { leave(&x, run) } else { run() }
            })?,
            Part::Checkpoint(_, inner) => {
                let (sequence, inner) = (sequence.clone(), inner.clone());
                let again = move |x: &[Tensor]| match &inner {
                    None => sequence.run(range.clone(), &x[0]),
                    Some(inner) => run_parts(&inner.parts, &[], &sequence, range.start, &x[0]),
                };
                checkpoint(again, &[&x])?
            }
        };
    }
    Ok(x)
}

/// Cuts a range of blocks where offloaded ones begin or end.
fn alike(range: Range<usize>, is_offloaded: &[bool]) -> Vec<Range<usize>> {
    let mut cuts: Vec<Range<usize>> = Vec::new();
    for block in range {
        match cuts.last_mut() {
            Some(last) if is_offloaded[last.start] == is_offloaded[block] => last.end = block + 1,
            _ => cuts.push(block..block + 1),
        }
    }
    cuts
}
