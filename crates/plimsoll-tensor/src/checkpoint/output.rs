//! Recomputed outputs: an operation that would save such an output for the backward pass saves the means to recompute it
//! instead.
//!
//! [`checkpoint`](super::checkpoint) drops the tensors that a piece saves; this drops its output. The output of a
//! normalization or an activation is as large as its input, which is saved anyway, and takes only one pass to
//! recompute. Any later operation that reads the output may save it in this way. The values are computed when the first
//! derivative needs them, and freed after the last one has read them. As Megatron's `CheckpointWithoutOutput`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::first_run::FirstRun;
use crate::autograd::{hooks_are_open, is_grad_enabled, no_grad};
use crate::data::Data;
use crate::error::{Error, Result};
use crate::storage::{Recompute, Storage};
use crate::tensor::{Held, Tensor};

/// Runs `f` on `inputs`. An operation that would save the output for the backward pass saves the inputs instead, and the
/// backward pass runs `f` a second time, with the same random numbers and under the same autocast. Tensors that `f`
/// itself saves are kept as usual. The output's memory is freed when its last handle is dropped.
///
/// `f` must compute the same values both times. Within [`checkpoint`](super::checkpoint) and other saved-tensor hooks,
/// this simply calls `f`.
///
/// ```
/// use plimsoll_tensor::checkpoint::recompute_output;
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let x = Tensor::ones(&[1 << 10, 1 << 10], &device)?.requires_grad_(true)?;
/// let w = Tensor::ones(&[1 << 10, 1 << 10], &device)?.requires_grad_(true)?;
/// let norm = |x: &[Tensor]| x[0].layer_norm(None, None, 1e-5);
/// let kept = |y: Tensor| -> plimsoll_tensor::Result<u64> {
///     let out = y.matmul(&w)?;
///     drop(y);
///     Ok(device.memory_allocated() - device.memory_allocated() % (4 << 20))
/// };
/// // Two inputs, the product's output, and the normalized input or not.
/// assert_eq!(kept(norm(&[x.clone()])?)?, 4 * 4 << 20);
/// assert_eq!(kept(recompute_output(norm, &[&x])?)?, 3 * 4 << 20);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The errors of `f`. In the backward pass, the errors of its second run, or if an output's layout differs from the
/// first run's.
pub fn recompute_output<F>(f: F, inputs: &[&Tensor]) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    if !is_grad_enabled() || hooks_are_open() {
        return f(&inputs.iter().map(|&input| input.clone()).collect::<Vec<_>>());
    }
    let first = FirstRun::new(inputs)?;
    let out = f(&inputs.iter().map(|&input| input.clone()).collect::<Vec<_>>())?;
    attach(&out, f, first, inputs);
    Ok(out)
}

impl Tensor {
    /// [`recompute_output`](crate::checkpoint::recompute_output) for a tensor that already exists: an operation that would
    /// save this tensor for the backward pass saves `inputs` instead, and `f` computes it from them. `f` must return the
    /// same values in the same layout. Does nothing if this tensor requires no gradient.
    ///
    /// # Errors
    /// If an input cannot be saved.
    pub fn recompute_with<F>(&self, f: F, inputs: &[&Tensor]) -> Result<()>
    where
        F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    {
        if is_grad_enabled() && !hooks_are_open() {
            attach(self, f, FirstRun::new(inputs)?, inputs);
        }
        Ok(())
    }
}

/// From now on, saves of `out` keep `f` and its inputs instead of the values.
fn attach<F>(out: &Tensor, f: F, first: FirstRun, inputs: &[&Tensor])
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    // The memory of an input or a leaf stays allocated anyway.
    let Some((node, _)) = out.made_by() else { return };
    if inputs.iter().any(|input| input.shares_storage(out)) {
        return;
    }
    let Data { storage, layout, dtype } = out.data().clone();
    let output = Output { f, first, like: (layout, dtype), state: Mutex::default() };
    let output = Arc::new(output);
    let recompute: Arc<dyn Recompute> = output.clone();
    storage.recompute_with(Arc::downgrade(&recompute));
    // The saved inputs are dropped with the graph.
    node.hold(output);
}

/// An output that can be recomputed, and its values while derivatives read them.
struct Output<F> {
    f: F,
    first: FirstRun,
    like: (crate::layout::Layout, crate::dtype::DType),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of saved tensors that will read the values.
    readers: usize,
    values: Option<Storage>,
}

impl<F> Output<F> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Send + Sync> Held for Output<F> {
    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        self.first.kept(visit);
    }
}

impl<F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync> Recompute for Output<F> {
    fn save(&self) {
        self.state().readers += 1;
    }

    fn values(&self) -> Result<Storage> {
        let known = self.state().values.clone();
        if let Some(values) = known {
            return Ok(values);
        }
        // No lock is held here, since `f` requests memory.
        let inputs = self.first.inputs()?;
        let Data { storage, layout, dtype } =
            self.first.run_again(|| no_grad(|| (self.f)(&inputs)))?.data().clone();
        if (&layout, dtype) != (&self.like.0, self.like.1) {
            let message = format!(
                "the recomputed output is {:?} of {dtype} with strides {:?}, but the original was {:?} of {} with strides {:?}: \
                 the function must compute the same both times",
                layout.shape(),
                layout.strides(),
                self.like.0.shape(),
                self.like.1,
                self.like.0.strides()
            );
            return Err(Error::autograd("recompute_output", message));
        }
        Ok(self.state().values.get_or_insert(storage).clone())
    }

    fn unsave(&self) {
        let mut state = self.state();
        state.readers -= 1;
        let freed = if state.readers == 0 { state.values.take() } else { None };
        drop(state);
        drop(freed);
    }
}
