//! Functions of two elements, with broadcasting, out of place and in place: the rows of the table in `pairs.rs`.
//!
//! A row has the function and the gradient of each side, as expressions in the incoming gradient `g` and both elements,
//! and declares which elements each gradient reads.

use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::Real;
use super::slope::{self, Expression};
use super::traced::{Text, Traced};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::elementwise as kernels;
use crate::cpu::kernels::elementwise::{zip, zip3};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, result_type};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Layout};
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::want_number;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// Which of the two elements an expression reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Neither,
    Other,
    Both,
}

/// The dtypes that a row accepts, and the dtype of its results. Inputs of different dtypes are promoted: [`result_type`].
///
/// [`result_type`]: crate::result_type
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Types {
    /// All dtypes; results have the promoted dtype.
    All,
    /// Numeric dtypes; results have the promoted dtype. A `bool` input counts as 0 and 1 if the other is numeric.
    Numbers,
    /// Like `Numbers`, but neither input may be `bool`.
    EachNumbers,
    /// Floating-point results; other inputs become `float32`.
    Floats,
    /// All dtypes; results are `bool`.
    Truth,
}

impl Types {
    /// The dtype in which the function is computed.
    fn compute(self, common: DType) -> DType {
        if self == Types::Floats { common.or_float() } else { common }
    }

    /// The dtype of the results.
    pub(super) fn result(self, op: &'static str, common: DType) -> Result<DType> {
        match self {
            Types::Truth => Ok(DType::Bool),
            Types::Numbers | Types::EachNumbers => want_number(op, common).map(|()| common),
            Types::All | Types::Floats => Ok(self.compute(common)),
        }
    }

    /// Fails if one of the inputs has a dtype that this row rejects, even if the other input does not.
    fn want_each(self, op: &'static str, ins: &[Meta<'_>]) -> Result<()> {
        match self {
            Types::EachNumbers => ins.iter().try_for_each(|x| want_number(op, x.dtype)),
            _ => Ok(()),
        }
    }
}

/// A row of the table.
pub(crate) trait Row: Clone + Copy + Debug + Default + Send + Sync + 'static {
    const NAME: &'static str;
    /// The name of the in-place form.
    const IN_PLACE: &'static str;
    const BACKWARD: &'static str;
    /// The operands that the gradients of the left and right side read in addition to `g`.
    const READS: [Reads; 2];
    /// Whether a gradient that reads only the other side is recorded as the single tensor operation that it equals.
    const OPERATIONS: bool = false;
    const TYPES: Types;
    fn value<R: Real>(a: R, b: R) -> R;
    fn left<R: Real>(g: R, a: R, b: R) -> R;
    fn right<R: Real>(g: R, a: R, b: R) -> R;
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Binary<F>(pub(in crate::ops) F);

impl<F: Row> Kernel for Binary<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a", "b"], |[a, b]| F::value(a, b)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let common = result_type(call.ins.iter().map(|x| (x.dtype, !x.shape().is_empty())));
        let compute = common.map(|common| F::TYPES.compute(common));
        let [a, b] = ["a", "b"].map(Cow::Borrowed);
        let [a, b] = match (compute, &call.ins[..]) {
            // As on the host, integers of a different dtype are converted first.
            (Some(compute), [x, y]) if !compute.is_float() => {
                let converted = |of: Cow<'static, str>, dtype: DType| match dtype == compute {
                    true => of,
                    false => Cow::Owned(format!("((C)({}){of})", cuda::name(compute))),
                };
                [converted(a, x.dtype), converted(b, y.dtype)]
            }
            _ => [a, b],
        };
        let text = Text::of_expression([&a, &b], |[a, b]| F::value(a, b));
        cuda::elementwise::of_operator(call, &text, compute)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([a, b], [out]) = call.split();
        let laid = Laid::of(out.layout(), [a.layout(), b.layout()]);
        if [a.dtype(), b.dtype(), out.dtype()] != [DType::F32; 3] {
            operands::evaluate(
                &laid,
                [a, b],
                out,
                F::TYPES.compute(operands::common_type_of(&[a, b])),
                |[a, b]| F::value(a, b),
                |[a, b]| F::value(a, b),
                |[a, b]| F::value(a, b),
            );
            return Ok(());
        }
        let [a, b] = laid.operands::<f32, 2>([a, b]);
        zip(
            laid.shape(),
            a,
            b,
            out.elements::<f32>(),
            #[inline(always)]
            |a, b| F::value(a, b),
        );
        Ok(())
    }
}

impl<F: Row> Operator for Binary<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = operands::inputs(F::NAME, ins)?;
        F::TYPES.want_each(F::NAME, ins)?;
        let common = if a.dtype == b.dtype { a.dtype } else { operands::common_type(ins) };
        let dtype = F::TYPES.result(F::NAME, common)?;
        if a.shape() == b.shape() {
            return Ok(smallvec![Output::laid_out(operands::layout_for(a.shape(), ins), dtype)]);
        }
        let shape = layout::broadcast(F::NAME, a.shape(), b.shape())?;
        Ok(smallvec![Output::laid_out(operands::layout_for(&shape, ins), dtype)])
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        saves::<F>(wanted)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        backward::<F>(at)
    }
}

/// The inputs that the derivative of a row reads.
pub(in crate::ops) fn saves<F: Row>(wanted: &[bool]) -> Saves {
    let side = |side: usize| match F::READS[side] {
        Reads::Neither => Saves::NOTHING,
        Reads::Other => Saves::input(1 - side),
        Reads::Both => Saves::input(0).and(Saves::input(1)),
    };
    side(0).only_if(wanted[0]).and(side(1).only_if(wanted[1]))
}

/// The gradients of a row's sides.
pub(in crate::ops) fn backward<F: Row>(at: &Backward<'_>) -> Result<Grads> {
    let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
    let side = |side: usize| {
        at.wants(side).then(|| side_of::<F>(at, grad, side)?.sum_to(at.shape(side))).transpose()
    };
    Ok(smallvec![side(0)?, side(1)?])
}

/// The gradient of one side, in the output's shape.
#[track_caller]
fn side_of<F: Row>(at: &Backward<'_>, grad: &Tensor, side: usize) -> Result<Tensor> {
    // The gradient itself serves as a placeholder for operands that are not read.
    let [a, b] = match F::READS[side] {
        Reads::Neither => [grad.clone(), grad.clone()],
        Reads::Other if side == 0 => [grad.clone(), at.input(1)?],
        Reads::Other => [at.input(0)?, grad.clone()],
        Reads::Both => [at.input(0)?, at.input(1)?],
    };
    let is_operations = F::OPERATIONS && F::READS[side] == Reads::Other && is_grad_enabled();
    if is_operations || F::READS[side] == Reads::Neither {
        return Traced::evaluate([grad, &a, &b], |[g, a, b]| match side {
            0 => F::left(g, a, b),
            _ => F::right(g, a, b),
        });
    }
    call_one(BinaryBackward::<F> { side, row: PhantomData }, &[grad, &a, &b])
}

/// The gradient of one side, computed in one pass without temporaries.
#[derive(Clone, Copy, Debug)]
struct BinaryBackward<F> {
    side: usize,
    row: PhantomData<fn() -> F>,
}

impl<F: Row> Kernel for BinaryBackward<F> {
    fn name(&self) -> &'static str {
        F::BACKWARD
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a", "b", "c"], |[g, a, b]| match self.side {
            0 => F::left(g, a, b),
            _ => F::right(g, a, b),
        }))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([g, a, b], [out]) = call.split();
        let laid = Laid::of(out.layout(), [g.layout(), a.layout(), b.layout()]);
        if [g.dtype(), a.dtype(), b.dtype(), out.dtype()] != [DType::F32; 4] {
            let left = self.side == 0;
            operands::evaluate(
                &laid,
                [g, a, b],
                out,
                operands::common_type_of(&[g, a, b]),
                |[g, a, b]| if left { F::left(g, a, b) } else { F::right(g, a, b) },
                |[g, a, b]| if left { F::left(g, a, b) } else { F::right(g, a, b) },
                |[g, a, b]| if left { F::left(g, a, b) } else { F::right(g, a, b) },
            );
            return Ok(());
        }
        let operands = laid.operands::<f32, 3>([g, a, b]);
        let out = out.elements::<f32>();
        match self.side {
            0 => zip3(
                laid.shape(),
                operands,
                out,
                #[inline(always)]
                |g, a, b| F::left(g, a, b),
            ),
            _ => zip3(
                laid.shape(),
                operands,
                out,
                #[inline(always)]
                |g, a, b| F::right(g, a, b),
            ),
        }
        Ok(())
    }
}

impl<F: Row> Operator for BinaryBackward<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [g, ..] = operands::inputs::<3>(F::BACKWARD, ins)?;
        Ok(smallvec![Output::laid_out(g.layout.dense(), g.dtype)])
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        slope::saves(self, wanted, self.read())
    }

    /// The formula is linear in the incoming gradient, so its derivative with respect to that gradient is the formula itself.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let input = |i: usize, grad: &Tensor| {
            if self.read().contains(&i) { at.input(i) } else { Ok(grad.clone()) }
        };
        slope::backward(self, at, self.read(), |grad| {
            call_one(*self, &[grad, &input(1, grad)?, &input(2, grad)?])
        })
    }
}

impl<F: Row> BinaryBackward<F> {
    /// The inputs, other than the gradient, that are read and are not placeholders.
    fn read(&self) -> &'static [usize] {
        match F::READS[self.side] {
            Reads::Neither => &[],
            Reads::Other if self.side == 0 => &[2],
            Reads::Other => &[1],
            Reads::Both => &[1, 2],
        }
    }
}

impl<F: Row> Expression for BinaryBackward<F> {
    const NAME: &'static str = F::BACKWARD;

    #[inline(always)]
    fn of<R: Real>(&self, [g, a, b]: [R; 3]) -> R {
        if self.side == 0 { F::left(g, a, b) } else { F::right(g, a, b) }
    }
}

/// `x -> y`: each element of `y` becomes a function of itself and the element of `x`, broadcast. The inputs are `y, x`.
#[derive(Clone, Copy, Debug)]
struct BinaryInPlace<F>(PhantomData<fn() -> F>);

impl<F: Row> Kernel for BinaryInPlace<F> {
    fn name(&self) -> &'static str {
        F::IN_PLACE
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::elementwise::change(call, &Text::of_expression(["y", "a"], |[y, x]| F::value(y, x)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [y]) = call.split();
        let laid = Laid::of(y.layout(), [x.layout()]);
        if (x.dtype(), y.dtype()) == (DType::F32, DType::F32) {
            let [x] = laid.operands::<f32, 1>([x]);
            kernels::update(
                laid.shape(),
                y.elements::<f32>(),
                x,
                #[inline(always)]
                |y, x| F::value(y, x),
            );
            return Ok(());
        }
        let (dtype, [x]) = (y.dtype(), laid.any([x]));
        let y = (y.bytes(), dtype);
        match dtype.accumulator() {
            DType::F32 => kernels::update_any::<f32>(laid.shape(), y, x, |y, x| F::value(y, x)),
            DType::F64 => kernels::update_any::<f64>(laid.shape(), y, x, |y, x| F::value(y, x)),
            _ => kernels::update_any::<i64>(laid.shape(), y, x, |y, x| {
                F::value(super::real::Whole(y), super::real::Whole(x)).0
            }),
        }
        Ok(())
    }
}

impl<F: Row> Operator for BinaryInPlace<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [y, x] = operands::inputs(F::IN_PLACE, ins)?;
        F::TYPES.want_each(F::IN_PLACE, ins)?;
        let result = F::TYPES.result(F::IN_PLACE, operands::common_type(ins))?;
        operands::want_holds(F::IN_PLACE, y.dtype, result)?;
        if x.layout.expand(y.shape()).is_none() {
            let message = format!("{:?} does not broadcast to {:?}", x.shape(), y.shape());
            return Err(Error::shape(F::IN_PLACE, message));
        }
        Ok(smallvec![Output::in_place(0, &y)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input != 0 || operands::without_gaps(layout)
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        saves::<F>(wanted)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        backward::<F>(at)
    }
}

/// Changes every element as a row of the table of pairs defines.
#[track_caller]
pub(super) fn change<F: Row>(y: &Tensor, x: &Tensor) -> Result<()> {
    call(BinaryInPlace::<F>(PhantomData), &[y, x]).map(drop)
}

macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $name:ident => $row:ident over $domain:ident of $types:ident $(in place $in_place:ident)? $(as $operations:ident)? {
            |$a:ident, $b:ident| $value:expr,
            left reads $left_reads:ident: |$lg:ident, $la:ident, $lb:ident| $left:expr,
            right reads $right_reads:ident: |$rg:ident, $ra:ident, $rb:ident| $right:expr
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $row;

        #[allow(unused_variables, reason = "a gradient need not read everything")]
        impl Row for $row {
            const NAME: &'static str = stringify!($name);
            const IN_PLACE: &'static str = concat!(stringify!($name), "_");
            const BACKWARD: &'static str = concat!(stringify!($name), "_backward");
            const READS: [Reads; 2] = [Reads::$left_reads, Reads::$right_reads];
            const OPERATIONS: bool = !concat!($(stringify!($operations))?).is_empty();
            const TYPES: Types = Types::$types;
            #[inline(always)]
            fn value<R: Real>($a: R, $b: R) -> R {
                $value
            }
            #[inline(always)]
            fn left<R: Real>($lg: R, $la: R, $lb: R) -> R {
                $left
            }
            #[inline(always)]
            fn right<R: Real>($rg: R, $ra: R, $rb: R) -> R {
                $right
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// If the shapes do not broadcast, the function does not support the dtypes, the devices differ, or memory
            /// runs out.
            #[track_caller]
            pub fn $name(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
                let other = other.as_ref();
                call_one(Binary($row), &[self, other])
            }

            $(
                #[doc = concat!("[`Tensor::", stringify!($name), "`] in place: `other` is broadcast to this shape.")]
                ///
                /// # Errors
                /// The same errors as [`Tensor::add_`], or if the dtype cannot hold the result.
                #[track_caller]
                pub fn $in_place(&self, other: impl AsRef<Tensor>) -> Result<()> {
                    let other = other.as_ref();
                    super::binary::change::<$row>(self, other)
                }
            )?
        }
    )*

    /// Cases for the conformance suite: every row.
    pub(crate) fn cases() -> Vec<Case> {
        [$(row_cases($row, Domain::$domain)),*].into_iter().flatten().collect()
    }
    };
}

pub(super) fn row_cases<F: Row>(row: F, domain: Domain) -> Vec<Case> {
    let case = |shapes: &[&[usize]]| {
        let case = Case::new(format!("{} {shapes:?}", F::NAME), shapes, move |ins| call(Binary(row), ins));
        if F::TYPES == Types::Truth { case.over(domain).without_derivative() } else { case.over(domain) }
    };
    let values = |ins: &[Vec<f64>]| vec![ins[0].iter().zip(&ins[1]).map(|(&a, &b)| F::value(a, b)).collect()];
    let column = |ins: &[Vec<f64>]| {
        let value = |i: usize| F::value(ins[0][i], ins[1][i / 4]);
        vec![(0..12).map(value).collect()]
    };
    vec![
        case(&[&[3, 4], &[3, 4]]).expect(values),
        case(&[&[3, 4], &[3, 1]]).expect(column),
        case(&[&[2, 1, 4], &[3, 1]]),
        case(&[&[], &[2, 3]]),
    ]
}

pub(crate) use binary;

impl Tensor {
    /// Sums over the broadcast dimensions, so that the result has `shape` again. Returns the tensor itself if it
    /// already has that shape.
    #[track_caller]
    pub(crate) fn sum_to(&self, shape: &[usize]) -> Result<Tensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let lead = self.rank() - shape.len();
        let repeated = |i: usize| i < lead || (shape[i - lead] == 1 && self.shape()[i] != 1);
        let dims: Vec<isize> = (0..self.rank()).filter(|&i| repeated(i)).map(|i| i as isize).collect();
        self.sum_keepdim(&dims)?.reshape(shape)
    }
}
