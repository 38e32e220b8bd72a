//! Runs an operator again, to restore a tensor that was evicted from its device.

use std::sync::Arc;

use smallvec::SmallVec;

use super::execute;
use super::handle::Call;
use super::operands::Inputs;
use super::run::Execution;
use crate::data::Data;
use crate::device::Device;
use crate::error::Result;
use crate::operator::Operator;
use crate::storage::Storage;

/// Computes the outputs of an operator once more, in new memory and outside the graph.
pub(crate) fn rerun(device: &Device, op: &Arc<dyn Operator>, ins: &[Data]) -> Result<SmallVec<[Storage; 2]>> {
    let ins: Inputs<'_> = ins.iter().collect();
    let mut execution = Execution::default();
    execute(&Call { device, tensors: &[], op: &**op, shared: Some(op) }, &ins, false, &mut execution)?;
    Ok(execution.outs.into_iter().map(|data| data.storage).collect())
}
