//! An observer that is called between the operators of a device, and may evict tensors.

use std::sync::Arc;

use super::operands::Tensors;
use crate::device::Device;
use crate::error::Result;
use crate::operator::Operator;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// Notifies the device's observer of an operator that has run.
pub(super) fn notify(
    device: &Device,
    shared: Option<&Arc<dyn Operator>>,
    ins: &[&Tensor],
    outs: Tensors,
) -> Tensors {
    if let Some(op) = shared
        && let Some(watch) = watch(device)
    {
        watch.executed(&ExecutedOperator { op, ins, outs: &outs });
    }
    outs
}

/// An observer that is called between the operators of a device. `testing/evicting.rs` is one.
pub(crate) trait Watch: Send + Sync {
    /// Called before an operator changes this storage.
    ///
    /// # Errors
    /// If it fails, the change does not happen and its caller gets the error.
    fn will_change(&self, storage: &Storage) -> Result<()>;

    /// Called after an operator has run, and was recorded if needed.
    fn executed(&self, executed: &ExecutedOperator<'_>);
}

/// An operator that has run.
pub(crate) struct ExecutedOperator<'a> {
    pub(crate) op: &'a Arc<dyn Operator>,
    pub(crate) ins: &'a [&'a Tensor],
    pub(crate) outs: &'a [Tensor],
}

/// Sets `watch` as the observer of a device's operators. Returns false if the device already has another one.
pub(crate) fn set_watch(device: &Device, watch: Arc<dyn Watch>) -> bool {
    device.set_watch(Box::new(watch))
}

pub(super) fn watch(device: &Device) -> Option<&Arc<dyn Watch>> {
    device.watch().and_then(|watch| watch.downcast_ref())
}
