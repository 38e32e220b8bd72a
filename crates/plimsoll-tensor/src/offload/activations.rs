//! [`OffloadActivations`], and the pass that runs on this thread.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::options::OffloadOptions;
use super::pass::{Pass, Ticket};
use super::shared::Shared;
use crate::clock;
use crate::error::Result;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// Keeps the tensors that forward passes save in pinned host memory until the backward pass. Like `save_on_cpu`, but
/// the copies run on their own streams and overlap with the computation. Values are bit-identical. Use the same one for
/// all steps: the order in which a backward pass reads the tensors decides when the next one copies them back.
///
/// The device keeps the tensors that are read first, which were saved last, and up to twice the bytes of the largest one for
/// copies in progress, in each direction. Parameters stay on the device, as do the tensors of synchronous devices.
///
/// ```
/// use plimsoll_tensor::offload::{OffloadActivations, OffloadOptions};
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::like("H200")?);
/// let x = Tensor::ones(&[4 << 20], &device)?.requires_grad_(true)?; // 16 MiB
/// let offload = OffloadActivations::new(OffloadOptions { wait: true, ..Default::default() });
/// for _step in 0..2 {
///     let y = offload.run(|| (0..24).try_fold(x.clone(), |y, _| y.tanh()))?;
///     y.sum()?.backward()?;
/// }
/// assert!(device.max_memory_allocated() < 220 << 20); // more than 400 MiB without it
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct OffloadActivations {
    options: OffloadOptions,
    shared: Arc<Shared>,
}

thread_local! {
    /// The passes that run on this thread; the last one offloads.
    static OPEN: RefCell<Vec<Arc<Pass>>> = const { RefCell::new(Vec::new()) };
    /// Whether [`stay`] runs.
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

impl OffloadActivations {
    /// Offloading with these options; no pass has run yet.
    pub fn new(options: OffloadOptions) -> OffloadActivations {
        OffloadActivations { options, shared: Arc::default() }
    }

    /// [`OffloadOptions::max_bytes`].
    pub(crate) fn max_bytes(&self) -> u64 {
        self.options.max_bytes
    }

    /// Runs a forward pass. The tensors that its operations save for the backward pass leave the device; run the
    /// backward pass afterwards, outside of `f`. If calls are nested, the innermost one offloads. Tensors that
    /// [`saved_tensors_hooks`](crate::autograd::saved_tensors_hooks) or a checkpoint receive are left to them.
    ///
    /// An operation inside `f` returns an error if pinned memory cannot be allocated, or if the step is being captured.
    pub fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        self.open(true, f)
    }

    /// Like [`OffloadActivations::run`]. If `reuses` is set, tensors may come back into the memory of those that were
    /// read and freed; a schedule of checkpoints needs that memory itself.
    pub(crate) fn open<T>(&self, reuses: bool, f: impl FnOnce() -> T) -> T {
        /// Closes the pass, even if `f` panics.
        struct Open(usize);
        impl Drop for Open {
            fn drop(&mut self) {
                let ended = OPEN.with_borrow_mut(|open| open.split_off(self.0));
                ended.iter().for_each(|pass| pass.end());
            }
        }
        let run = || {
            let pass = Arc::new(Pass::new(self.options, reuses, self.shared.clone()));
            let _open = Open(OPEN.with_borrow_mut(|open| {
                open.push(pass);
                open.len() - 1
            }));
            f()
        };
        // The estimated time of the operations decides which tensors can leave.
        if clock::is_metered() { run() } else { clock::metered(run).0 }
    }

    /// The bytes that the last pass copied to the host.
    pub fn offloaded_bytes(&self) -> u64 {
        self.shared.learned().offloaded_bytes
    }
}

/// Runs `f`, a part of a forward pass. The tensors that its operations save stay on the device, even inside
/// [`OffloadActivations::run`].
///
/// ```
/// use plimsoll_tensor::offload::{OffloadActivations, OffloadOptions, stay};
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::like("H200")?);
/// let x = Tensor::ones(&[4 << 20], &device)?.requires_grad_(true)?;
/// let offload = OffloadActivations::new(OffloadOptions { wait: true, ..Default::default() });
/// let y = offload.run(|| stay(|| (0..8).try_fold(x.clone(), |y, _| y.tanh())))?;
/// assert_eq!(offload.offloaded_bytes(), 0);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn stay<T>(f: impl FnOnce() -> T) -> T {
    with_stays(true, f)
}

/// Runs `f`, a part of [`stay`] whose saved tensors leave nevertheless, including its input but not its output, which
/// belongs to the code that follows.
pub(crate) fn leave(input: &Tensor, f: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
    let pass = OPEN.with_borrow(|open| open.last().cloned());
    let set = |tensor: &Tensor, leaves: bool| {
        pass.iter().for_each(|pass| pass.set_leaves(&tensor.data().storage, leaves));
    };
    set(input, true);
    let output = with_stays(false, f)?;
    set(&output, false);
    Ok(output)
}

fn with_stays<T>(stays: bool, f: impl FnOnce() -> T) -> T {
    /// Restores the setting, even if `f` panics.
    struct Outer(bool);
    impl Drop for Outer {
        fn drop(&mut self) {
            STAYS.set(self.0);
        }
    }
    let _outer = Outer(STAYS.replace(stays));
    f()
}

/// Called when hooks get a tensor, so that copies of others begin in time.
///
/// # Errors
/// The errors of [`saved`].
pub(crate) fn advance(storage: &Storage) -> Result<()> {
    match OPEN.with_borrow(|open| open.last().cloned()) {
        None => Ok(()),
        Some(pass) => pass.advance(storage.device()),
    }
}

/// Called when an operation saves a tensor. Returns the value that its reader must announce.
///
/// # Errors
/// Pinned memory cannot be allocated, the step is captured, or the device's errors.
pub(crate) fn saved(storage: &Storage) -> Result<Option<Arc<Ticket>>> {
    match OPEN.with_borrow(|open| open.last().cloned()) {
        None => Ok(None),
        Some(pass) => pass.saved(storage, !STAYS.get()),
    }
}
