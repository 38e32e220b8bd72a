//! What sees the operators of a device between them, and may let tensors leave.

use std::sync::Arc;

use super::operands::Tensors;
use crate::device::Device;
use crate::error::Result;
use crate::operator::Operator;
use crate::storage::Storage;
use crate::tensor::Tensor;

/// Lets what watches the device see an operator that has run.
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

/// What is called between the operators of a device: `testing/evicting.rs` is one.
pub(crate) trait Watch: Send + Sync {
    /// An operator is about to change this storage.
    ///
    /// # Errors
    /// The change does not happen, and its caller gets the error.
    fn will_change(&self, storage: &Storage) -> Result<()>;

    /// An operator has run, and is recorded where it has to be.
    fn executed(&self, executed: &ExecutedOperator<'_>);
}

/// An operator that has run.
pub(crate) struct ExecutedOperator<'a> {
    pub(crate) op: &'a Arc<dyn Operator>,
    pub(crate) ins: &'a [&'a Tensor],
    pub(crate) outs: &'a [Tensor],
}

/// Lets `watch` see the operators of a device from now on; false where another one does.
pub(crate) fn set_watch(device: &Device, watch: Arc<dyn Watch>) -> bool {
    device.set_watch(Box::new(watch))
}

pub(super) fn watch(device: &Device) -> Option<&Arc<dyn Watch>> {
    device.watch().and_then(|watch| watch.downcast_ref())
}
