//! Functions that are called when the memory of a tensor is freed.

use plimsoll_alloc::Category;

use super::Tensor;

/// What was freed, and what freed it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Freed {
    /// The bytes that the memory was requested with.
    pub bytes: u64,
    /// The category of the memory when it was freed.
    pub category: Category,
    /// The label of the memory's owner.
    pub label: String,
    /// The label of the layer that ran when the last handle was dropped: `fc1`, or `fc1 backward` in its derivative; empty
    /// outside of layers.
    pub by: String,
}

impl Tensor {
    /// Calls `hook` once, when the memory of this tensor is freed: when the last tensor on it is dropped, including views and
    /// those that are saved for a backward pass. Like `weakref.finalize` on PyTorch's storage.
    ///
    /// The hook runs on the thread that drops the last handle, possibly inside an operation, so it must not use tensors. A panic
    /// in it is ignored.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use plimsoll_tensor::{Device, Tensor};
    /// let (sender, freed) = mpsc::channel();
    /// let x = Tensor::ones(&[4], &Device::cpu())?;
    /// x.register_free_hook(move |freed| drop(sender.send(freed.bytes)));
    /// let view = x.reshape(&[2, 2])?;
    /// drop(x);
    /// assert!(freed.try_recv().is_err(), "the view has the memory");
    /// drop(view);
    /// assert_eq!(freed.recv().unwrap(), 16);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn register_free_hook(&self, hook: impl FnOnce(&Freed) + Send + 'static) {
        self.data().storage.on_free(Box::new(move |bytes, tag, by| {
            let label = crate::label::text(tag.label);
            hook(&Freed { bytes, category: tag.category, label, by: crate::label::text(by) });
        }));
    }
}
