//! Results in memory that is there already: [`into_out`], the form `out=` of every operation.

use std::cell::{Cell, RefCell};

use super::watch::watch;
use crate::autograd::is_grad_enabled;
use crate::data::Data;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::operator::{Operator, Output};
use crate::tensor::Tensor;

thread_local! {
    /// Whether there is a target: asked by every operation.
    static OPEN: Cell<bool> = const { Cell::new(false) };
    static TARGET: RefCell<Option<Target>> = const { RefCell::new(None) };
}

/// Memory for the next result that fits.
struct Target {
    data: Data,
    /// The operation that wrote there.
    taken_by: Option<&'static str>,
}

/// Runs one operation and writes its result into `out`, without memory of its own for it. As the argument `out` of PyTorch's
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
/// Where the result cannot be computed there (`out` is one of the operands, has another type or lies in another way), it gets
/// memory first and is copied.
///
/// # Errors
/// Those of `f` and of [`Tensor::copy_`]; a result of another shape than `out`, or one that `out` cannot hold; operands that want
/// a gradient, outside of `no_grad`; several operations of which one reads what another wrote into `out`.
pub fn into_out(out: &Tensor, f: impl FnOnce() -> Result<Tensor>) -> Result<()> {
    const NAME: &str = "into_out";
    /// Also when `f` panics.
    struct Before(bool, Option<Target>);
    impl Drop for Before {
        fn drop(&mut self) {
            OPEN.set(self.0);
            drop(TARGET.replace(self.1.take()));
        }
    }
    if out.requires_grad() && is_grad_enabled() {
        return Err(no_gradient(NAME));
    }
    let result = {
        let target = Target { data: out.data().clone(), taken_by: None };
        let _before = Before(OPEN.replace(true), TARGET.replace(Some(target)));
        f()?
    };
    if result.requires_grad() {
        return Err(no_gradient(NAME));
    }
    if result.shape() != out.shape() {
        let message = format!("a result {:?} for a tensor {:?}", result.shape(), out.shape());
        return Err(Error::shape(NAME, message));
    }
    if result.shares_storage(out) && result.data_ptr() == out.data_ptr() && result.strides() == out.strides()
    {
        return Ok(());
    }
    if result.dtype().is_float() && !out.dtype().is_float() {
        return Err(Error::DType {
            op: NAME,
            expected: "a result of whole numbers for such a tensor",
            got: result.dtype(),
        });
    }
    out.copy_(&result)
}

fn no_gradient(op: &'static str) -> Error {
    Error::autograd(
        op,
        "what is written into an existing tensor is not recorded: use `no_grad`, or detach the operands",
    )
}

/// The target's memory for an output of `op`, where it fits.
///
/// # Errors
/// An operation that reads what another one wrote there; one that would be recorded.
pub(super) fn target(
    op: &dyn Operator,
    number: usize,
    output: &Output,
    device: &Device,
    ins: &[&Data],
    recording: bool,
) -> Result<Option<Data>> {
    if !OPEN.get() {
        return Ok(None);
    }
    let found = TARGET.with_borrow_mut(|target| -> Result<Option<Data>> {
        let Some(target) = target else { return Ok(None) };
        let reads = ins.iter().any(|data| data.storage.id() == target.data.storage.id());
        if let (true, Some(first)) = (reads, target.taken_by) {
            let message =
                format!("{first} wrote its result into `out`, and {} reads it: give one operation, or `copy_` the result", op.name());
            return Err(Error::argument("into_out", message));
        }
        let data = &target.data;
        let fits = (data.layout.shape(), data.layout.strides(), data.dtype)
            == (output.layout.shape(), output.layout.strides(), output.dtype);
        let here = device == data.storage.device();
        if recording || reads || number > 0 || !fits || !here || target.taken_by.is_some() {
            return Ok(None);
        }
        target.taken_by = Some(op.name());
        Ok(Some(data.clone()))
    })?;
    if let Some(data) = &found {
        if let Some(watch) = watch(data.storage.device()) {
            watch.will_change(&data.storage)?;
        }
        data.storage.changed(op.name());
    }
    Ok(found)
}
