//! The same values lying in memory in different ways: an operation must not be able to tell.

use plimsoll_tensor::{DType, Device, Element, Tensor};

/// How a tensor's elements lie in their storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Row-major, without gaps.
    Dense,
    /// Column-major: a permuted view of a dense tensor.
    Permuted,
    /// The middle of a larger tensor, with other values on all sides.
    Framed,
}

impl Form {
    pub(crate) const ALL: [Form; 3] = [Form::Dense, Form::Permuted, Form::Framed];

    /// A leaf with these values, row-major, that lies in this form.
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
                // 77 would be seen in any result that it got into.
                let around = Tensor::full(&larger, 77.0, T::DTYPE, device).unwrap();
                let middle = (0..shape.len())
                    .fold(around, |view, dim| view.narrow(dim as isize, 1, shape[dim]).unwrap());
                middle.copy_(&dense).unwrap();
                middle
            }
        }
    }
}

/// A tensor's values as 64-bit floating point, whatever its type.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        DType::I64 => tensor.to_vec::<i64>().unwrap().into_iter().map(|x| x as f64).collect(),
        DType::I32 => tensor.to_vec::<i32>().unwrap().into_iter().map(f64::from).collect(),
        DType::U8 => tensor.to_vec::<u8>().unwrap().into_iter().map(f64::from).collect(),
    }
}
