//! Repeats elements: each operation makes an expanded view and copies it once.

use smallvec::smallvec;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::ops::dim_index;
use crate::suite::Case;
use crate::tensor::Tensor;

impl Tensor {
    /// Repeats the tensor this many times along each dimension. If there are more numbers than dimensions, new leading
    /// dimensions are added. Like `Tensor.repeat`.
    ///
    /// # Errors
    /// If there are fewer numbers than dimensions, or memory runs out.
    #[track_caller]
    pub fn repeat(&self, times: &[usize]) -> Result<Tensor> {
        let Some(lead) = times.len().checked_sub(self.rank()) else {
            let message = format!("{times:?} for {:?}: needs a number for each dimension", self.shape());
            return Err(Error::shape("repeat", message));
        };
        let (mut one, mut wide, mut whole) = (Dims::new(), Dims::new(), Dims::new());
        for (i, &n) in times.iter().enumerate() {
            let size = if i < lead { 1 } else { self.shape()[i - lead] };
            let product = n.checked_mul(size).ok_or_else(|| {
                Error::shape("repeat", format!("{size} elements repeated {n} times exceed the address space"))
            })?;
            one.extend([1, size]);
            wide.extend([n, size]);
            whole.push(product);
        }
        let wide = self.reshape(one.as_slice())?.expand(&wide)?;
        // As in PyTorch, the result never shares memory with the input.
        wide.copy()?.reshape(whole.as_slice())
    }

    /// Like [`Tensor::repeat`], but if there are fewer numbers than dimensions, the missing leading ones are 1. Like
    /// `torch.tile`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn tile(&self, times: &[usize]) -> Result<Tensor> {
        let mut all = vec![1; self.rank().saturating_sub(times.len())];
        all.extend_from_slice(times);
        self.repeat(&all)
    }

    /// Repeats each element this many times in succession along a dimension. Like `torch.repeat_interleave(n, dim)`.
    ///
    /// # Errors
    /// If a dimension is out of range, or memory runs out.
    #[track_caller]
    pub fn repeat_interleave(&self, times: usize, dim: isize) -> Result<Tensor> {
        let dim = dim_index("repeat_interleave", dim, self.rank())?;
        let mut wide: Dims = self.shape().into();
        wide.insert(dim + 1, times);
        let mut shape: Dims = self.shape().into();
        shape[dim] = shape[dim].checked_mul(times).ok_or_else(|| {
            let message = format!("{:?} repeated {times} times is larger than memory", self.shape());
            Error::shape("repeat_interleave", message)
        })?;
        self.unsqueeze(dim as isize + 1)?.expand(&wide)?.copy()?.reshape(shape.as_slice())
    }

    /// Repeats element `i` of a dimension `times[i]` times. Like `torch.repeat_interleave` with a tensor of repeats.
    ///
    /// # Errors
    /// If the dimension is out of range; if the repeats are negative, or not an `int64` vector of the dimension's size;
    /// if the device computes no values, because the size of the result depends on them; or if memory runs out.
    #[track_caller]
    pub fn repeat_interleave_each(&self, times: impl AsRef<Tensor>, dim: isize) -> Result<Tensor> {
        let times = times.as_ref();
        const OP: &str = "repeat_interleave";
        let at = dim_index(OP, dim, self.rank())?;
        crate::ops::want_dtype(OP, times.dtype(), DType::I64)?;
        if times.shape() != [self.shape()[at]] {
            let (times, size) = (times.shape(), self.shape()[at]);
            let message = format!("repeats {times:?} for dimension {at} of size {size}: needs one for each");
            return Err(Error::shape(OP, message));
        }
        crate::ops::want_values(OP, "the repeats", self.device())?;
        let mut index = Vec::new();
        for (i, times) in times.to_vec::<i64>()?.into_iter().enumerate() {
            let times = usize::try_from(times)
                .map_err(|_| Error::argument(OP, format!("repeat {times} at [{i}] is below 0")))?;
            index.extend(std::iter::repeat_n(i as i64, times));
        }
        self.index_select(dim, &Tensor::from_slice(&index, &[index.len()], self.device())?)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let twice = |ins: &[Vec<f64>]| vec![ins[0].chunks(3).flat_map(|row| [row, row].concat()).collect()];
    let each = |ins: &[Vec<f64>]| vec![ins[0].iter().flat_map(|&x| [x, x]).collect()];
    vec![
        Case::new("repeat", &[&[2, 3]], |ins| Ok(smallvec![ins[0].repeat(&[1, 2])?])).expect(twice),
        Case::new("repeat in front", &[&[3]], |ins| Ok(smallvec![ins[0].repeat(&[2, 2])?])),
        Case::new("repeat_interleave", &[&[2, 3]], |ins| Ok(smallvec![ins[0].repeat_interleave(2, 1)?]))
            .expect(each),
    ]
}
