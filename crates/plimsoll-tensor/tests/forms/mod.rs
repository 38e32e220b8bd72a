//! The same values in different memory layouts: an operation must give the same results.

use plimsoll_tensor::{DType, Device, Element, Tensor};

/// The memory layout of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Row-major, without gaps.
    Dense,
    /// Column-major: a permuted view of a dense tensor.
    Permuted,
    /// The middle of a larger tensor, surrounded by other values.
    Framed,
}

impl Form {
    pub(crate) const ALL: [Form; 3] = [Form::Dense, Form::Permuted, Form::Framed];

    /// A leaf with these values, given row-major, in this layout.
    pub(crate) fn tensor<T: Element>(self, values: &[T], shape: &[usize], device: &Device) -> Tensor {
        let dense = Tensor::from_slice(values, shape, device).unwrap();
        match self {
            Form::Dense => dense,
            Form::Permuted => {
                let reversed: Vec<isize> = (0..shape.len() as isize).rev().collect();
                dense.permute(&reversed).unwrap().copy().unwrap().permute(&reversed).unwrap()
            }
            Form::Framed => {
                let larger: Vec<usize> = shape.iter().map(|n| n + 2).collect();
                // 77 would show up in any result that it leaked into.
                let around = Tensor::full(&larger, 77.0, T::DTYPE, device).unwrap();
                let middle = (0..shape.len())
                    .fold(around, |view, dim| view.narrow(dim as isize, 1, shape[dim]).unwrap());
                middle.copy_(&dense).unwrap();
                middle
            }
        }
    }
}

/// A tensor's values as 64-bit floats, for any dtype.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    fn of<T: Element>(tensor: &Tensor) -> Vec<f64> {
        tensor.to_vec::<T>().unwrap().into_iter().map(Element::to_f64).collect()
    }
    match tensor.dtype() {
        DType::F64 => of::<f64>(tensor),
        DType::F32 => of::<f32>(tensor),
        DType::F16 => of::<half::f16>(tensor),
        DType::BF16 => of::<half::bf16>(tensor),
        DType::I64 => of::<i64>(tensor),
        DType::I32 => of::<i32>(tensor),
        DType::I16 => of::<i16>(tensor),
        DType::U8 => of::<u8>(tensor),
        DType::Bool => of::<bool>(tensor),
    }
}
