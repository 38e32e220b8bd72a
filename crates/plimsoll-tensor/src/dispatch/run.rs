//! The result of one execution: outputs, and the inputs in the form that a kernel takes.

use smallvec::SmallVec;

use super::launch::{Copy, copy};
use super::operands::Tensors;
use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::operator::{Operator, Output, Place};
use crate::tensor::Tensor;

/// The result of running an operator.
#[derive(Default)]
pub(super) struct Execution {
    pub(super) outs: SmallVec<[Data; 1]>,
    /// Copies of the inputs whose layout or dtype the kernel cannot take, each with its index.
    pub(super) gathered: Vec<(usize, Data)>,
    /// For each output, the index of the input that was changed in place to make it. Empty if none was.
    pub(super) changed: Vec<Option<usize>>,
    /// Whether any output is a view of an input.
    pub(super) has_views: bool,
}

impl Execution {
    pub(super) fn into_tensors(mut self) -> Tensors {
        let mut tensors = Tensors::new();
        for data in self.outs.drain(..) {
            tensors.push(Tensor::from_data(data));
        }
        tensors
    }
}

pub(super) fn gathered(copies: &[(usize, Data)], i: usize) -> Option<&Data> {
    copies.iter().find(|(at, _)| *at == i).map(|(_, data)| data)
}

/// The dtypes that a kernel reads and writes on a device.
pub(super) struct Types<'a> {
    kernel: &'a dyn Kernel,
    device: &'a Device,
}

impl<'a> Types<'a> {
    pub(super) fn of(device: &'a Device, kernel: &'a dyn Operator) -> Types<'a> {
        Types { kernel, device }
    }

    pub(super) fn of_kernel(&self, dtype: DType) -> DType {
        // Called for every tensor of every operator, so the commonest dtype is checked first.
        if dtype == DType::F32 { dtype } else { self.device.backend().kernel_type(self.kernel, dtype) }
    }

    /// Allocates the memory that the kernel writes an output to, if in a different dtype.
    pub(super) fn alloc_converted(&self, device: &Device, out: &Data) -> Result<Option<Data>> {
        let dtype = self.of_kernel(out.dtype);
        if dtype == out.dtype {
            return Ok(None);
        }
        Data::alloc(device, out.layout.dense(), dtype, "to_dtype").map(Some)
    }
}

/// An output in the memory of an existing input.
pub(super) fn existing(output: Output, ins: &[&Data]) -> Data {
    let (layout, i) = match output.place {
        Place::View(i) => (output.layout, i),
        Place::InPlace(i) => (ins[i].layout.clone(), i),
        Place::New => unreachable!("an output with memory of its own"),
    };
    // For a changed input, the dtype is that of the copy that the kernel changes, which may be converted.
    let dtype = if output.place == Place::InPlace(i) { ins[i].dtype } else { output.dtype };
    Data { storage: ins[i].storage.clone(), layout, dtype }
}

/// A copy of an input in the dtype that the kernel reads. It keeps the order of dimensions if the kernel supports that, and is
/// row-major otherwise.
pub(super) fn gather(
    device: &Device,
    op: &dyn Operator,
    i: usize,
    data: &Data,
    dtype: DType,
) -> Result<Data> {
    let dense = data.layout.dense();
    let layout = if op.takes(i, &data.layout) && op.takes(i, &dense) {
        dense
    } else {
        Layout::contiguous(data.layout.shape())
    };
    let name = if dtype == data.dtype { Copy::AS_IT_IS.name() } else { "to_dtype" };
    let copy = Data::alloc(device, layout, dtype, name)?;
    self::copy(device, data, &copy)?;
    Ok(copy)
}
