//! Functions that a backward pass calls: with a tensor's gradient, and after a leaf's gradient was accumulated.
//!
//! Hooks run in the order in which they were registered, with no lock held and in the grad mode of the backward pass: recorded
//! only under `create_graph`. If a hook fails, the pass ends with its error.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use smallvec::SmallVec;

use super::graph::{Entry, Hook};
use super::{Hooks, Tensor};
use crate::error::{Error, Result};

impl Hooks {
    fn add(self: &Arc<Hooks>, output: usize, hook: Hook) -> HookHandle {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Entry { number, output, hook });
        HookHandle { hooks: Arc::downgrade(self), number }
    }

    /// A copy of the list, so that no hook runs under the lock.
    fn of(&self, output: usize) -> SmallVec<[Hook; 2]> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().filter(|entry| entry.output == output).map(|entry| entry.hook.clone()).collect()
    }

    /// The gradient after the hooks.
    pub(crate) fn gradient(&self, output: usize, mut grad: Tensor) -> Result<Tensor> {
        let hooks = self.of(output);
        for hook in &hooks {
            let Hook::Grad(hook) = hook else { continue };
            if let Some(other) = hook(&grad)? {
                if (other.shape(), other.dtype()) != (grad.shape(), grad.dtype()) {
                    return Err(Error::autograd(
                        "hook",
                        format!(
                            "a hook returned {other:?} for a gradient {grad:?}: shape and type must stay the same"
                        ),
                    ));
                }
                grad = other;
            }
        }
        for hook in &hooks {
            if let Hook::Retain(tensor) = hook
                && let Some(tensor) = tensor.upgrade()
            {
                let sum = tensor.grad().map(|sum| sum.add(&grad)).transpose()?;
                tensor.put_grad(Some(sum.unwrap_or_else(|| grad.clone())));
            }
        }
        Ok(grad)
    }

    /// The number of the hook that retains the gradient of an output in its tensor, if there is one.
    fn retaining(&self, output: usize) -> Option<u64> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let retains = |entry: &&Entry| entry.output == output && matches!(entry.hook, Hook::Retain(_));
        entries.iter().find(retains).map(|entry| entry.number)
    }

    /// Calls the post-accumulate hooks of a leaf.
    pub(crate) fn accumulated(&self, leaf: &Tensor) -> Result<()> {
        for hook in self.of(0) {
            if let Hook::Leaf(hook) = hook {
                hook(leaf)?;
            }
        }
        Ok(())
    }
}

/// Removes a hook. Dropping the handle does not remove it.
#[derive(Clone)]
pub struct HookHandle {
    hooks: Weak<Hooks>,
    number: u64,
}

impl HookHandle {
    /// Removes the hook; does nothing if it is already removed.
    pub fn remove(&self) {
        let Some(hooks) = self.hooks.upgrade() else { return };
        let mut entries = hooks.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|entry| entry.number == self.number);
        let removed = at.map(|at| entries.remove(at));
        drop(entries);
        drop(removed); // after the lock: it may own tensors
    }
}

impl fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookHandle({})", self.number)
    }
}

impl Tensor {
    /// Calls `hook` in every backward pass with the complete gradient of this tensor. If it returns a tensor, that replaces the
    /// gradient. Like `Tensor.register_hook`.
    ///
    /// # Errors
    /// If a tensor requires no gradient.
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let (hooks, output) = self.hooks("register_hook")?;
        Ok(hooks.add(output, Hook::Grad(Arc::new(hook))))
    }

    /// Calls `hook` with this leaf each time a backward pass has added to its gradient. An optimizer step in the hook can free
    /// the gradient before the next one is computed. Like `Tensor.register_post_accumulate_grad_hook`.
    ///
    /// # Errors
    /// If the tensor is not a leaf, or requires no gradient.
    pub fn register_post_accumulate_grad_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        const NAME: &str = "register_post_accumulate_grad_hook";
        if !self.is_leaf() {
            return Err(Error::autograd(
                NAME,
                "only a leaf accumulates a gradient; this tensor has a history",
            ));
        }
        let (hooks, output) = self.hooks(NAME)?;
        Ok(hooks.add(output, Hook::Leaf(Arc::new(hook))))
    }

    /// Keeps the gradient of a tensor that an operation made, as for a leaf. It is the gradient after the other hooks. A second
    /// call changes nothing, and returns a handle of the same hook. Like `Tensor.retain_grad`, but the handle removes it: later
    /// passes keep no gradient, and the one that is there stays until [`Tensor::clear_grad`]. For a leaf, which keeps its gradient
    /// anyway, the handle does nothing.
    ///
    /// ```
    /// use plimsoll_tensor::{BackwardOptions, Device, Tensor};
    /// let x = Tensor::ones(&[2], &Device::cpu())?.requires_grad_(true)?;
    /// let y = x.exp()?;
    /// let kept = y.retain_grad()?;
    /// let loss = y.sum()?;
    /// loss.backward_with(BackwardOptions { retain_graph: true, ..Default::default() })?;
    /// assert_eq!(y.grad().unwrap().to_vec::<f32>()?, [1.0; 2]);
    /// y.clear_grad();
    /// kept.remove();
    /// loss.backward()?;
    /// assert!(y.grad().is_none() && !y.retains_grad());
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a tensor requires no gradient.
    pub fn retain_grad(&self) -> Result<HookHandle> {
        if self.is_leaf() && self.requires_grad() {
            return Ok(HookHandle { hooks: Weak::new(), number: 0 });
        }
        let (hooks, output) = self.hooks("retain_grad")?;
        Ok(match hooks.retaining(output) {
            Some(number) => HookHandle { hooks: Arc::downgrade(&hooks), number },
            None => hooks.add(output, Hook::Retain(Arc::new(self.downgrade()))),
        })
    }

    /// Whether [`Tensor::retain_grad`] was called on this tensor, through any handle, and not removed. Like `Tensor.retains_grad`.
    pub fn retains_grad(&self) -> bool {
        let Some((node, output)) = &self.0.made_by else { return false };
        node.hooks().is_some_and(|hooks| hooks.retaining(*output).is_some())
    }
}
