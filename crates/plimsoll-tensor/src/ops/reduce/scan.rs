//! Cumulative sums and products along a dimension.

use smallvec::smallvec;

use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::scan::{From, ScanShape, scan};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::dim_index;
use crate::ops::elementwise::operands;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// `x -> out`: the cumulative sums.
#[derive(Clone, Copy, Debug)]
struct CumSum {
    dim: usize,
    from: From,
}

impl Kernel for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::reduce::scan::scan(call, cuda::reduce::scan::Scan::Sum, self.dim, self.from == From::Back)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let shape = ScanShape::of(x.shape(), self.dim);
        if x.dtype() == DType::I64 {
            let x = x.elements::<i64>();
            let step = |so_far: i64, i: usize| {
                let so_far = so_far.wrapping_add(x[i]);
                (so_far, so_far)
            };
            scan(shape, self.from, 0, step, out.elements());
            return Ok(());
        }
        by_float!(x.dtype(), T => {
            let x = x.elements::<T>();
            scan(
                shape,
                self.from,
                0.0,
                #[inline(always)]
                |so_far, i| {
                    let so_far = so_far + x[i].wide();
                    (so_far, so_far as T)
                },
                out.elements(),
            );
        });
        Ok(())
    }
}

impl Operator for CumSum {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("cumsum", ins)?;
        let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
        Ok(smallvec![Output::new(x.shape(), dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let from = if self.from == From::Front { From::Back } else { From::Front };
        Ok(smallvec![Some(call_one(CumSum { from, ..*self }, &[grad])?)])
    }
}

/// `x -> out`: the cumulative products.
#[derive(Clone, Copy, Debug)]
struct CumProd {
    dim: usize,
}

impl Kernel for CumProd {
    fn name(&self) -> &'static str {
        "cumprod"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::reduce::scan::scan(call, cuda::reduce::scan::Scan::Product, self.dim, false)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let shape = ScanShape::of(x.shape(), self.dim);
        if x.dtype() == DType::I64 {
            let x = x.elements::<i64>();
            let step = |so_far: i64, i: usize| {
                let so_far = so_far.wrapping_mul(x[i]);
                (so_far, so_far)
            };
            scan(shape, From::Front, 1, step, out.elements());
            return Ok(());
        }
        by_float!(x.dtype(), T => {
            let x = x.elements::<T>();
            scan(
                shape,
                From::Front,
                1.0,
                #[inline(always)]
                |so_far, i| {
                    let so_far = so_far * x[i].wide();
                    (so_far, so_far as T)
                },
                out.elements(),
            );
        });
        Ok(())
    }
}

impl Operator for CumProd {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("cumprod", ins)?;
        let dtype = if x.dtype.is_float() { x.dtype } else { DType::I64 };
        Ok(smallvec![Output::new(x.shape(), dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn autocast(&self) -> Autocast {
        Autocast::Full
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    /// `grad[k] = out[k - 1] · s[k]` with `s[k] = g[k] + x[k + 1] · s[k + 1]`: without division, so exact even if elements are
    /// zero.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let (dim, x, out) = (self.dim as isize, at.input(0)?, at.output(0)?);
        if !is_grad_enabled() || x.numel() == 0 {
            return Ok(smallvec![Some(call_one(CumProdBackward { dim: self.dim }, &[grad, &x, &out])?)]);
        }
        // Shifted by one. The product before the first element is 1; the factor after the last is multiplied by 0, so its value
        // is irrelevant.
        let len = x.shape()[self.dim];
        let one = x.narrow(dim, 0, 1)?.detach().ones_like()?;
        let before = Tensor::cat(&[&one, &out.narrow(dim, 0, len - 1)?], dim)?;
        let after = Tensor::cat(&[&x.narrow(dim, 1, len - 1)?, &one], dim)?;
        let sums = call_one(Recurrence { dim: self.dim, from: From::Back }, &[grad, &after])?;
        Ok(smallvec![Some((&before * &sums)?)])
    }
}

/// `grad, x, out -> grad of x`, in one pass.
#[derive(Clone, Copy, Debug)]
struct CumProdBackward {
    dim: usize,
}

impl Kernel for CumProdBackward {
    fn name(&self) -> &'static str {
        "cumprod_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::reduce::scan::scan(call, cuda::reduce::scan::Scan::ProductBackward, self.dim, true)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, x, y], [out]) = call.split();
        let shape = ScanShape::of(x.shape(), self.dim);
        let (inner, len) = (shape.inner, shape.len);
        by_float!(x.dtype(), T => {
        let (grad, x, y) = (grad.elements::<T>(), x.elements::<T>(), y.elements::<T>());
        let first_zero = |i: usize| {
            let line = i / (len * inner) * len * inner + i % inner;
            (0..len).find(|k| x[line + k * inner] == 0.0).unwrap_or(len)
        };
        // The state has three parts: `x[k] · s[k]`, which the previous element adds to its gradient; the sum of the products
        // times their gradients; and the index of the first zero, if it was needed.
        scan(
            shape,
            From::Back,
            (0.0, 0.0, None),
            #[inline(always)]
            |(state, weighted, zero), i| {
                let k = i / inner % len;
                let sum = grad[i].wide() + state;
                let before = if k == 0 { 1.0 } else { y[i - inner].wide() };
                if x[i] == 0.0 {
                    let zero = if before.is_nan() { Some(zero.unwrap_or_else(|| first_zero(i))) } else { zero };
                    let is_first = before != 0.0 && zero.is_none_or(|zero| k <= zero);
                    return ((0.0, 0.0, zero), if is_first { (before * sum) as T } else { 0.0 });
                }
                let weighted = weighted + y[i].wide() * grad[i].wide();
                let state = x[i].wide() * sum;
                if weighted.is_finite() && before.is_finite() {
                    return ((state, weighted, zero), (before * sum) as T);
                }
                // As in PyTorch, which divides: no gradient flows after a zero; before it, NaN spreads to the front.
                let zero = if before.is_nan() { Some(zero.unwrap_or_else(|| first_zero(i))) } else { zero };
                let is_after = before == 0.0 || zero.is_some_and(|zero| k > zero);
                ((state, weighted, zero), if is_after { 0.0 } else { (weighted / x[i].wide()) as T })
            },
            out.elements(),
        );
        });
        Ok(())
    }
}

impl Operator for CumProdBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, ..] = operands::inputs::<3>("cumprod_backward", ins)?;
        Ok(smallvec![Output::new(grad.shape(), grad.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// `g, a -> s` with `s[k] = g[k] + a[k] · s[k ± 1]`, starting at either end.
#[derive(Clone, Copy, Debug)]
struct Recurrence {
    dim: usize,
    from: From,
}

impl Kernel for Recurrence {
    fn name(&self) -> &'static str {
        "recurrence"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::reduce::scan::scan(
            call,
            cuda::reduce::scan::Scan::Recurrence,
            self.dim,
            self.from == From::Back,
        )
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([g, a], [out]) = call.split();
        let shape = ScanShape::of(g.shape(), self.dim);
        by_float!(g.dtype(), T => {
        let (g, a) = (g.elements::<T>(), a.elements::<T>());
        scan(
            shape,
            self.from,
            0.0,
            #[inline(always)]
            |state, i| {
                let sum = g[i].wide() + a[i].wide() * state;
                (sum, sum as T)
            },
            out.elements(),
        );
        });
        Ok(())
    }
}

impl Operator for Recurrence {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [g, a] = operands::inputs("recurrence", ins)?;
        operands::equal_shapes("recurrence", &[g, a])?;
        Ok(smallvec![Output::new(g.shape(), g.dtype)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1).and(Saves::output(0))
    }

    /// The gradient of `g` is the recurrence from the other end, with each factor shifted by one. The gradient of `a[k]` is
    /// that times `s[k ± 1]`.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let (dim, len) = (self.dim as isize, at.shape(0)[self.dim]);
        if grad.numel() == 0 {
            return Ok(smallvec![Some(grad.clone()), Some(grad.clone())]);
        }
        let (a, s) = (at.input(1)?, at.output(0)?);
        let zero = a.narrow(dim, 0, 1)?.detach().zeros_like()?;
        // Shifts by one, towards the end that the recurrence started at or away from it.
        let to_back = |x: &Tensor| Tensor::cat(&[&zero, &x.narrow(dim, 0, len - 1)?], dim);
        let to_front = |x: &Tensor| Tensor::cat(&[&x.narrow(dim, 1, len - 1)?, &zero], dim);
        let (factors, from, before) = match self.from {
            From::Back => (to_back(&a)?, From::Front, to_front(&s)?),
            From::Front => (to_front(&a)?, From::Back, to_back(&s)?),
        };
        let to_g = call_one(Recurrence { dim: self.dim, from }, &[grad, &factors])?;
        let to_a = (&to_g * &before)?;
        Ok(smallvec![Some(to_g), Some(to_a)])
    }
}

impl Tensor {
    /// The cumulative sums along a dimension. Integers and `bool` give `int64`. Like `torch.cumsum`.
    ///
    /// # Errors
    /// If a dimension is out of range, or memory runs out.
    #[track_caller]
    pub fn cumsum(&self, dim: isize) -> Result<Tensor> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return self.unsqueeze(0)?.cumsum(0)?.squeeze(0);
        }
        call_one(CumSum { dim: dim_index("cumsum", dim, self.rank())?, from: From::Front }, &[self])
    }

    /// The cumulative products along a dimension. Integers and `bool` give `int64`. Like `torch.cumprod`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cumsum`].
    #[track_caller]
    pub fn cumprod(&self, dim: isize) -> Result<Tensor> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return self.unsqueeze(0)?.cumprod(0)?.squeeze(0);
        }
        call_one(CumProd { dim: dim_index("cumprod", dim, self.rank())? }, &[self])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let so_far = |start: f64, step: fn(f64, f64) -> f64| {
        move |ins: &[Vec<f64>]| {
            let row = |row: &[f64]| {
                row.iter()
                    .scan(start, |state, &x| {
                        *state = step(*state, x);
                        Some(*state)
                    })
                    .collect::<Vec<_>>()
            };
            vec![ins[0].chunks(4).flat_map(row).collect()]
        }
    };
    let recurrence = |from: From| {
        let op = Recurrence { dim: 0, from };
        Case::new(format!("{op:?}"), &[&[4, 3], &[4, 3]], move |ins| call(op, ins))
    };
    vec![
        Case::new("cumsum", &[&[3, 4]], |ins| Ok(smallvec![ins[0].cumsum(1)?]))
            .expect(so_far(0.0, |a, b| a + b)),
        Case::new("cumsum of columns", &[&[3, 20]], |ins| Ok(smallvec![ins[0].cumsum(0)?])),
        Case::new("cumprod", &[&[3, 4]], |ins| Ok(smallvec![ins[0].cumprod(-1)?]))
            .over(Domain::Positive)
            .expect(so_far(1.0, |a, b| a * b)),
        Case::new("cumprod of columns", &[&[4, 3]], |ins| Ok(smallvec![ins[0].cumprod(0)?])),
        recurrence(From::Back),
        recurrence(From::Front),
    ]
}
