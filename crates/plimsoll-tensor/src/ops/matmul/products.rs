//! Products by their specific names: `bmm`, `mv`, `dot`, `outer`; and `addmm`, a product added to a tensor.

use smallvec::smallvec;

use super::short_products;
use crate::cpu::kernels::convert::{Compute, RUN};
use crate::cpu::kernels::elementwise::{Operand, update};
use crate::cpu::kernels::matmul::Product;
use crate::cpu::kernels::matmul::{MatmulShape, MatrixStrides};
use crate::cpu::kernels::short_matmul::short_matmul;
use crate::cuda::matmul::product::Operand as Matrices;
use crate::cuda::{self, CudaCall, Placed};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands::{self, expanded};
use crate::ops::{want_number, want_same};
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};

/// `x, a, b -> out`: `beta · x + alpha · a b`, with `x` broadcast.
#[derive(Clone, Copy, Debug)]
struct AddMm {
    beta: f64,
    alpha: f64,
}

/// Computes the product, then the sum in its memory.
fn add_product<T: Product>(call: CpuCall<'_>, sum: impl Fn(T, T) -> T + Sync) {
    let ([x, a, b], [out]) = call.split();
    let (shape, strides) = (out.shape(), expanded(&x, out.shape()));
    let (m, k, n) = (shape[0], a.shape()[1], shape[1]);
    let out = out.elements::<T>();
    if out.is_empty() {
        return;
    }
    if k == 0 {
        out.fill(T::default());
    } else {
        let of = |strides: &[usize]| MatrixStrides { batch: 0, row: strides[0], col: strides[1] };
        let (a, b) = ((a.elements(), of(a.strides())), (b.elements(), of(b.strides())));
        T::matmul(&MatmulShape { batch: 1, m, k, n }, a, b, None, (out, MatrixStrides::row_major(m, n)));
    }
    update(shape, out, Operand { data: x.elements::<T>(), strides: &strides }, sum);
}

/// Like [`add_product`], for 16-bit floats: product and sum are rounded once, together.
fn add_short_product(mut call: CpuCall<'_>, sum: impl Fn(f32, f32) -> f32 + Sync) {
    let scratch = call.scratch();
    let ([x, a, b], [out]) = call.split();
    let (strides, dtype, n) = (expanded(&x, out.shape()), out.dtype(), out.shape()[1]);
    let shape = MatmulShape { batch: 1, m: out.shape()[0], k: a.shape()[1], n };
    let of = |strides: &[usize]| MatrixStrides { batch: 0, row: strides[0], col: strides[1] };
    let (a, b) = ((a.bytes(), of(a.strides())), (b.bytes(), of(b.strides())));
    let (load, x) = (<f32 as Compute>::load(dtype), x.bytes());
    short_matmul(dtype, &shape, a, b, None, out.bytes(), scratch, |at, sums| {
        let (row, col) = (at / n, at % n);
        for (nth, sums) in sums.chunks_mut(RUN).enumerate() {
            let mut added = [0.0; RUN];
            let added = &mut added[..sums.len()];
            load(x, row * strides[0] + (col + nth * RUN) * strides[1], strides[1], added);
            sums.iter_mut().zip(added).for_each(|(ab, x)| *ab = sum(*ab, *x));
        }
    });
}

impl Kernel for AddMm {
    fn name(&self) -> &'static str {
        "addmm"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let ([x, a, b], out) = ([call.ins[0], call.ins[1], call.ins[2]], call.outs[0]);
        let of = |x: Placed<'_>| Matrices {
            address: x.address,
            dtype: x.dtype,
            strides: [0, x.layout.strides()[0], x.layout.strides()[1]],
        };
        // As in PyTorch: if beta is 0, NaN in the tensor is ignored.
        if self.beta != 0.0 {
            cuda::elementwise::copy(call, x, out)?;
        }
        let sizes = [1, out.shape()[0], out.shape()[1], a.shape()[1]];
        let to = Matrices::rows(out.address, out.dtype, out.shape()[1]);
        cuda::matmul::product::scaled(call, sizes, of(a), of(b), to, None, [self.alpha, self.beta])
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        short_products::cpu_type(dtype)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let AddMm { beta, alpha } = *self;
        // As in PyTorch: if beta is 0, NaN in the tensor is ignored.
        let keeps = beta != 0.0;
        match call.outs[0].dtype() {
            DType::I64 => {
                let (beta, alpha) = (beta as i64, alpha as i64);
                add_product::<i64>(call, |ab, x| ab.wrapping_mul(alpha).wrapping_add(x.wrapping_mul(beta)));
            }
            DType::F64 => add_product::<f64>(call, |ab, x| alpha * ab + if keeps { beta * x } else { 0.0 }),
            dtype => {
                let (beta, alpha) = (beta as f32, alpha as f32);
                let sum = move |ab, x| alpha * ab + if keeps { beta * x } else { 0.0 };
                match dtype {
                    DType::F32 => add_product::<f32>(call, sum),
                    _ => add_short_product(call, sum),
                }
            }
        }
        Ok(())
    }
}

impl Operator for AddMm {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, a, b] = operands::inputs("addmm", ins)?;
        want_number("addmm", a.dtype)?;
        want_same("addmm", ins)?;
        let (&[m, k], &[k2, n]) = (a.shape(), b.shape()) else {
            let message = format!("{:?} times {:?}: needs two matrices", a.shape(), b.shape());
            return Err(Error::shape("addmm", message));
        };
        if k != k2 || x.layout.expand(&[m, n]).is_none() {
            let message = format!("{:?} plus {:?} times {:?}", x.shape(), a.shape(), b.shape());
            return Err(Error::shape("addmm", message));
        }
        Ok(smallvec![Output::new(&[m, n], a.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming((2 * ins[1].layout.len() * outs[0].shape()[1]) as u64, ins, outs)
    }

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let (shape, k) = (outs[0].shape(), ins[1].shape()[1]);
        short_products::scratch(&MatmulShape { batch: 1, m: shape[0], k, n: shape[1] }, outs[0].dtype, device)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        Saves::input(1).only_if(wanted[2]).and(Saves::input(2).only_if(wanted[1]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let scaled = |x: Tensor, by: f64| if by == 1.0 { Ok(x) } else { x.mul_scalar(by) };
        let to_x = || scaled(grad.sum_to(at.shape(0))?, self.beta);
        let to_a = || scaled(grad.matmul(&at.input(2)?.t()?)?, self.alpha);
        let to_b = || scaled(at.input(1)?.t()?.matmul(grad)?, self.alpha);
        Ok(smallvec![
            at.wants(0).then(to_x).transpose()?,
            at.wants(1).then(to_a).transpose()?,
            at.wants(2).then(to_b).transpose()?
        ])
    }
}

/// Fails if integers would be multiplied by fractions.
pub(super) fn want_whole_factors(op: &'static str, dtype: DType, beta: f64, alpha: f64) -> Result<()> {
    match dtype.is_float() || (beta.fract() == 0.0 && alpha.fract() == 0.0) {
        true => Ok(()),
        false => {
            let message = format!("beta {beta} and alpha {alpha} for {dtype}: need integers");
            Err(Error::argument(op, message))
        }
    }
}

impl Tensor {
    /// `beta · self + alpha · a b`, with this tensor broadcast to the product of the two matrices. Like `torch.addmm`.
    ///
    /// # Errors
    /// If the sizes or dtypes are incompatible, or memory runs out.
    #[track_caller]
    pub fn addmm(
        &self,
        a: impl AsRef<Tensor>,
        b: impl AsRef<Tensor>,
        beta: f64,
        alpha: f64,
    ) -> Result<Tensor> {
        let (a, b) = (a.as_ref(), b.as_ref());
        want_whole_factors("addmm", a.dtype(), beta, alpha)?;
        call_one(AddMm { beta, alpha }, &[self, a, b])
    }

    /// Products of the matrices of two batches of the same size, without broadcasting. Like `torch.bmm`.
    ///
    /// # Errors
    /// If the tensors are not `[batch, n, k]` and `[batch, k, m]`, or memory runs out.
    #[track_caller]
    pub fn bmm(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        let (a, b) = (self.shape(), other.shape());
        if a.len() != 3 || b.len() != 3 || a[0] != b[0] || a[2] != b[1] {
            let message = format!("{a:?} times {b:?}: needs [batch, n, k] and [batch, k, m]");
            return Err(Error::shape("bmm", message));
        }
        self.matmul(other)
    }

    /// The product of two matrices. Like `torch.mm`.
    ///
    /// # Errors
    /// If the tensors are not `[n, k]` and `[k, m]`, or memory runs out.
    #[track_caller]
    pub fn mm(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        let (a, b) = (self.shape(), other.shape());
        if a.len() != 2 || b.len() != 2 || a[1] != b[0] {
            return Err(Error::shape("mm", format!("{a:?} times {b:?}: needs [n, k] and [k, m]")));
        }
        self.matmul(other)
    }

    /// A matrix times a vector. Like `torch.mv`.
    ///
    /// # Errors
    /// If the tensors are not `[n, k]` and `[k]`, or memory runs out.
    #[track_caller]
    pub fn mv(&self, vector: impl AsRef<Tensor>) -> Result<Tensor> {
        let vector = vector.as_ref();
        if self.rank() != 2 || vector.rank() != 1 {
            let message = format!("{:?} times {:?}: needs [n, k] and [k]", self.shape(), vector.shape());
            return Err(Error::shape("mv", message));
        }
        self.matmul(vector)
    }

    /// The dot product of two vectors, a scalar. Like `torch.dot`.
    ///
    /// # Errors
    /// If the tensors are not vectors of the same length, or memory runs out.
    #[track_caller]
    pub fn dot(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        if self.rank() != 1 || other.rank() != 1 {
            let message = format!("{:?} times {:?}: needs two vectors", self.shape(), other.shape());
            return Err(Error::shape("dot", message));
        }
        self.matmul(other)
    }

    /// The outer product of two vectors, a matrix. Like `torch.outer`.
    ///
    /// # Errors
    /// If the tensors are not vectors, or memory runs out.
    #[track_caller]
    pub fn outer(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
        let other = other.as_ref();
        if self.rank() != 1 || other.rank() != 1 {
            let message = format!("{:?} times {:?}: needs two vectors", self.shape(), other.shape());
            return Err(Error::shape("outer", message));
        }
        self.unsqueeze(1)?.mul(other)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let op = AddMm { beta: 0.5, alpha: -2.0 };
    let naive = |ins: &[Vec<f64>]| {
        let product = |i: usize| (0..4).map(|k| ins[1][i / 2 * 4 + k] * ins[2][k * 2 + i % 2]).sum::<f64>();
        vec![(0..6).map(|i| 0.5 * ins[0][i % 2] - 2.0 * product(i)).collect()]
    };
    let one = |x: Result<Tensor>| Ok(smallvec![x?]);
    vec![
        Case::new("addmm", &[&[2], &[3, 4], &[4, 2]], move |ins| call(op, ins)).expect(naive),
        Case::new("addmm of nothing", &[&[3, 2], &[3, 0], &[0, 2]], move |ins| call(op, ins)),
        Case::new("bmm", &[&[2, 3, 4], &[2, 4, 2]], move |ins| one(ins[0].bmm(ins[1]))),
        Case::new("mv", &[&[3, 4], &[4]], move |ins| one(ins[0].mv(ins[1]))),
        Case::new("dot", &[&[4], &[4]], move |ins| one(ins[0].dot(ins[1]))),
        Case::new("outer", &[&[3], &[2]], move |ins| one(ins[0].outer(ins[1]))),
    ]
}
