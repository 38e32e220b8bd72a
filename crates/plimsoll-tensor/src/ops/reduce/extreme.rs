//! Maxima and minima: over some dimensions (`amax`, `max`), and along one with their indices (`max_dim`).

use smallvec::smallvec;

use super::reduced::{Keep, Over};
use crate::cpu::kernels::elementwise::{Operand, zip3};
use crate::cpu::kernels::fold::{fold, fold2};
use crate::cpu::kernels::folds::{Extreme, Extremes};
use crate::cpu::kernels::number::{by_float, by_number};
use crate::cuda::CudaCall;
use crate::cuda::reduce::fold::{self, Fold};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, want_same};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// `x -> value, count`: the maximum or minimum over some dimensions, and the number of elements equal to it.
#[derive(Clone, Debug)]
pub(super) struct ExtremeOver {
    pub(in crate::ops) name: &'static str,
    pub(in crate::ops) of: Extremes,
    pub(in crate::ops) over: Over,
}

impl Kernel for ExtremeOver {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let Extremes { largest, magnitude } = self.of;
        fold::fold(call, &self.over.marks, Fold::Extremes { largest, magnitude })
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out, count]) = call.split();
        let (shape, strides, marks) = (x.shape(), x.strides(), &self.over.marks);
        match x.dtype() {
            DType::F64 => {
                let outs = (out.elements::<f64>(), count.elements::<f64>());
                let finish = |(value, count)| (value, f64::from(count));
                fold2(shape, (x.elements(), strides), marks, &self.of, outs, finish);
            }
            DType::F32 => {
                let outs = (out.elements::<f32>(), count.elements::<f32>());
                fold2(shape, (x.elements(), strides), marks, &self.of, outs, |(value, count)| {
                    (value, count as f32)
                });
            }
            _ => {
                let outs = (out.elements::<i64>(), count.elements::<f32>());
                fold2(shape, (x.elements(), strides), marks, &self.of, outs, |(value, count)| {
                    (value, count as f32)
                });
            }
        }
        Ok(())
    }
}

impl Operator for ExtremeOver {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name, ins)?;
        self.over.want_elements(self.name, &x)?;
        let shape = self.over.shape(x.shape());
        // 16-bit floats cannot count far.
        let count = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        Ok(smallvec![Output::new(&shape, x.dtype), Output::new(&shape, count)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0).and(Saves::output(0)).and(Saves::output(1))
    }

    /// Elements equal to the extreme share the gradient evenly, as in PyTorch.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let wide = |tensor: &Tensor| self.over.broadcastable(tensor, at.shape(0));
        let count = at.output(1)?.detach();
        let share = wide(&(&grad.to_dtype(count.dtype())? / &count)?.to_dtype(grad.dtype())?)?;
        let (x, value) = (at.input(0)?.detach(), wide(&at.output(0)?.detach())?);
        let of = match self.name {
            _ if self.of.magnitude => Shared::Magnitude,
            "amax" | "amin" => Shared::Over,
            _ => Shared::All,
        };
        Ok(smallvec![Some(call_one(Share { of }, &[&share, &x, &value])?)])
    }
}

/// `share, x, value -> grad of x`: the share where an element equals the value, elsewhere 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(in crate::ops) of: Shared,
}

/// The kind of extreme. The kinds treat NaN differently, as in PyTorch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shared {
    /// The extreme of all elements. If it is NaN, the NaNs share the gradient.
    All,
    /// Extremes over dimensions. If one is NaN, nothing gets its gradient.
    Over,
    /// The largest magnitude. Elements of this magnitude get the gradient with their sign. If it is NaN, nothing gets a
    /// gradient.
    Magnitude,
}

impl Kernel for Share {
    fn name(&self) -> &'static str {
        "amax_backward"
    }

    fn expression(&self) -> Option<String> {
        let is_it = |of: &str| format!("({of} == c || ({of} != {of} && c != c))");
        Some(match self.of {
            Shared::All => format!("{} ? a : C(0.0)", is_it("b")),
            Shared::Over => "c != c ? c : b == c ? a : C(0.0)".to_owned(),
            Shared::Magnitude => {
                "b != C(0.0) && (b == c || -b == c) ? (b < C(0.0) ? -a : a) : C(0.0)".to_owned()
            }
        })
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([share, x, value], [out]) = call.split();
        let shape = out.shape();
        let strides = [&share, &x, &value].map(|x| operands::expanded(x, shape));
        let of = self.of;
        by_float!(x.dtype(), T => {
            let operands = std::array::from_fn(|i| {
                Operand { data: [&share, &x, &value][i].elements::<T>(), strides: &strides[i] }
            });
            zip3(
                shape,
                operands,
                out.elements::<T>(),
                #[inline(always)]
                |share, x, value| match of {
                    Shared::All if x == value || (x.is_nan() && value.is_nan()) => share,
                    Shared::Over if value.is_nan() => value,
                    Shared::Over if x == value => share,
                    Shared::Magnitude if x != 0.0 && x.abs() == value => if x < 0.0 { -share } else { share },
                    _ => 0.0,
                },
            );
        });
        Ok(())
    }
}

impl Operator for Share {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [share, x, value] = operands::inputs(self.name(), ins)?;
        want_same(self.name(), &[share, x, value])?;
        Ok(smallvec![Output::new(x.shape(), x.dtype)])
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1).and(Saves::input(2))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let shared = call_one(*self, &[grad, &at.input(1)?, &at.input(2)?])?;
        Ok(smallvec![Some(shared.sum_to(at.shape(0))?), None, None])
    }
}

/// `x -> value, index` along a dimension; for `argmin`, only the index.
#[derive(Clone, Copy, Debug)]
struct ExtremeAlong {
    name: &'static str,
    of: Extreme,
    dim: usize,
    keep: Keep,
}

impl ExtremeAlong {
    fn is_index_only(&self) -> bool {
        self.name.starts_with("arg")
    }

    fn over(&self, rank: usize) -> Over {
        Over { marks: (0..rank).map(|dim| dim == self.dim).collect(), keep: self.keep }
    }
}

impl Kernel for ExtremeAlong {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let marks = self.over(call.ins[0].shape().len()).marks;
        fold::fold(call, &marks, Fold::Place { largest: self.of.largest })
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let (x, index) = (call.ins.remove(0), call.outs.pop().map(|out| out.elements::<i64>()));
        let (index, marks) = (index.unwrap_or_default(), self.over(x.shape().len()).marks);
        by_number!(x.dtype(), T => {
            let src = (x.elements::<T>(), x.strides());
            match call.outs.pop() {
                None => fold(x.shape(), src, &marks, &self.of, index, |(_, place)| place as i64),
                Some(value) => {
                    let outs = (value.elements::<T>(), index);
                    fold2(x.shape(), src, &marks, &self.of, outs, |(value, place)| (value, place as i64));
                }
            }
        });
        Ok(())
    }
}

impl Operator for ExtremeAlong {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(self.name, ins)?;
        let over = self.over(x.rank());
        over.want_elements(self.name, &x)?;
        let shape = over.shape(x.shape());
        let index = Output::new(&shape, DType::I64);
        Ok(if self.is_index_only() {
            smallvec![index]
        } else {
            smallvec![Output::new(&shape, x.dtype), index]
        })
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(1).only_if(!self.is_index_only())
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let wide = |tensor: &Tensor| self.over(at.shape(0).len()).broadcastable(tensor, at.shape(0));
        Ok(smallvec![Some(wide(grad)?.gather_backward(self.dim, &wide(&at.output(1)?)?, at.shape(0))?)])
    }
}

macro_rules! extremes {
    ($largest:literal, $word:literal, $all:ident, $along:ident, $along_kept:ident, $over:ident, $over_kept:ident) => {
        impl Tensor {
            #[doc = concat!("The ", $word, " element, a scalar. As `torch.", stringify!($all), "`: equal elements share the gradient.")]
            ///
            /// # Errors
            /// If there are no elements, or memory runs out.
            #[track_caller]
            pub fn $all(&self) -> Result<Tensor> {
                self.extreme(stringify!($all), Extremes { largest: $largest, magnitude: false }, Over::all(self.rank()))
            }

            #[doc = concat!("The ", $word, " elements along a dimension, which is removed, and their indices (`int64`). The first of equal elements is taken, and gets the gradient. As `torch.", stringify!($all), "(dim)`.")]
            ///
            /// # Errors
            /// If the dimension is out of range or has no elements, or memory runs out.
            #[track_caller]
            pub fn $along(&self, dim: isize) -> Result<(Tensor, Tensor)> {
                self.extreme_along(stringify!($all), Extreme { largest: $largest }, dim, Keep::Dropped)
            }

            #[doc = concat!("As [`Tensor::", stringify!($along), "`]; the dimension is kept with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($along), "`].")]
            #[track_caller]
            pub fn $along_kept(&self, dim: isize) -> Result<(Tensor, Tensor)> {
                self.extreme_along(stringify!($all), Extreme { largest: $largest }, dim, Keep::Kept)
            }

            #[doc = concat!("The ", $word, " elements over some dimensions, which are removed; over all if the list is empty. As `torch.", stringify!($over), "`: equal elements share the gradient.")]
            ///
            /// # Errors
            /// If a dimension is out of range, listed twice or empty, or if memory runs out.
            #[track_caller]
            pub fn $over(&self, dims: &[isize]) -> Result<Tensor> {
                let over = Over::dims(stringify!($over), self.rank(), dims, Keep::Dropped)?;
                self.extreme(stringify!($over), Extremes { largest: $largest, magnitude: false }, over)
            }

            #[doc = concat!("As [`Tensor::", stringify!($over), "`]; the dimensions are kept with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($over), "`].")]
            #[track_caller]
            pub fn $over_kept(&self, dims: &[isize]) -> Result<Tensor> {
                let over = Over::dims(stringify!($over), self.rank(), dims, Keep::Kept)?;
                self.extreme(stringify!($over), Extremes { largest: $largest, magnitude: false }, over)
            }
        }
    };
}
extremes!(true, "largest", max, max_dim, max_keepdim, amax, amax_keepdim);
extremes!(false, "smallest", min, min_dim, min_keepdim, amin, amin_keepdim);

impl Tensor {
    /// The index of the minimum along a dimension, as `int64`; the first one if several are equal. Like `torch.argmin(dim)`.
    ///
    /// # Errors
    /// If the dimension is out of range or has no elements, or memory runs out.
    #[track_caller]
    pub fn argmin(&self, dim: impl Into<Option<isize>>) -> Result<Tensor> {
        let Some(dim) = dim.into() else { return self.reshape(&[-1])?.argmin(0) };
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            return self.unsqueeze(0)?.argmin(0);
        }
        let dim = dim_index("argmin", dim, self.rank())?;
        call_one(
            ExtremeAlong { name: "argmin", of: Extreme { largest: false }, dim, keep: Keep::Dropped },
            &[self],
        )
    }

    #[track_caller]
    pub(in crate::ops) fn extreme(&self, name: &'static str, of: Extremes, over: Over) -> Result<Tensor> {
        Ok(call(ExtremeOver { name, of, over }, &[self])?.remove(0))
    }

    #[track_caller]
    fn extreme_along(
        &self,
        name: &'static str,
        of: Extreme,
        dim: isize,
        keep: Keep,
    ) -> Result<(Tensor, Tensor)> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            let (value, index) = self.unsqueeze(0)?.extreme_along(name, of, 0, Keep::Dropped)?;
            return Ok((value, index));
        }
        let dim = dim_index(name, dim, self.rank())?;
        let mut outs = call(ExtremeAlong { name, of, dim, keep }, &[self])?.into_iter();
        match (outs.next(), outs.next()) {
            (Some(value), Some(index)) => Ok((value, index)),
            _ => Err(Error::argument(name, "has two outputs")),
        }
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let places = |ins: &[Vec<f64>]| {
        let place = |row: &[f64]| (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        let rows = || ins[0].chunks(5).map(move |row| (row[place(row)], place(row) as f64));
        vec![rows().map(|row| row.0).collect(), rows().map(|row| row.1).collect()]
    };
    let pair = |pair: (Tensor, Tensor)| Ok(smallvec![pair.0, pair.1]);
    let one = |x: Result<Tensor>| Ok(smallvec![x?]);
    let case = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec());
    let apart = |(name, shape): (String, Vec<usize>), f: fn(&Tensor) -> Result<Tensor>| {
        Case::new(name, &[&shape], move |ins| one(f(ins[0]))).over(Domain::Apart)
    };
    let share = Share { of: Shared::Magnitude };
    vec![
        Case::new("max_dim", &[&[3, 5]], move |ins| pair(ins[0].max_dim(1)?))
            .over(Domain::Apart)
            .expect(places),
        Case::new("min_keepdim", &[&[3, 5]], move |ins| pair(ins[0].min_keepdim(0)?)).over(Domain::Apart),
        apart(case("max", &[3, 5]), Tensor::max)
            .expect(|ins| vec![vec![ins[0].iter().copied().fold(f64::MIN, f64::max)]]),
        apart(case("amin", &[2, 3, 4]), |x| x.amin(&[0, 2])),
        apart(case("amax", &[2, 3, 4]), |x| x.amax_keepdim(&[1])),
        Case::new("argmin", &[&[3, 5]], move |ins| one(ins[0].argmin(0)))
            .over(Domain::Apart)
            .without_derivative(),
        Case::new("amax_backward", &[&[2, 1]], move |ins| {
            let x = Tensor::from_slice(&[-1.0f32, 0.5, 1.0, 2.0, -2.0, 0.0], &[2, 3], ins[0].device())?;
            let value = Tensor::from_slice(&[1.0f32, 2.0], &[2, 1], ins[0].device())?;
            let [x, value] = [x.to_dtype(ins[0].dtype())?, value.to_dtype(ins[0].dtype())?];
            call(share, &[ins[0], &x, &value])
        })
        .expect(|ins| vec![vec![-ins[0][0], 0.0, ins[0][0], ins[0][1], -ins[0][1], 0.0]]),
    ]
}
