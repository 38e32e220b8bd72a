//! Steps of algorithms without a kernel: [`Algorithm::update`] for each parameter, and the numbers that it reads.
//!
//! The numbers of a step are uploaded together, into memory that stays the same, so that the replay of a captured step reads those of
//! its own step.

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::op::Slot;
use plimsoll_tensor::{DType, Device, Error, Result, Tensor, no_grad};
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
    /// The parameters and the options of the step that was captured.
    captured: Option<(Vec<usize>, Value)>,
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
    /// Updates parameters, one after the other.
    pub(super) fn update<O: Algorithm>(
        &mut self,
        options: &O,
        parameters: &[Tensor],
        work: &[ParameterStep],
    ) -> Result<()> {
        let _owner = Span::layer(label::intern(O::NAME));
        let is_captured = work.iter().any(|work| parameters[work.at].device().is_capturing());
        if is_captured {
            self.captured = Some((work.iter().map(|work| work.at).collect(), comparable(options)));
        } else {
            let steps: Vec<(usize, u64)> = work.iter().map(|work| (work.at, work.step)).collect();
            self.upload(options, parameters, &steps)?;
        }
        no_grad(|| work.iter().try_for_each(|work| self.update_one(options, parameters, work)))
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

    /// Writes the numbers of the next replay of the captured step. `next` is the number of a parameter's next step. Returns the
    /// captured parameters.
    ///
    /// # Errors
    /// [`Error::Captured`] if an option other than the learning rate has changed.
    pub(super) fn replay<O: Algorithm>(
        &mut self,
        options: &O,
        parameters: &[Tensor],
        next: impl Fn(usize) -> u64,
    ) -> Result<Vec<usize>> {
        let Some((captured, before)) = self.captured.clone() else { return Ok(Vec::new()) };
        if before != comparable(options) {
            return Err(Error::Captured {
                op: O::NAME,
                why: "an option has changed: capture the step again",
            });
        }
        let steps: Vec<(usize, u64)> = captured.iter().map(|&at| (at, next(at))).collect();
        self.upload(options, parameters, &steps)?;
        Ok(captured)
    }
}

/// The device and the type of a parameter's numbers.
fn kind(parameter: &Tensor) -> (Device, DType) {
    let dtype = if parameter.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    (parameter.device().clone(), dtype)
}

/// The options without the learning rate, which the numbers have.
fn comparable<O: Algorithm>(options: &O) -> Value {
    let mut options = options.clone();
    options.set_lr(0.0);
    serde_json::to_value(&options).unwrap_or(Value::Null)
}
