//! [`checkpoint`]: runs a piece and drops the tensors that it saves.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::autograd::{Hooks, enable_grad, is_grad_enabled, with_hooks};
use crate::data::Data;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::tensor::Tensor;
use crate::unwind::caught;

use super::first_run::FirstRun;

/// Runs `f` on `inputs` and saves only the inputs for the backward pass, which runs `f` a second time, with the same
/// random numbers and the same autocast setting. Like `torch.utils.checkpoint.checkpoint`.
///
/// `f` must compute the same values both times; tensors that it captures, such as parameters, get their gradients as usual.
///
/// ```
/// use plimsoll_tensor::checkpoint::checkpoint;
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let x = Tensor::ones(&[1 << 20], &device)?.requires_grad_(true)?;
/// let block = |x: &[Tensor]| x[0].exp()?.tanh()?.exp()?.tanh();
/// let y = block(&[x.clone()])?;
/// let kept = device.memory_allocated();
/// drop(y);
/// let y = checkpoint(block, &[&x])?;
/// assert_eq!((kept, device.memory_allocated()), (5 * 4 << 20, 2 * 4 << 20));
/// y.sum()?.backward()?;
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The errors of `f`. In the backward pass, the errors of its second run, or if an output's layout differs from the
/// first run's.
pub fn checkpoint<F>(f: F, inputs: &[&Tensor]) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    if !is_grad_enabled() {
        return f(&inputs.iter().map(|&input| input.clone()).collect::<Vec<_>>());
    }
    let piece = Arc::new(Piece::new(f, inputs)?);
    let hooks = Arc::new(FirstPass(piece.clone()));
    with_hooks(hooks, || (piece.f)(&inputs.iter().map(|&input| input.clone()).collect::<Vec<_>>()))
}

/// Whether this thread is running a piece for the second time. Side effects that must happen only once, such as updates of
/// running statistics, must then be skipped.
pub fn is_recomputing() -> bool {
    crate::autograd::is_recomputing()
}

/// A checkpointed piece.
struct Piece<F> {
    f: F,
    first: FirstRun,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Shape and type of each tensor that the first run saved, in order.
    saved: Vec<(Dims, DType)>,
    /// The tensors that the second run saved, but no derivative has read yet.
    recomputed: BTreeMap<usize, Tensor>,
}

impl<F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static> Piece<F> {
    fn new(f: F, inputs: &[&Tensor]) -> Result<Piece<F>> {
        Ok(Piece { f, first: FirstRun::new(inputs)?, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a number to another saved tensor.
    fn count(&self, tensor: &Tensor) -> usize {
        let saved = &mut self.state().saved;
        saved.push((Dims::from_slice(tensor.shape()), tensor.dtype()));
        saved.len() - 1
    }

    /// Removes a saved tensor and returns it.
    fn unpack(self: &Arc<Self>, number: usize) -> Result<Tensor> {
        let found = self.state().recomputed.remove(&number);
        match found {
            Some(tensor) => Ok(tensor),
            None => {
                self.recompute()?;
                let found = self.state().recomputed.remove(&number);
                found.ok_or_else(|| differs("one tensor fewer than expected"))
            }
        }
    }

    /// Runs the piece again, up to the last tensor that the first run saved.
    fn recompute(self: &Arc<Self>) -> Result<()> {
        let inputs = self.first.leaves()?;
        let run = Arc::new(SecondRun { piece: self.clone(), progress: Mutex::default() });
        let result = self.first.run_again(|| enable_grad(|| with_hooks(run.clone(), || (self.f)(&inputs))));
        let progress = run.progress();
        match (&progress.wrong, progress.complete, result) {
            (Some(wrong), ..) => Err(differs(wrong)),
            (None, true, _) => Ok(()),
            (None, false, Err(error)) => Err(error),
            (None, false, Ok(_)) => Err(differs(&format!("{} tensors", progress.next))),
        }
    }

    /// Keeps a tensor of the second run. After the last one, an internal error ends the run.
    fn keep(&self, tensor: &Tensor, progress: &mut Progress) -> Result<()> {
        if progress.complete {
            return Err(stop());
        }
        let number = progress.next;
        progress.next += 1;
        let mut state = self.state();
        let found = (Dims::from_slice(tensor.shape()), tensor.dtype());
        if state.saved.get(number) != Some(&found) {
            progress.wrong = Some(format!("tensor {number} is {:?} of {}", found.0, found.1));
            return Err(stop());
        }
        let last = number + 1 == state.saved.len();
        let old = state.recomputed.insert(number, tensor.detach());
        drop(state);
        drop(old);
        if last {
            progress.complete = true;
            return Err(stop());
        }
        Ok(())
    }
}

/// The hooks of the first run: a saved tensor is packed as its number.
struct FirstPass<F>(Arc<Piece<F>>);

impl<F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static> Hooks for FirstPass<F> {
    fn pack(&self, tensor: &Tensor) -> Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(self.0.count(tensor)))
    }

    fn unpack(&self, value: &(dyn Any + Send + Sync)) -> Result<Tensor> {
        let Some(number) = value.downcast_ref::<usize>() else { unreachable!("what `pack` made") };
        caught("checkpoint", "the function", || self.0.unpack(*number))
    }

    fn kept(&self, value: &(dyn Any + Send + Sync), visit: &mut dyn FnMut(&Data)) {
        // The inputs belong to the piece: its first saved tensor shows them.
        if value.downcast_ref::<usize>() == Some(&0) {
            self.0.first.kept(visit);
        }
    }
}

/// The hooks of a second run.
struct SecondRun<F> {
    piece: Arc<Piece<F>>,
    progress: Mutex<Progress>,
}

impl<F> SecondRun<F> {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static> Hooks for SecondRun<F> {
    fn pack(&self, tensor: &Tensor) -> Result<Box<dyn Any + Send + Sync>> {
        self.piece.keep(tensor, &mut self.progress())?;
        Ok(Box::new(()))
    }

    fn unpack(&self, _: &(dyn Any + Send + Sync)) -> Result<Tensor> {
        let message = "a backward pass inside a checkpointed function is not supported";
        Err(Error::autograd("checkpoint", message))
    }

    fn tensors_left(&self) -> Option<usize> {
        Some(self.piece.state().saved.len().saturating_sub(self.progress().next))
    }
}

/// The progress of a second run.
#[derive(Default)]
struct Progress {
    next: usize,
    complete: bool,
    wrong: Option<String>,
}

fn stop() -> Error {
    Error::autograd("checkpoint", "all that the backward pass needs has been computed again")
}

fn differs(what: &str) -> Error {
    let message = format!(
        "the recomputed function saved {what}, unlike the original: it must compute the same both times"
    );
    Error::autograd("checkpoint", message)
}
