//! An operator that has run, run again: the recipe of a tensor that leaves its device.

use std::sync::Arc;

use super::execute;
use super::handle::Call;
use super::operands::Inputs;
use super::run::Execution;
use crate::data::Data;
use crate::device::Device;
use crate::error::Result;
use crate::operator::Operator;
use crate::storage::Storage;

/// An output of an operator, computed once more: in memory of its own, outside the graph.
pub(crate) fn rerun(device: &Device, op: &Arc<dyn Operator>, ins: &[Data], output: usize) -> Result<Storage> {
    let ins: Inputs<'_> = ins.iter().collect();
    let mut execution = Execution::default();
    execute(&Call { device, tensors: &[], op: &**op, shared: Some(op) }, &ins, false, &mut execution)?;
    Ok(execution.outs.swap_remove(output).storage)
}
