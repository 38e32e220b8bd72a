//! Results in existing memory: [`into_out`], the equivalent of PyTorch's `out=`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::watch::watch;
use crate::autograd::is_grad_enabled;
use crate::data::Data;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::operator::{Operator, Output};
use crate::storage::{Computed, is_restoring};
use crate::tensor::Tensor;

thread_local! {
    /// Whether there is a target. Every operation checks this.
    static OPEN: Cell<bool> = const { Cell::new(false) };
    static TARGET: RefCell<Option<Target>> = const { RefCell::new(None) };
}

/// The memory of `out`, for the next result that fits.
struct Target {
    data: Data,
    /// The last operation that wrote there, and its result.
    taken_by: Option<(&'static str, Computed)>,
}

impl Target {
    /// Whether the memory contains a result that is still in use.
    fn is_used(&self) -> bool {
        self.taken_by.as_ref().is_some_and(|(_, result)| Arc::strong_count(result) > 1)
    }
}

/// Runs an operation and writes its result into `out`, without allocating memory for it. As the argument `out` of PyTorch's
/// functions.
///
/// ```
/// use plimsoll_tensor::{Device, SimConfig, Tensor, into_out};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let [a, b, out] = [(); 3].map(|()| Tensor::zeros(&[512, 512], &device).unwrap());
/// let before = device.max_memory_allocated();
/// into_out(&out, || a.matmul(&b))?;
/// assert_eq!(device.max_memory_allocated(), before);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// If the result cannot be computed there (`out` is an operand, or has a different dtype or layout), it is computed in new memory
/// and copied. If `f` runs several operations, each may write into `out` while no earlier result there is in use; the last
/// result is copied if it was computed elsewhere.
///
/// # Errors
/// Errors of `f` and of [`Tensor::copy_`]. Also if the result's shape differs from that of `out`, or `out` cannot hold
/// its dtype; if operands require a gradient outside `no_grad`; or if an operation reads the old values of `out` after
/// an earlier one wrote there.
#[track_caller]
pub fn into_out(out: &Tensor, f: impl FnOnce() -> Result<Tensor>) -> Result<()> {
    const NAME: &str = "into_out";
    /// Restores the state, even if `f` panics.
    struct Restore(bool, Option<Target>);
    impl Drop for Restore {
        fn drop(&mut self) {
            OPEN.set(self.0);
            drop(TARGET.replace(self.1.take()));
        }
    }
    if out.requires_grad() && is_grad_enabled() {
        return Err(no_gradient(NAME));
    }
    out.data().storage.may_be_written(NAME)?;
    let result = {
        let target = Target { data: out.data().clone(), taken_by: None };
        let _before = Restore(OPEN.replace(true), TARGET.replace(Some(target)));
        f()?
    };
    if result.requires_grad() {
        return Err(no_gradient(NAME));
    }
    if result.shape() != out.shape() {
        let message = format!("a result {:?} for a tensor {:?}", result.shape(), out.shape());
        return Err(Error::shape(NAME, message));
    }
    let overlaps = result.shares_storage(out);
    if overlaps && result.data_ptr() == out.data_ptr() && result.strides() == out.strides() {
        return Ok(());
    }
    if result.dtype().is_float() && !out.dtype().is_float() {
        return Err(Error::DType {
            op: NAME,
            expected: "a result that is not floating-point",
            got: result.dtype(),
        });
    }
    if overlaps { out.copy_(&result.copy()?) } else { out.copy_(&result) }
}

fn no_gradient(op: &'static str) -> Error {
    Error::autograd(
        op,
        "autograd does not record writes into an existing tensor: use `no_grad`, or detach the operands",
    )
}

/// The target's memory for an output of `op`, if it fits.
///
/// # Errors
/// If an operation reads the previous values of the memory after another one wrote there.
pub(super) fn target(
    op: &dyn Operator,
    number: usize,
    output: &Output,
    device: &Device,
    ins: &[&Data],
    recording: bool,
) -> Result<Option<Data>> {
    // What brings an evicted operand back is not a result of the program's function.
    if !OPEN.get() || is_restoring() {
        return Ok(None);
    }
    let found = TARGET.with_borrow_mut(|target| -> Result<Option<Data>> {
        let Some(target) = target else { return Ok(None) };
        let mut readers = ins.iter().filter(|data| data.storage.id() == target.data.storage.id()).peekable();
        let reads = readers.peek().is_some();
        if let Some((first, result)) = &target.taken_by
            && readers.any(|data| !data.storage.is_computed(result))
        {
            let message = format!(
                "{first} wrote its result into `out`, but {} still reads `out`: give one operation, or `copy_` the result",
                op.name()
            );
            return Err(Error::argument("into_out", message));
        }
        let data = &target.data;
        let fits = (data.layout.shape(), data.layout.strides(), data.dtype)
            == (output.layout.shape(), output.layout.strides(), output.dtype);
        let here = device == data.storage.device();
        if recording || reads || number > 0 || !fits || !here || target.is_used() {
            return Ok(None);
        }
        let (storage, result) = data.storage.computed();
        let found = Data { storage, ..data.clone() };
        target.taken_by = Some((op.name(), result));
        Ok(Some(found))
    })?;
    if let Some(data) = &found {
        if let Some(watch) = watch(data.storage.device()) {
            watch.will_change(&data.storage)?;
        }
        data.storage.changed(op.name());
    }
    Ok(found)
}
