//! A linear layer, `x · wᵀ + b`, with a single allocation.

use smallvec::{SmallVec, smallvec};

use super::short_products;
use crate::cpu::kernels::matmul::{MatmulShape, MatrixStrides, Product};
use crate::cpu::kernels::short_matmul::short_matmul;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::reduce::sum::sum_of_rows;
use crate::ops::{want_number, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// The layout of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// `[out, in]`, as in PyTorch's layers.
    OutIn,
    /// `[in, out]`.
    InOut,
}

/// `x, w[, bias] -> out`.
#[derive(Clone, Copy, Debug)]
struct Linear {
    weight: Weight,
}

impl Linear {
    /// The numbers of inputs and outputs of a weight of this shape.
    fn sizes(self, weight: &[usize]) -> [usize; 2] {
        match self.weight {
            Weight::OutIn => [weight[1], weight[0]],
            Weight::InOut => [weight[0], weight[1]],
        }
    }
}

/// The number of rows, even if a row has no elements.
fn rows(shape: &[usize]) -> usize {
    shape[..shape.len() - 1].iter().product()
}

/// A tensor as a matrix of its rows, if that needs no copy.
fn as_rows(layout: &Layout) -> Option<Layout> {
    layout.reshape(&[rows(layout.shape()), *layout.shape().last()?])
}

impl Kernel for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (x, w) = (call.ins[0], call.ins[1]);
        let rows = as_rows(x.layout).unwrap_or_else(|| unreachable!("taken"));
        let strides = match (self.weight, w.layout.strides()) {
            (Weight::OutIn, &[n, k]) | (Weight::InOut, &[k, n]) => [k, n],
            _ => unreachable!("inferred"),
        };
        cuda::matmul::product::linear(call, &rows, self.sizes(w.shape()), strides)
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        short_products::cpu_type(dtype)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        match call.outs[0].dtype() {
            DType::I64 => product::<i64>(*self, call),
            DType::F64 => product::<f64>(*self, call),
            DType::F32 => product::<f32>(*self, call),
            _ => of_shorts(*self, call),
        }
        Ok(())
    }
}

/// The product's sizes, and the strides of the input's rows and of the weight.
fn sizes(op: Linear, [x, w]: [&Layout; 2]) -> (MatmulShape, [MatrixStrides; 2]) {
    let [k, n] = op.sizes(w.shape());
    let x = as_rows(x).unwrap_or_else(|| unreachable!("taken"));
    let strides =
        |layout: &Layout| MatrixStrides { batch: 0, row: layout.strides()[0], col: layout.strides()[1] };
    let w = match op.weight {
        Weight::OutIn => strides(w).transposed(),
        Weight::InOut => strides(w),
    };
    (MatmulShape { batch: 1, m: x.shape()[0], k, n }, [strides(&x), w])
}

fn product<T: Product>(op: Linear, call: CpuCall<'_>) {
    let [x, w, bias @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
    let (shape, [x_strides, w_strides]) = sizes(op, [x.layout(), w.layout()]);
    let (a, b) = ((x.elements(), x_strides), (w.elements(), w_strides));
    let bias = bias.first().map(|bias| bias.elements());
    let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
    T::matmul(&shape, a, b, bias, (out.elements(), MatrixStrides::row_major(shape.m, shape.n)));
}

fn of_shorts(op: Linear, mut call: CpuCall<'_>) {
    let scratch = call.scratch();
    let [x, w, bias @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
    let (shape, [x_strides, w_strides]) = sizes(op, [x.layout(), w.layout()]);
    let (a, b) = ((x.bytes(), x_strides), (w.bytes(), w_strides));
    let bias = bias.first().map(|bias| bias.bytes());
    let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
    let dtype = out.dtype();
    short_matmul(dtype, &shape, a, b, bias, out.bytes(), scratch, |_, _| {});
}

impl Operator for Linear {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, w, bias @ ..] = ins else {
            return Err(Error::argument("linear", "needs an input, a weight and perhaps a bias"));
        };
        want_number("linear", x.dtype)?;
        want_same("linear", ins)?;
        let bias = bias.first();
        let fits = x.rank() > 0 && w.rank() == 2 && x.shape().last() == Some(&self.sizes(w.shape())[0]);
        if !fits || bias.is_some_and(|b| b.shape() != [self.sizes(w.shape())[1]]) {
            let message = format!(
                "input {:?} with weight {:?} and bias {:?}: needs […, in], {} and [out]",
                x.shape(),
                w.shape(),
                bias.map(Meta::shape),
                if self.weight == Weight::OutIn { "[out, in]" } else { "[in, out]" }
            );
            return Err(Error::shape("linear", message));
        }
        let mut shape = Dims::from_slice(x.shape());
        shape[x.rank() - 1] = self.sizes(w.shape())[1];
        Ok(smallvec![Output::new(&shape, x.dtype)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        match input {
            0 => as_rows(layout).is_some(),
            1 => true,
            _ => layout.is_contiguous(),
        }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let [k, _] = self.sizes(ins[1].shape());
        Cost::streaming(2 * (outs[0].layout.len() * k) as u64, ins, outs)
    }

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let [k, n] = self.sizes(ins[1].shape());
        let shape = MatmulShape { batch: 1, m: rows(ins[0].shape()), k, n };
        short_products::scratch(&shape, outs[0].dtype, device)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(0).only_if(wanted[1]).and(Saves::input(1).only_if(wanted[0]))
    }

    fn bias(&self) -> Option<usize> {
        Some(2)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(given) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        let grad = given.reshape(&[rows(given.shape()), given.shape()[given.rank() - 1]])?;
        let to_x = || {
            let w = at.input(1)?;
            let w = if self.weight == Weight::OutIn { w } else { w.t()? };
            grad.matmul(&w)?.reshape(at.shape(0))
        };
        let to_w = || {
            let x = at.input(0)?;
            let x = x.reshape(&[rows(x.shape()), x.shape()[x.rank() - 1]])?;
            if self.weight == Weight::OutIn { grad.t()?.matmul(&x) } else { x.t()?.matmul(&grad) }
        };
        let mut results: Grads =
            smallvec![at.wants(0).then(to_x).transpose()?, at.wants(1).then(to_w).transpose()?];
        if at.inputs() == 3 {
            results.push(at.wants(2).then(|| sum_of_rows(given)).transpose()?);
        }
        Ok(results)
    }
}

impl Tensor {
    /// `self · weightᵀ + bias`, for `[…, in]`, a weight `[out, in]` and a bias `[out]`. Allocates only the output. Like
    /// `torch.nn.functional.linear`.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn linear<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, weight];
        ins.extend(bias);
        call_one(Linear { weight: Weight::OutIn }, &ins)
    }

    /// `self · weight + bias`: as [`Tensor::linear`] with a weight `[in, out]`, as in `transformers`' `Conv1D`. Like
    /// `torch.addmm` over rows.
    ///
    /// # Errors
    /// If the sizes are incompatible, or memory runs out.
    #[track_caller]
    pub fn linear_in_out<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        bias: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.as_ref(), bias.into());
        let mut ins: SmallVec<[&Tensor; 3]> = smallvec![self, weight];
        ins.extend(bias);
        call_one(Linear { weight: Weight::InOut }, &ins)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let naive = |[rows, k, n]: [usize; 3]| {
        move |ins: &[Vec<f64>]| {
            let at = |row: usize, col: usize| -> f64 {
                let product: f64 = (0..k).map(|j| ins[0][row * k + j] * ins[1][col * k + j]).sum();
                product + ins.get(2).map_or(0.0, |bias| bias[col])
            };
            vec![(0..rows * n).map(|i| at(i / n, i % n)).collect()]
        }
    };
    let case = |shapes: &[&[usize]]| {
        Case::new(format!("linear {shapes:?}"), shapes, |ins| call(Linear { weight: Weight::OutIn }, ins))
    };
    let in_out = |ins: &[Vec<f64>]| {
        let at = |row: usize, col: usize| -> f64 {
            let product: f64 = (0..4).map(|j| ins[0][row * 4 + j] * ins[1][j * 5 + col]).sum();
            product + ins[2][col]
        };
        vec![(0..15).map(|i| at(i / 5, i % 5)).collect()]
    };
    vec![
        case(&[&[3, 4], &[5, 4], &[5]]).expect(naive([3, 4, 5])),
        case(&[&[2, 3, 4], &[2, 4]]).expect(naive([6, 4, 2])),
        Case::new("linear_in_out", &[&[3, 4], &[4, 5], &[5]], |ins| {
            call(Linear { weight: Weight::InOut }, ins)
        })
        .expect(in_out),
    ]
}
