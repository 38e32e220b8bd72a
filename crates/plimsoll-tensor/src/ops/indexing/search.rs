//! Finds where values belong in sorted rows: `searchsorted`, `bucketize`.

use smallvec::smallvec;

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::search::{Side, search};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, result_type};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::want_same;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `sorted, values -> positions`, along the last dimension.
#[derive(Clone, Copy, Debug)]
struct SearchSorted(Side);

impl Kernel for SearchSorted {
    fn name(&self) -> &'static str {
        "searchsorted"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::sort::search(call, self.0 == Side::Right)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([sorted, values], [out]) = call.split();
        let len = sorted.shape().last().copied().unwrap_or(0);
        let per_row = values.shape().last().copied().unwrap_or(1).max(1);
        let shared = sorted.shape().len() == 1;
        if sorted.dtype() == DType::I64 {
            let (sorted, values) = (sorted.elements::<i64>(), values.elements::<i64>());
            search((sorted, len, shared), (values, per_row), self.0, out.elements());
            return Ok(());
        }
        by_float!(sorted.dtype(), T => {
            let (sorted, values) = (sorted.elements::<T>(), values.elements::<T>());
            search((sorted, len, shared), (values, per_row), self.0, out.elements());
        });
        Ok(())
    }
}

impl Operator for SearchSorted {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [sorted, values] = operands::inputs("searchsorted", ins)?;
        want_same("searchsorted", &[sorted, values])?;
        let rows = |meta: &Meta<'_>| meta.shape().split_last().map(|(_, lead)| lead.to_vec());
        let fits = sorted.rank() == 1 || sorted.rank() > 1 && rows(&sorted) == rows(&values);
        if !fits {
            let message = format!(
                "values {:?} in {:?}: needs one row in order, or one for each row of values",
                values.shape(),
                sorted.shape()
            );
            return Err(Error::shape("searchsorted", message));
        }
        Ok(smallvec![Output::new(values.shape(), DType::I64)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// For each of `values`, returns the position in this tensor's sorted rows where it would be inserted: before equal
    /// elements, or with `right` after them. A single row serves all values; otherwise each row serves one row of values. Like
    /// `torch.searchsorted(self, values, right=…)`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let sorted = Tensor::from_slice(&[1.0f32, 3.0, 5.0], &[3], &device)?;
    /// let values = Tensor::from_slice(&[3.0f32, 6.0], &[2], &device)?;
    /// assert_eq!(sorted.searchsorted(&values, false)?.to_vec::<i64>()?, [1, 3]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the rows do not match those of the values, or memory runs out.
    #[track_caller]
    pub fn searchsorted(&self, values: impl AsRef<Tensor>, right: bool) -> Result<Tensor> {
        let values = values.as_ref();
        let types = [self, values].map(|x| (x.dtype(), x.rank() > 0));
        let dtype = result_type(types).unwrap_or(self.dtype());
        let side = if right { Side::Right } else { Side::Left };
        let (sorted, values) = (self.detach().to_dtype(dtype)?, values.detach().to_dtype(dtype)?);
        call_one(SearchSorted(side), &[&sorted, &values])
    }

    /// The index of each element's bucket; `boundaries` must be in ascending order. Like `torch.bucketize(self, boundaries,
    /// right=…)`.
    ///
    /// # Errors
    /// If the boundaries are not a vector, or memory runs out.
    #[track_caller]
    pub fn bucketize(&self, boundaries: impl AsRef<Tensor>, right: bool) -> Result<Tensor> {
        let boundaries = boundaries.as_ref();
        if boundaries.rank() != 1 {
            let message = format!("boundaries {:?}: needs a vector", boundaries.shape());
            return Err(Error::shape("bucketize", message));
        }
        boundaries.searchsorted(self, right)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let place = |ins: &[Vec<f64>]| {
        let at = |&value: &f64| ins[0].iter().filter(|&&x| x < value).count() as f64;
        vec![ins[1].iter().map(at).collect()]
    };
    // The sample is sorted first.
    let sorted = |x: &Tensor| {
        Tensor::from_slice(&[-1.0f32, -0.5, 0.0, 0.25, 1.0], &[5], x.device())?.to_dtype(x.dtype())
    };
    vec![
        Case::new("searchsorted", &[&[2, 3]], move |ins| {
            call(SearchSorted(Side::Left), &[&sorted(ins[0])?, ins[0]])
        })
        .over(Domain::Any)
        .expect(move |ins| place(&[vec![-1.0, -0.5, 0.0, 0.25, 1.0], ins[0].clone()]))
        .without_derivative(),
        Case::new("searchsorted, after equal ones", &[], |ins| {
            let (sorted, _) = ins[0].sort(-1, false)?;
            call(SearchSorted(Side::Right), &[&sorted, ins[1]])
        })
        .and(&[3, 5], DType::I64, Domain::Below(4))
        .and(&[3, 2], DType::I64, Domain::Below(4))
        .expect(|ins| {
            let at = |i: usize| ins[0][i / 2 * 5..][..5].iter().filter(|&&x| x <= ins[1][i]).count() as f64;
            vec![(0..6).map(at).collect()]
        })
        .without_derivative(),
    ]
}
