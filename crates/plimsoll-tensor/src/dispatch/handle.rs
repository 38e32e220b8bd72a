//! Handles of an operator: owned, or shared with a queue.

use std::sync::Arc;

use crate::device::Device;
use crate::operator::{AsOperator, Operator};
use crate::tensor::Tensor;

/// How dispatch stores an operator. For a synchronous device, it is borrowed. A device that is asynchronous or has an
/// observer shares it with its queue and with the derivative, which costs an allocation.
pub(super) trait OperatorHandle: AsOperator + Send + Sync + 'static {
    /// A handle that can wait in a queue.
    fn shared(&self) -> Option<Arc<dyn Operator>>;
}

/// An operator to which nothing else refers.
pub(super) struct Owned<O>(pub(super) O);

impl<O: Operator> AsOperator for Owned<O> {
    fn operator(&self) -> &dyn Operator {
        &self.0
    }
}

impl<O: Operator> OperatorHandle for Owned<O> {
    fn shared(&self) -> Option<Arc<dyn Operator>> {
        None
    }
}

impl OperatorHandle for Arc<dyn Operator> {
    fn shared(&self) -> Option<Arc<dyn Operator>> {
        Some(self.clone())
    }
}

/// A call to an operator on a device.
pub(super) struct Call<'a> {
    pub(super) device: &'a Device,
    /// The tensors that it is called on; empty if nothing is recorded.
    pub(super) tensors: &'a [&'a Tensor],
    pub(super) op: &'a dyn Operator,
    pub(super) shared: Option<&'a Arc<dyn Operator>>,
}
