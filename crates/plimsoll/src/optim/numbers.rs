//! Steps of algorithms without a kernel: [`Algorithm::update`] for each parameter, and the numbers that it reads.
//!
//! The numbers of a step are uploaded together, into memory that stays the same, so that the replay of a captured step reads those of
//! its own step. The graph has a record of each captured step, because a group may be stepped in several graphs, with other
//! parameters and options in each.

use std::any::Any;
use std::sync::Arc;

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::op::{Slot, capture_update, captured_updates};
use plimsoll_tensor::{DType, Device, Error, Graph, Result, Tensor, no_grad};
use serde_json::Value;

use super::algorithm::{Algorithm, Updating};

/// One parameter's part of a step.
pub(super) struct ParameterStep {
    /// Its number in the group.
    pub(super) at: usize,
    pub(super) grad: Tensor,
    pub(super) state: Vec<Tensor>,
    pub(super) master: Option<Tensor>,
    pub(super) step: u64,
}

impl ParameterStep {
    pub(super) fn slot<'a>(&'a self, parameters: &'a [Tensor]) -> Slot<'a> {
        let parameter = self.master.as_ref().unwrap_or(&parameters[self.at]);
        Slot { parameter, grad: &self.grad, state: &self.state, step: self.step }
    }
}

/// The numbers of a group's steps.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    tables: Vec<Table>,
    /// The group whose numbers these are.
    group: Arc<GroupMark>,
}

/// Marks a group by its address, which no other group has. Not of size 0, so that it has an address of its own.
#[derive(Debug, Default)]
struct GroupMark(#[expect(dead_code, reason = "gives it a size")] u8);

/// The record of a captured step of a group.
#[derive(Debug)]
struct Captured {
    group: Arc<GroupMark>,
    /// The numbers of its parameters in the group.
    parameters: Vec<usize>,
    options: Value,
    /// The memory that a replay reads the numbers from.
    rows: Vec<Tensor>,
}

/// The numbers of all parameters on one device: a row each.
#[derive(Debug)]
struct Table {
    device: Device,
    /// `float64` for parameters of that type, otherwise `float32`.
    dtype: DType,
    rows: Tensor,
}

impl Numbers {
    /// Begins a step of these parameters: uploads its numbers, or records it in the graph that is being captured.
    ///
    /// # Errors
    /// A second step of the group in a capture: both would read the numbers of one.
    pub(super) fn begin<O: Algorithm>(
        &mut self,
        options: &O,
        parameters: &[Tensor],
        work: &[ParameterStep],
    ) -> Result<()> {
        if work.iter().any(|work| parameters[work.at].device().is_capturing()) {
            return self.capture(options, work);
        }
        let _owner = Span::layer(label::intern(O::NAME));
        let steps: Vec<(usize, u64)> = work.iter().map(|work| (work.at, work.step)).collect();
        self.upload(options, parameters, &steps)
    }

    /// Updates one parameter.
    pub(super) fn update<O: Algorithm>(
        &self,
        options: &O,
        parameters: &[Tensor],
        work: &ParameterStep,
    ) -> Result<()> {
        let _owner = Span::layer(label::intern(O::NAME));
        no_grad(|| self.update_one(options, parameters, work))
    }

    /// Records a step in the graph that is being captured.
    fn capture<O: Algorithm>(&self, options: &O, work: &[ParameterStep]) -> Result<()> {
        if captured_updates().iter().any(|update| self.own(&**update).is_some()) {
            let why = "this optimizer is made of operations on tensors, so a captured step can contain only one of its steps";
            return Err(Error::Captured { op: O::NAME, why });
        }
        capture_update(Arc::new(Captured {
            group: self.group.clone(),
            parameters: work.iter().map(|work| work.at).collect(),
            options: comparable(options),
            rows: self.rows(),
        }));
        Ok(())
    }

    /// The record, if it is of this group.
    fn own<'a>(&self, update: &'a (dyn Any + Send + Sync)) -> Option<&'a Captured> {
        let captured = update.downcast_ref::<Captured>();
        captured.filter(|captured| Arc::ptr_eq(&captured.group, &self.group))
    }

    fn rows(&self) -> Vec<Tensor> {
        self.tables.iter().map(|table| table.rows.clone()).collect()
    }

    fn update_one<O: Algorithm>(
        &self,
        options: &O,
        parameters: &[Tensor],
        work: &ParameterStep,
    ) -> Result<()> {
        let slot = work.slot(parameters);
        let numbers = self.row(&parameters[work.at], work.at)?;
        let grad = slot.grad.to_dtype(slot.parameter.dtype())?;
        let at = Updating { parameter: slot.parameter, grad: &grad, state: slot.state, numbers: &numbers };
        let update = options.update(&at)?;
        if update.shape() != slot.parameter.shape() {
            let message =
                format!("an update {:?} of a parameter {:?}", update.shape(), slot.parameter.shape());
            return Err(Error::argument(O::NAME, message));
        }
        slot.parameter.add_(&update)?;
        if work.master.is_some() {
            parameters[work.at].copy_(slot.parameter)?;
        }
        Ok(())
    }

    /// Writes the numbers of these parameters' steps.
    fn upload<O: Algorithm>(
        &mut self,
        options: &O,
        parameters: &[Tensor],
        steps: &[(usize, u64)],
    ) -> Result<()> {
        let mut kinds: Vec<(Device, DType)> = Vec::new();
        for &(at, _) in steps {
            let kind = kind(&parameters[at]);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for (device, dtype) in kinds {
            let count = options.numbers(1).len();
            let mut rows = vec![0.0; parameters.len() * count];
            for &(at, step) in
                steps.iter().filter(|(at, _)| kind(&parameters[*at]) == (device.clone(), dtype))
            {
                let numbers = options.numbers(step);
                if numbers.len() != count {
                    let message = format!("{} numbers in step {step}, but {count} in step 1", numbers.len());
                    return Err(Error::argument(O::NAME, message));
                }
                rows[at * count..][..count].copy_from_slice(&numbers);
            }
            let shape = [parameters.len(), count];
            let rows =
                Tensor::from_slice(&rows, &shape, &Device::cpu())?.to_dtype(dtype)?.to_device(&device)?;
            let same = |table: &&Table| {
                (&table.device, table.dtype) == (&device, dtype) && table.rows.shape() == shape
            };
            match self.tables.iter().find(same) {
                Some(table) => no_grad(|| table.rows.copy_(&rows))?,
                None => {
                    rows.set_owner(Category::OptimizerState, label::intern(O::NAME));
                    self.tables.retain(|table| (&table.device, table.dtype) != (&device, dtype));
                    self.tables.push(Table { device, dtype, rows });
                }
            }
        }
        Ok(())
    }

    /// The numbers of one parameter, as tensors without dimensions.
    fn row(&self, parameter: &Tensor, at: usize) -> Result<Vec<Tensor>> {
        let kind = kind(parameter);
        match self.tables.iter().find(|table| (&table.device, table.dtype) == (&kind.0, kind.1)) {
            Some(table) if table.rows.shape()[1] == 0 => Ok(Vec::new()),
            Some(table) => table.rows.select(0, at as isize)?.unbind(0),
            None => {
                let why = "the optimizer's numbers are uploaded by a step: take one before the capture";
                Err(Error::Captured { op: "optimizer", why })
            }
        }
    }

    /// Writes the numbers of the next replay of this graph, if it contains a step of the group. `next` is the number of a
    /// parameter's next step. Returns the parameters of the step; `None` if the graph has none.
    ///
    /// # Errors
    /// [`Error::Captured`] if an option other than the learning rate has changed.
    pub(super) fn replay<O: Algorithm>(
        &mut self,
        options: &O,
        parameters: &[Tensor],
        graph: &Graph,
        next: impl Fn(usize) -> u64,
    ) -> Result<Option<Vec<usize>>> {
        let Some(captured) = graph.updates().iter().find_map(|update| self.own(&**update)) else {
            return Ok(None);
        };
        let changed = Error::Captured { op: O::NAME, why: "an option has changed: capture the step again" };
        if captured.options != comparable(options) {
            return Err(changed);
        }
        let steps: Vec<(usize, u64)> = captured.parameters.iter().map(|&at| (at, next(at))).collect();
        self.upload(options, parameters, &steps)?;
        // If the options changed in between, the step may have needed other memory.
        if !captured.rows.iter().all(|rows| self.tables.iter().any(|table| table.rows.is_same(rows))) {
            return Err(changed);
        }
        Ok(Some(captured.parameters.clone()))
    }
}

/// The device and the type of a parameter's numbers.
fn kind(parameter: &Tensor) -> (Device, DType) {
    let dtype = if parameter.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    (parameter.device().clone(), dtype)
}

/// The options without the learning rate, which is one of the numbers.
fn comparable<O: Algorithm>(options: &O) -> Value {
    let mut options = options.clone();
    options.set_lr(0.0);
    serde_json::to_value(&options).unwrap_or(Value::Null)
}
