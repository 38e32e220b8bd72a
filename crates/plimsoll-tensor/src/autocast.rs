//! Mixed precision: operators cast their inputs like PyTorch's autocast.
//!
//! Each operator has an [`Autocast`] policy, from PyTorch's lists for CUDA. Within [`autocast`], dispatch (`dispatch/`) casts
//! its inputs first. Autograd records a cast, so gradients have the type of the parameter. The cast of a parameter is kept
//! until the outermost `autocast` ends, so a weight that is used twice is cast only once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use smallvec::SmallVec;

use crate::autocast_mode::{self, ModeGuard};
use crate::autograd::is_grad_enabled;
use crate::dtype::{DType, promote};
use crate::error::{Error, Result};
use crate::operator::Autocast;
use crate::tensor::{Tensor, WeakTensor};

thread_local! {
    static CASTS: RefCell<HashMap<usize, Cast>> = RefCell::new(HashMap::new());
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// A parameter in a lower precision, until autocast ends or the parameter changes.
struct Cast {
    of: WeakTensor,
    version: u32,
    values: Tensor,
}

/// Whether autocast is on in this thread. Like `torch.is_autocast_enabled`.
pub fn is_enabled() -> bool {
    autocast_mode::lower().is_some()
}

/// The lower precision in use, if autocast is on. Like `torch.get_autocast_dtype`.
pub fn dtype() -> Option<DType> {
    autocast_mode::lower()
}

/// Runs `f`. Meanwhile, matrix products run in a lower precision, and operators that need more range or precision run
/// in 32 bits. Like `torch.autocast(dtype=…)`. `None` disables an enclosing autocast.
///
/// ```
/// use plimsoll_tensor::{DType, Device, Tensor, autocast};
/// let device = Device::cpu();
/// let w = Tensor::ones(&[4, 4], &device)?.requires_grad_(true)?;
/// let x = Tensor::ones(&[2, 4], &device)?;
/// let loss = autocast::autocast(DType::BF16, || {
///     let y = x.matmul(&w)?;
///     assert_eq!(y.dtype(), DType::BF16);
///     y.sum()
/// })?;
/// loss.backward()?;
/// assert_eq!((loss.dtype(), w.grad().unwrap().dtype()), (DType::F32, DType::F32));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// The errors of `f`, or if the type is neither `float16` nor `bfloat16`.
pub fn autocast<T, E: From<Error>>(
    lower: impl Into<Option<DType>>,
    f: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let lower = lower.into();
    if let Some(got) = lower.filter(|dtype| !matches!(dtype, DType::F16 | DType::BF16)) {
        return Err(Error::DType { op: "autocast", expected: "float16 or bfloat16", got }.into());
    }
    let _until_the_end = Opened::new(lower);
    f()
}

/// Casts a tensor to the type of matrix products, or returns it unchanged if autocast is off. So a tensor that several
/// products read is cast once, and saved once for their derivatives.
///
/// ```
/// use plimsoll_tensor::{DType, Device, Tensor, autocast};
/// let x = Tensor::ones(&[2], &Device::cpu())?;
/// let lower = autocast::autocast(DType::BF16, || autocast::lower(&x))?;
/// assert_eq!((lower.dtype(), autocast::lower(&x)?.dtype()), (DType::BF16, DType::F32));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
///
/// # Errors
/// If memory runs out.
pub fn lower(x: &Tensor) -> Result<Tensor> {
    match autocast_mode::lower() {
        Some(to) if x.dtype().is_float() && x.dtype() != DType::F64 => cast(x, to),
        _ => Ok(x.clone()),
    }
}

/// Restores the previous autocast setting when dropped. The outermost one also discards the casts of parameters.
struct Opened {
    _guard: ModeGuard,
}

impl Opened {
    fn new(lower: Option<DType>) -> Opened {
        DEPTH.set(DEPTH.get() + 1);
        Opened { _guard: ModeGuard::to(lower) }
    }
}

/// Runs `f` with this setting and its own casts. Otherwise a later pass would read the casts that `f` makes, and their
/// derivatives would run after those of everything recorded before.
pub(crate) fn apart<T>(lower: Option<DType>, f: impl FnOnce() -> T) -> T {
    /// Restores the outer casts, even if `f` panics.
    struct Outer(HashMap<usize, Cast>);
    impl Drop for Outer {
        fn drop(&mut self) {
            let own = CASTS.replace(std::mem::take(&mut self.0));
            drop(own);
        }
    }
    let _outer = Outer(CASTS.take());
    let _mode = ModeGuard::to(lower);
    f()
}

impl Drop for Opened {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            // Dropped outside the borrow, since freeing a tensor may run arbitrary code.
            let casts = CASTS.with_borrow_mut(std::mem::take);
            drop(casts);
        }
    }
}

/// The inputs of an operator, cast by its policy; `None` if no cast is needed.
pub(crate) fn inputs(policy: Autocast, ins: &[&Tensor]) -> Result<Option<SmallVec<[Tensor; 4]>>> {
    let Some(lower) = autocast_mode::lower() else { return Ok(None) };
    // PyTorch leaves 64-bit floats alone.
    let eligible = |tensor: &Tensor| tensor.dtype().is_float() && tensor.dtype() != DType::F64;
    let to = match policy {
        Autocast::AsGiven => return Ok(None),
        Autocast::Lower => lower,
        Autocast::Full => DType::F32,
        Autocast::Widest => {
            let types = ins.iter().filter(|tensor| eligible(tensor)).map(|tensor| tensor.dtype());
            types.fold(lower, promote)
        }
    };
    if ins.iter().all(|tensor| !eligible(tensor) || tensor.dtype() == to) {
        return Ok(None);
    }
    let cast = |tensor: &&Tensor| if eligible(tensor) { cast(tensor, to) } else { Ok((*tensor).clone()) };
    ins.iter().map(cast).collect::<Result<_>>().map(Some)
}

fn cast(tensor: &Tensor, to: DType) -> Result<Tensor> {
    if tensor.dtype() == to {
        return Ok(tensor.clone());
    }
    let parameter = tensor.is_leaf() && tensor.requires_grad() && is_grad_enabled();
    if !parameter || tensor.dtype() != DType::F32 {
        return tensor.to_dtype(to);
    }
    let version = tensor.data().storage.version();
    let found = CASTS.with_borrow(|casts| {
        let Cast { of, version: of_version, values } = casts.get(&tensor.id())?;
        let is_current = *of_version == version && values.dtype() == to;
        of.upgrade().filter(|of| of.is_same(tensor) && is_current).map(|_| values.clone())
    });
    if let Some(cast) = found {
        return Ok(cast);
    }
    let values = tensor.to_dtype(to)?;
    let cast = Cast { of: tensor.downgrade(), version, values: values.clone() };
    let old = CASTS.with_borrow_mut(|casts| casts.insert(tensor.id(), cast));
    drop(old);
    Ok(values)
}
