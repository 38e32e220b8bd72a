//! Classes as one-hot vectors.

use smallvec::smallvec;

use super::indices::{self, by_index, want_index};
use crate::cpu::kernels::index::put;
use crate::cpu::kernels::strided::fill;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Dims;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::want_values;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// `index -> out`, with a last dimension for the classes.
#[derive(Clone, Copy, Debug)]
struct OneHot {
    classes: usize,
}

impl Kernel for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (index, out) = (call.ins[0], call.outs[0]);
        let (mut shape, mut strides) =
            (Dims::from_slice(index.shape()), Dims::from_slice(index.layout.strides()));
        shape.push(1);
        strides.push(0);
        cuda::elementwise::fill(call, 0.0, out)?;
        let at =
            cuda::indexing::scatter::At { dim: shape.len() - 1, shape: &shape, index, strides: &strides };
        cuda::indexing::scatter::scatter(call, cuda::indexing::scatter::Change::Set(1.0), at, None, out)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([index], [out]) = call.split();
        let rank = index.shape().len();
        indices::check("one_hot", &index, rank, self.classes)?;
        let (out_shape, nowhere) = (out.shape(), Dims::from_elem(0, rank + 1));
        let (mut shape, mut strides) = (Dims::from_slice(index.shape()), Dims::from_slice(index.strides()));
        shape.push(1);
        strides.push(0);
        let out = out.elements::<i64>();
        fill(out, 0);
        by_index!(index, &strides, at => {
            put(&shape, rank, (&[1], &nowhere), at, (out, out_shape), |out, one| *out = one);
        });
        Ok(())
    }
}

impl Operator for OneHot {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [index] = operands::inputs("one_hot", ins)?;
        want_index("one_hot", index.dtype)?;
        let mut shape = Dims::from_slice(index.shape());
        shape.push(self.classes);
        Ok(smallvec![Output::new(&shape, DType::I64)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }
}

impl Tensor {
    /// A one-hot vector of `classes` elements for each of these classes (`int64` or `int32`): 1 at the class, 0 elsewhere, as
    /// `int64`. The default for `classes` is one more than the largest class. Like `torch.nn.functional.one_hot`.
    ///
    /// # Errors
    /// If a class is negative or not less than `classes`; if there are no `classes` for an empty tensor, or on a device
    /// that computes no values; or if memory runs out.
    #[track_caller]
    pub fn one_hot(&self, classes: impl Into<Option<usize>>) -> Result<Tensor> {
        let classes = classes.into();
        let classes = match classes {
            Some(classes) => classes,
            None => {
                want_index("one_hot", self.dtype())?;
                want_values("one_hot", "the classes", self.device())?;
                let largest =
                    self.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().max().ok_or_else(|| {
                        Error::argument(
                            "one_hot",
                            "an empty tensor does not determine the number of classes: specify it",
                        )
                    })?;
                usize::try_from(largest).map_or(0, |largest| largest + 1)
            }
        };
        call_one(OneHot { classes }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        vec![
            ins[0]
                .iter()
                .flat_map(|&class| (0..4).map(move |i| f64::from(u8::from(f64::from(i) == class))))
                .collect(),
        ]
    };
    vec![
        Case::new("one_hot", &[], |ins| call(OneHot { classes: 4 }, ins))
            .and(&[2, 3], DType::I64, Domain::Below(4))
            .expect(naive)
            .without_derivative(),
        Case::new("one_hot of a scalar", &[], |ins| Ok(smallvec![ins[0].one_hot(Some(2))?]))
            .and(&[], DType::I32, Domain::Below(2))
            .without_derivative(),
    ]
}
