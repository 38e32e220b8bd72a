//! Outputs that are computed again: where an operation would keep one for the backward pass, it keeps how to compute it.
//!
//! [`checkpoint`](super::checkpoint) drops what a piece saves, this what it gives: the output of a normalization or an
//! activation is as large as its input, which is kept anyway, and costs one pass to compute again. Any operation that
//! reads the output later may save it in this way; the values are computed when the first derivative asks, and freed with
//! the last one that reads them. As Megatron's `CheckpointWithoutOutput`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::FirstRun;
use crate::autograd::{hooks_are_open, is_grad_enabled, no_grad};
use crate::data::Data;
use crate::error::{Error, Result};
use crate::storage::{Recompute, Storage};
use crate::tensor::Tensor;

/// Runs `f` on `inputs`. Where an operation would keep the output for the backward pass, the inputs are kept instead, and
/// `f` runs a second time there, with the same random numbers and under the same autocast. What `f` itself saves is kept
/// as usual. The output's memory is free once its last handle is dropped.
///
/// `f` must compute the same both times. Under [`checkpoint`](super::checkpoint) and other hooks of saved tensors it is
/// nothing but a call of `f`.
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
/// Those of `f`. In the backward pass: those of its second run; an output that lies in another way than the first.
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
    /// Where an operation would keep this tensor for the backward pass, `inputs` are kept instead, and `f` computes it from
    /// them: [`recompute_output`](crate::checkpoint::recompute_output) for a tensor that is there already. `f` must give
    /// the same values in the same layout. Does nothing where this tensor requires no gradient.
    ///
    /// # Errors
    /// An input that cannot be saved.
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

/// Makes `f` the way in which `out` is saved.
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
    let output: Arc<dyn Recompute> = Arc::new(output);
    storage.recompute_with(Arc::downgrade(&output));
    // With the graph goes what the inputs keep.
    node.hold(output);
}

/// How an output is computed, and its values while derivatives read them.
struct Output<F> {
    f: F,
    first: FirstRun,
    like: (crate::layout::Layout, crate::dtype::DType),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Saved tensors that will read the values.
    readers: usize,
    values: Option<Storage>,
}

impl<F> Output<F> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        // With no lock held: `f` requests memory.
        let inputs = self.first.inputs()?;
        let Data { storage, layout, dtype } =
            self.first.run_again(|| no_grad(|| (self.f)(&inputs)))?.data().clone();
        if (&layout, dtype) != (&self.like.0, self.like.1) {
            let message = format!(
                "when the function ran again its output was {:?} of {dtype} with strides {:?}, and {:?} of {} with strides {:?} \
                 the first time; it must compute the same both times",
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
