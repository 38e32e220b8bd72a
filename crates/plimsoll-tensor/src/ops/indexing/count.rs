//! Positions and counts of values: `nonzero`, `bincount`, `unique`. The sizes of the results depend on the values.

use smallvec::smallvec;

use crate::autograd::no_grad;
use crate::caller::Entry;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::arguments::{want_dtype, want_values};
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::Tensor;

/// `mask -> coordinates` of each of the `count` elements that are set, in row-major order.
#[derive(Clone, Copy, Debug)]
struct NonZero {
    count: usize,
}

impl Kernel for NonZero {
    fn name(&self) -> &'static str {
        "nonzero"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::mask::nonzero(call)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([mask], [out]) = call.split();
        let (shape, mask) = (mask.shape(), mask.words::<u8>());
        if shape.is_empty() {
            // The result has no elements.
            return Ok(());
        }
        let mut rows = out.elements::<i64>().chunks_mut(shape.len().max(1));
        let set = mask.iter().take(shape.iter().product()).enumerate().filter(|(_, set)| **set != 0);
        for (position, _) in set {
            let Some(row) = rows.next() else {
                return Err(Error::argument("nonzero", "the tensor changed while its elements were counted"));
            };
            let mut rest = position;
            for (at, &size) in row.iter_mut().zip(shape).rev() {
                *at = (rest % size) as i64;
                rest /= size;
            }
        }
        Ok(())
    }
}

impl Operator for NonZero {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [mask] = operands::inputs("nonzero", ins)?;
        want_dtype("nonzero", mask.dtype, DType::Bool)?;
        Ok(smallvec![Output::new(&[self.count, mask.rank()], DType::I64)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// The coordinates of each element that is not zero, one row each, in row-major order, as `int64`. Like `torch.nonzero`.
    ///
    /// # Errors
    /// If the device computes no values, because the size of the result depends on them; or if memory runs out.
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        want_values("nonzero", "the elements", self.device())?;
        let mask = if self.dtype() == DType::Bool { self.detach() } else { self.detach().ne_scalar(0)? };
        let count = mask.count_nonzero()?.item::<i64>()? as usize;
        call_one(NonZero { count }, &[&mask])
    }

    /// For each integer from 0, how often it occurs in this vector, or the sum of its weights. The result has at least
    /// `min_length` elements. Like `torch.bincount`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[0i64, 2, 2], &[3], &Device::cpu())?;
    /// assert_eq!(x.bincount(None, 0)?.to_vec::<i64>()?, [1, 0, 2]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// A tensor that is not an integer vector; a negative number; weights of a different shape; a device that computes no values;
    /// out of memory.
    #[track_caller]
    pub fn bincount<'a>(&self, weights: impl Into<Option<&'a Tensor>>, min_length: usize) -> Result<Tensor> {
        let _entry = Entry::here();
        let weights = weights.into();
        const NAME: &str = "bincount";
        if self.rank() != 1 || weights.is_some_and(|weights| weights.shape() != self.shape()) {
            let message = format!(
                "{:?} with weights {:?}: needs two vectors",
                self.shape(),
                weights.map(Tensor::shape)
            );
            return Err(Error::shape(NAME, message));
        }
        if self.dtype().is_float() || self.dtype() == DType::Bool {
            return Err(Error::DType { op: NAME, expected: "an integer type", got: self.dtype() });
        }
        want_values(NAME, "the numbers", self.device())?;
        let index = self.to_dtype(DType::I64)?;
        let values = index.to_vec::<i64>()?;
        if let Some(at) = values.iter().position(|&value| value < 0) {
            return Err(Error::argument(NAME, format!("element {at} is {}: needs 0 or more", values[at])));
        }
        let length = values.iter().max().map_or(0, |&largest| largest as usize + 1).max(min_length);
        no_grad(|| {
            let weights = match weights {
                None => index.ones_like()?,
                Some(weights) if weights.dtype() == DType::F32 => weights.clone(),
                Some(weights) => weights.to_dtype(DType::F64)?,
            };
            let counts = Tensor::full(&[length], 0.0, weights.dtype(), self.device())?;
            counts.scatter_add_(0, &index, &weights)?;
            Ok(counts)
        })
    }

    /// The distinct values in ascending order. Like `torch.unique`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::nonzero`].
    #[track_caller]
    pub fn unique(&self) -> Result<Tensor> {
        let _entry = Entry::here();
        Ok(self.unique_counts()?.0)
    }

    /// Returns the distinct values in ascending order, the index of each element's value in them, and how often each value
    /// occurs. Like `torch.unique(return_inverse=True, return_counts=True)`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::nonzero`].
    #[track_caller]
    pub fn unique_counts(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let _entry = Entry::here();
        self.distinct("unique", |flat| {
            let (sorted, order) = flat.sort(0, false)?;
            let (starts, number) = runs(&sorted)?;
            let inverse = number.zeros_like()?;
            inverse.scatter_(0, &order, &number)?;
            Ok((sorted.masked_select(&starts)?, inverse))
        })
    }

    /// The elements as a vector, without those that equal the one before. Like `torch.unique_consecutive`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::nonzero`].
    #[track_caller]
    pub fn unique_consecutive(&self) -> Result<Tensor> {
        let _entry = Entry::here();
        Ok(self.unique_consecutive_counts()?.0)
    }

    /// Returns the first value of each run of equal elements, the run of each element, and the length of each run. Like
    /// `torch.unique_consecutive(return_inverse=True, return_counts=True)`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1i64, 1, 2, 2, 3, 1, 1, 2], &[8], &Device::cpu())?;
    /// let (values, inverse, counts) = x.unique_consecutive_counts()?;
    /// assert_eq!(values.to_vec::<i64>()?, [1, 2, 3, 1, 2]);
    /// assert_eq!(inverse.to_vec::<i64>()?, [0, 0, 1, 1, 2, 3, 3, 4]);
    /// assert_eq!(counts.to_vec::<i64>()?, [2, 2, 1, 2, 1]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Tensor::nonzero`].
    #[track_caller]
    pub fn unique_consecutive_counts(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let _entry = Entry::here();
        self.distinct("unique_consecutive", |flat| {
            let (starts, number) = runs(flat)?;
            Ok((flat.masked_select(&starts)?, number))
        })
    }

    /// Distinct elements, the index of each element in them, and how often each one occurs. `find` returns the first two for a
    /// vector with elements.
    #[track_caller]
    fn distinct(
        &self,
        op: &'static str,
        find: impl FnOnce(&Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        want_values(op, "the elements", self.device())?;
        no_grad(|| {
            let flat = self.detach().reshape(&[-1])?;
            if flat.numel() == 0 {
                let none = flat.to_dtype(DType::I64)?;
                return Ok((flat, none.reshape(self.shape())?, none));
            }
            let (values, inverse) = find(&flat)?;
            let counts = inverse.bincount(None, 0)?;
            Ok((values, inverse.reshape(self.shape())?, counts))
        })
    }
}

/// Of a vector with elements: whether each one starts a run of equal elements, and the number of its run.
#[track_caller]
fn runs(vector: &Tensor) -> Result<(Tensor, Tensor)> {
    let others = vector.numel() - 1;
    let first = Tensor::full(&[1], 1.0, DType::Bool, vector.device())?;
    let differ = vector.narrow(0, 1, others)?.ne(&vector.narrow(0, 0, others)?)?;
    let starts = Tensor::cat(&[&first, &differ], 0)?;
    let number = starts.to_dtype(DType::I64)?.cumsum(0)?.sub_scalar(1)?;
    Ok((starts, number))
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let mask = |x: &Tensor| Tensor::from_slice(&[true, false, false, false, true, true], &[2, 3], x.device());
    vec![
        Case::new("nonzero", &[&[2, 3]], move |ins| call(NonZero { count: 3 }, &[&mask(ins[0])?]))
            .expect(|_| vec![vec![0.0, 0.0, 1.0, 1.0, 1.0, 2.0]])
            .without_derivative(),
    ]
}
