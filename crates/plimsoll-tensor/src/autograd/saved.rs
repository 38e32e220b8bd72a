//! The tensors that an operation keeps for its derivative.
//!
//! Saving a temporary makes it an activation until the derivative has run. A saved tensor holds only values, never the
//! graph, so nodes cannot form reference cycles. While [`saved_tensors_hooks`] is active, the value that `pack`
//! returned for a tensor is kept in its place.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::grad_mode::no_grad;
use crate::data::Data;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::offload::{self, Ticket};
use crate::storage::{Recompute, Storage};
use crate::tensor::Tensor;
use crate::unwind::caught;

/// A tensor kept for the backward pass.
pub(crate) enum Saved {
    /// The tensor's values.
    Kept { data: Data, version: u32, offloaded: Option<Arc<Ticket>> },
    /// A recipe to recompute it (`checkpoint/output.rs`).
    Recomputed { values: Arc<dyn Recompute>, layout: Layout, dtype: DType },
    /// The value that a hook's `pack` returned.
    Packed { value: Box<dyn Any + Send + Sync>, hooks: Arc<dyn Hooks> },
}

impl Saved {
    /// Saves these values in the current mode of this thread. `pack` runs with no lock held.
    ///
    /// # Errors
    /// If `op` cannot save a tensor because it was made in inference mode; also errors of `pack`.
    pub(crate) fn new(data: &Data, op: &'static str) -> Result<Saved> {
        if data.storage.is_inference() {
            let message = "an inference tensor (made in `inference_mode`) cannot be saved for the backward pass: `copy` it \
                           outside of that mode first";
            return Err(Error::autograd(op, message));
        }
        let Some(hooks) = HOOKS.with_borrow(|stack| stack.last().cloned()) else {
            let recipe = data.storage.save();
            let is_observed = OBSERVED.with_borrow_mut(|list| {
                list.iter_mut().for_each(|list| list.saved.push((data.storage.clone(), recipe.is_some())));
                list.is_some()
            });
            if let Some(values) = recipe {
                return Ok(Saved::Recomputed { values, layout: data.layout.clone(), dtype: data.dtype });
            }
            let mut saved =
                Saved::Kept { data: data.clone(), version: data.storage.version(), offloaded: None };
            if let Saved::Kept { offloaded, .. } = &mut saved
                && !is_observed
            {
                *offloaded = offload::saved(&data.storage)?;
            }
            return Ok(saved);
        };
        offload::advance(&data.storage)?;
        let value = no_grad(|| hooks.pack(&Tensor::from_data(data.clone())))?;
        Ok(Saved::Packed { value, hooks })
    }

    /// Whether the derivative does not hold its values, so that a hook must unpack it or it must be recomputed.
    pub(crate) fn is_packed(&self) -> bool {
        !matches!(self, Saved::Kept { .. })
    }

    /// Calls `visit` with the values that it keeps in memory. What a value is recomputed from is visited by the node that made it.
    pub(crate) fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        match self {
            Saved::Kept { data, .. } => visit(data),
            Saved::Recomputed { .. } => {}
            Saved::Packed { value, hooks } => hooks.kept(value.as_ref(), visit),
        }
    }

    /// Returns the values for the derivative of `node`.
    ///
    /// # Errors
    /// If the storage was changed in place after it was saved; also errors of `unpack`.
    pub(crate) fn get(&self, node: &'static str) -> Result<Data> {
        match self {
            Saved::Kept { data, version, offloaded } => {
                let (saved, found) = (*version, data.storage.version());
                if saved != found {
                    let changed_by = data.storage.changed_by();
                    return Err(Error::SavedModified { node, changed_by, saved, found });
                }
                offloaded.as_ref().map_or(Ok(()), |ticket| ticket.announce())?;
                Ok(data.clone())
            }
            Saved::Recomputed { values, layout, dtype } => {
                Ok(Data { storage: values.values()?, layout: layout.clone(), dtype: *dtype })
            }
            Saved::Packed { value, hooks } => Ok(no_grad(|| hooks.unpack(value.as_ref()))?.data().clone()),
        }
    }
}

/// The tensors that hooks unpacked for one derivative. Each is unpacked once, no matter how often the derivative
/// reads it.
pub(crate) struct Unpacked<K>(RefCell<SmallVec<[(K, Data); 2]>>);

impl<K> Default for Unpacked<K> {
    fn default() -> Unpacked<K> {
        Unpacked(RefCell::default())
    }
}

impl<K: Copy + PartialEq> Unpacked<K> {
    /// The values of `saved`, which this derivative identifies by `key`.
    ///
    /// # Errors
    /// The same errors as [`Saved::get`].
    pub(crate) fn get(&self, key: K, saved: &Saved, node: &'static str) -> Result<Data> {
        if !saved.is_packed() {
            return saved.get(node);
        }
        let known = self.0.borrow().iter().find(|(at, _)| *at == key).map(|(_, data)| data.clone());
        if let Some(data) = known {
            return Ok(data);
        }
        let data = saved.get(node)?;
        self.0.borrow_mut().push((key, data.clone()));
        Ok(data)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        match self {
            Saved::Kept { data, .. } => data.storage.unsave(),
            Saved::Recomputed { values, .. } => values.unsave(),
            Saved::Packed { .. } => {}
        }
    }
}

thread_local! {
    static HOOKS: RefCell<Vec<Arc<dyn Hooks>>> = const { RefCell::new(Vec::new()) };
}

/// Whether hooks receive the tensors that this thread's operations save.
pub(crate) fn hooks_are_open() -> bool {
    HOOKS.with_borrow(|stack| !stack.is_empty())
}

thread_local! {
    static OBSERVED: RefCell<Option<Observed>> = const { RefCell::new(None) };
}

/// What operations saved while [`observing`] ran.
#[derive(Default)]
pub(crate) struct Observed {
    /// The storages in order, and whether only a recipe to recompute it was saved.
    pub(crate) saved: Vec<(Storage, bool)>,
    /// [`clock::metered`] seconds needed to compute all of them.
    pub(crate) seconds: f64,
}

/// Records that an operation has saved tensors, and how long this thread took to compute them.
pub(crate) fn observe_seconds(seconds: f64) {
    OBSERVED.with_borrow_mut(|list| list.iter_mut().for_each(|list| list.seconds = seconds));
}

/// Runs `f` without the hooks that are active here. Returns what its operations save for the backward pass, without the
/// tensors that hooks inside `f` receive.
pub(crate) fn observing<T>(f: impl FnOnce() -> T) -> (T, Observed) {
    /// Restores the hooks and the outer list, even if `f` panics.
    struct Outer(Vec<Arc<dyn Hooks>>, Option<Observed>);
    impl Drop for Outer {
        fn drop(&mut self) {
            HOOKS.set(std::mem::take(&mut self.0));
            drop(OBSERVED.replace(self.1.take()));
        }
    }
    let outer = Outer(HOOKS.take(), OBSERVED.replace(Some(Observed::default())));
    let result = f();
    let list = OBSERVED.take().unwrap_or_default();
    drop(outer);
    (result, list)
}

/// A pair of hooks, for any type that `pack` returns.
pub(crate) trait Hooks: Send + Sync {
    fn pack(&self, tensor: &Tensor) -> Result<Box<dyn Any + Send + Sync>>;
    fn unpack(&self, value: &(dyn Any + Send + Sync)) -> Result<Tensor>;
    /// Calls `visit` with the tensors that the packed value keeps in memory, if they are known.
    fn kept(&self, value: &(dyn Any + Send + Sync), visit: &mut dyn FnMut(&Data)) {
        if let Some(tensor) = value.downcast_ref::<Tensor>() {
            visit(tensor.data());
        }
    }

    /// The number of further tensors after which `pack` returns an error that ends the run.
    fn tensors_left(&self) -> Option<usize> {
        None
    }
}

/// The number of further tensors after which this thread's hooks end the run. If an operation saves only its inputs,
/// and these are the last, it does not have to run.
pub(crate) fn tensors_left() -> Option<usize> {
    HOOKS.with_borrow(|stack| stack.last().and_then(|hooks| hooks.tensors_left()))
}

const NAME: &str = "saved_tensors_hooks";

struct Pair<P, F, G> {
    pack: F,
    unpack: G,
    between: std::marker::PhantomData<fn() -> P>,
}

impl<P, F, G> Hooks for Pair<P, F, G>
where
    P: Send + Sync + 'static,
    F: Fn(&Tensor) -> Result<P> + Send + Sync,
    G: Fn(&P) -> Result<Tensor> + Send + Sync,
{
    fn pack(&self, tensor: &Tensor) -> Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(caught(NAME, "`pack`", || (self.pack)(tensor))?))
    }

    fn unpack(&self, value: &(dyn Any + Send + Sync)) -> Result<Tensor> {
        let value = value.downcast_ref::<P>();
        let value = value.unwrap_or_else(|| unreachable!("what `pack` of the same pair made"));
        caught(NAME, "`unpack`", || (self.unpack)(value))
    }
}

/// Runs `f` with a pair of hooks. Each tensor that its operations save for the backward pass is given to `pack`, and the value
/// that `pack` returns is kept instead. The backward pass calls `unpack` to get the tensor back, once for each derivative that
/// reads it. Neither hook is recorded. If pairs are nested, the innermost one is used. Like
/// `torch.autograd.graph.saved_tensors_hooks`.
///
/// ```
/// use plimsoll_tensor::autograd::saved_tensors_hooks;
/// use plimsoll_tensor::{Device, Tensor};
/// // Activations wait on another device.
/// let (device, other) = (Device::cpu(), Device::cpu_with(Default::default()));
/// let x = Tensor::full(&[3], 2.0, plimsoll_tensor::DType::F32, &device)?.requires_grad_(true)?;
/// let (there, back) = (other.clone(), device.clone());
/// let y = saved_tensors_hooks(
///     move |saved| saved.to_device(&there),
///     move |packed: &Tensor| packed.to_device(&back),
///     || x.square(),
/// )?;
/// assert_eq!(other.memory_allocated(), 512);
/// y.sum()?.backward()?;
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [4.0; 3]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn saved_tensors_hooks<P: Send + Sync + 'static, T>(
    pack: impl Fn(&Tensor) -> Result<P> + Send + Sync + 'static,
    unpack: impl Fn(&P) -> Result<Tensor> + Send + Sync + 'static,
    f: impl FnOnce() -> T,
) -> T {
    with_hooks(Arc::new(Pair { pack, unpack, between: std::marker::PhantomData }), f)
}

/// Runs `f` with these hooks.
pub(crate) fn with_hooks<T>(hooks: Arc<dyn Hooks>, f: impl FnOnce() -> T) -> T {
    /// Deactivates the hooks, even if `f` panics.
    struct Open(usize);
    impl Drop for Open {
        fn drop(&mut self) {
            let ended = HOOKS.with_borrow_mut(|stack| stack.split_off(self.0));
            drop(ended); // outside the borrow: it may drop tensors
        }
    }
    let _open = Open(HOOKS.with_borrow_mut(|stack| {
        stack.push(hooks);
        stack.len() - 1
    }));
    f()
}
