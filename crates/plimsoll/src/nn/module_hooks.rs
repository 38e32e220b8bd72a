//! Functions that a layer calls before and after its forward pass, and in the backward pass: [`ModuleHooks`].

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use plimsoll_tensor::autograd::queue_callback;
use plimsoll_tensor::{Result, Tensor, is_grad_enabled};

type PreHook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;
type ForwardHook = Arc<dyn Fn(&Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync>;
type BackwardHook = Arc<dyn Fn(Option<&Tensor>, &Tensor) -> Result<Option<Tensor>> + Send + Sync>;

#[derive(Clone)]
enum Hook {
    Pre(PreHook),
    Forward(ForwardHook),
    Backward(BackwardHook),
}

type Entries = Mutex<Vec<(u64, Hook)>>;

/// The hooks of a layer in a [`Slot`](super::Slot). They belong to the slot: they stay when the layer is replaced, and
/// clones of the slot or of its model share them. Hooks of one kind run in the order in which they were registered,
/// with no lock held; if a hook returns an error, the pass ends. A hook that owns its own model is a cycle, which is
/// not freed until the hook is removed.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use plimsoll::models::{Gpt2, Gpt2Config};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(80 << 30));
/// let model = Gpt2::new(&Scope::new(&device, 1), Gpt2Config::small())?;
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let kept = seen.clone();
/// let handle = model.hooks("transformer.h.3.mlp")?.register_forward_hook(move |_input, output| {
///     kept.lock().unwrap().push(output.detach());
///     Ok(None)
/// });
/// model.forward(&Tensor::zeros(&[1, 8], &device)?.to_dtype(plimsoll::DType::I64)?)?;
/// assert_eq!(seen.lock().unwrap()[0].shape(), [1, 8, 768]);
/// handle.remove();
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct ModuleHooks(Arc<Entries>);

fn lock(entries: &Entries) -> MutexGuard<'_, Vec<(u64, Hook)>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModuleHooks {
    /// Calls `hook` with the input before each forward pass. If it returns a tensor, that replaces the input. Like
    /// `Module.register_forward_pre_hook`.
    pub fn register_forward_pre_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> ModuleHookHandle {
        self.add(Hook::Pre(Arc::new(hook)))
    }

    /// Calls `hook` with the input and the output after each forward pass. If it returns a tensor, that replaces the output. Like
    /// `Module.register_forward_hook`.
    pub fn register_forward_hook(
        &self,
        hook: impl Fn(&Tensor, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> ModuleHookHandle {
        self.add(Hook::Forward(Arc::new(hook)))
    }

    /// Calls `hook` in each backward pass with the gradients of the input and of the output. If it returns a tensor, that replaces
    /// the gradient of the input. If the input requires no gradient, `hook` gets `None` for it, and its result is not used. Like
    /// `Module.register_full_backward_hook`.
    pub fn register_full_backward_hook(
        &self,
        hook: impl Fn(Option<&Tensor>, &Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> ModuleHookHandle {
        self.add(Hook::Backward(Arc::new(hook)))
    }

    /// Whether there are no hooks.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    fn add(&self, hook: Hook) -> ModuleHookHandle {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        lock(&self.0).push((number, hook));
        ModuleHookHandle { hooks: Arc::downgrade(&self.0), number }
    }

    /// Runs a forward pass with the hooks.
    pub(super) fn run(
        &self,
        input: &Tensor,
        forward: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        // A copy of the list, so that no hook runs under the lock.
        let hooks: Vec<Hook> = lock(&self.0).iter().map(|(_, hook)| hook.clone()).collect();
        if hooks.is_empty() {
            return forward(input);
        }
        let mut x = input.clone();
        for hook in &hooks {
            if let Hook::Pre(hook) = hook {
                x = hook(&x)?.unwrap_or(x);
            }
        }
        let backward = hooks.iter().filter_map(|hook| match hook {
            Hook::Backward(hook) => Some(hook.clone()),
            _ => None,
        });
        let backward: Arc<[BackwardHook]> = backward.collect();
        let watched = !backward.is_empty() && is_grad_enabled();
        // A view has its own gradient: only the part that flows through this layer.
        if watched && x.requires_grad() {
            x = x.view_as(&x)?;
        }
        let mut y = forward(&x)?;
        for hook in &hooks {
            if let Hook::Forward(hook) = hook {
                y = hook(&x, &y)?.unwrap_or(y);
            }
        }
        if watched && y.requires_grad() {
            y = y.view_as(&y)?;
            watch(&x, &y, &backward)?;
        }
        Ok(y)
    }
}

/// Drops a gradient at the end of a backward pass, even if the pass fails.
struct Clear(Arc<Mutex<Option<Tensor>>>);

impl Drop for Clear {
    fn drop(&mut self) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(left); // after the lock
    }
}

/// Calls the hooks with the gradients of both tensors, once the input's gradient is complete; if the input has no
/// gradient, only with the output's.
fn watch(x: &Tensor, y: &Tensor, hooks: &Arc<[BackwardHook]>) -> Result<()> {
    if !x.requires_grad() {
        let hooks = hooks.clone();
        y.register_hook(move |grad_output| {
            hooks.iter().try_for_each(|hook| hook(None, grad_output).map(drop))?;
            Ok(None)
        })?;
        return Ok(());
    }
    let of_output = Arc::new(Mutex::new(None));
    let (kept, hooks) = (of_output.clone(), hooks.clone());
    y.register_hook(move |grad_output| {
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(grad_output.clone());
        // A pass that does not reach the input would leave the gradient here, and its graph would form a cycle with
        // this hook.
        let clear = Clear(kept.clone());
        queue_callback(move || {
            drop(clear);
            Ok(())
        })?;
        Ok(None)
    })?;
    x.register_hook(move |grad_input| {
        let Some(grad_output) = of_output.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(None);
        };
        let mut changed = None;
        for hook in &*hooks {
            changed = hook(Some(changed.as_ref().unwrap_or(grad_input)), &grad_output)?.or(changed);
        }
        Ok(changed)
    })?;
    Ok(())
}

impl fmt::Debug for ModuleHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleHooks({})", lock(&self.0).len())
    }
}

/// Removes a hook of a module. Dropping the handle does not remove it.
///
/// ```
/// use plimsoll::nn::ModuleHooks;
/// let hooks = ModuleHooks::default();
/// let handle = hooks.register_forward_pre_hook(|x| (x * 2.0).map(Some));
/// handle.remove();
/// assert!(hooks.is_empty());
/// ```
#[derive(Clone)]
pub struct ModuleHookHandle {
    hooks: Weak<Entries>,
    number: u64,
}

impl ModuleHookHandle {
    /// Removes the hook; does nothing if it is already removed.
    pub fn remove(&self) {
        let Some(hooks) = self.hooks.upgrade() else { return };
        let mut entries = lock(&hooks);
        let at = entries.iter().position(|(number, _)| *number == self.number);
        let removed = at.map(|at| entries.remove(at));
        drop(entries);
        drop(removed); // outside the lock: it may own tensors
    }
}

impl fmt::Debug for ModuleHookHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModuleHookHandle({})", self.number)
    }
}
