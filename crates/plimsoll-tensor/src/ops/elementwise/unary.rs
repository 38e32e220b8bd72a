//! Functions of one element, out of place and in place. Each row of a table defines an operator (`functions.rs`,
//! `math.rs`, `activations.rs`).
//!
//! A row is a name, an expression of the element, what the derivative reads (the input, the output or neither), and the
//! gradient as an expression of the incoming gradient and the saved value. The row generates the host's kernels, the
//! source code of a GPU's kernels, derivatives of any order, a method of [`Tensor`] and test cases.

use std::fmt::Debug;

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::Real;
use super::real::Whole;
use super::slope::{self, Expression};
use super::traced::Text;
use crate::cpu::kernels::convert::AnyOperand;
use crate::cpu::kernels::elementwise as kernels;
use crate::cpu::kernels::elementwise::{map, zip};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::Error;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Autocast, Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::want_float;
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// The saved value that a row's derivative reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Nothing,
    Input,
    Output,
}

/// The dtypes that a row accepts, and the dtype of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Types {
    /// All dtypes; inputs that are not floating-point give `float32`.
    Floats,
    /// Floating-point dtypes only.
    FloatsOnly,
    /// Numeric dtypes.
    Numbers,
    /// All dtypes; `bool` gives `int64`.
    Counts,
    /// All dtypes.
    All,
}

impl Types {
    /// The dtype of the result for an input of this dtype.
    pub(super) fn result(self, op: &'static str, dtype: DType) -> Result<DType> {
        match self {
            Types::Floats => Ok(dtype.or_float()),
            Types::FloatsOnly => want_float(op, dtype).map(|()| dtype),
            Types::Numbers if dtype == DType::Bool => {
                Err(Error::DType { op, expected: "a numeric type", got: dtype })
            }
            Types::Counts if dtype == DType::Bool => Ok(DType::I64),
            Types::Numbers | Types::Counts | Types::All => Ok(dtype),
        }
    }
}

/// A row of the table.
pub(crate) trait Row: Clone + Debug + Send + Sync + 'static {
    const NAME: &'static str;
    /// The name of the in-place form.
    const IN_PLACE: &'static str;
    const BACKWARD: &'static str;
    const READS: Reads;
    const TYPES: Types;
    const AUTOCAST: Autocast;
    /// The function.
    fn value<R: Real>(&self, x: R) -> R;
    /// The gradient of `x`: `g` is the output's gradient, `v` the saved value (or `g` if nothing was saved).
    fn gradient<R: Real>(&self, g: R, v: R) -> R;
}

/// A function of each element.
#[derive(Clone, Debug)]
pub(crate) struct Unary<F>(pub(crate) F);

impl<F: Row> Kernel for Unary<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a"], |[x]| self.0.value(x)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let compute =
            if F::TYPES == Types::Floats { call.ins[0].dtype.or_float() } else { call.ins[0].dtype };
        let text = Text::of_expression(["a"], |[x]| self.0.value(x));
        cuda::elementwise::of_operator(call, &text, Some(compute))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let laid = Laid::of(out.layout(), [x.layout()]);
        if x.dtype() != DType::F32 {
            let compute = if F::TYPES == Types::Floats { x.dtype().or_float() } else { x.dtype() };
            operands::evaluate(
                &laid,
                [x],
                out,
                compute,
                |[x]| self.0.value(x),
                |[x]| self.0.value(x),
                |[x]| self.0.value(x),
            );
            return Ok(());
        }
        let [x] = laid.operands::<f32, 1>([x]);
        map(
            laid.shape(),
            x,
            out.elements::<f32>(),
            #[inline(always)]
            |x| self.0.value(x),
        );
        Ok(())
    }
}

impl<F: Row> Operator for Unary<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs(F::NAME, ins)?;
        Ok(smallvec![Output::laid_out(x.layout.dense(), F::TYPES.result(F::NAME, x.dtype)?)])
    }

    fn autocast(&self) -> Autocast {
        F::AUTOCAST
    }

    fn saves(&self, _: &[bool]) -> Saves {
        saves::<F>()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        backward(&self.0, at)
    }
}

/// The values that the derivative of a row reads.
pub(super) fn saves<F: Row>() -> Saves {
    match F::READS {
        Reads::Nothing => Saves::NOTHING,
        Reads::Input => Saves::input(0),
        Reads::Output => Saves::output(0),
    }
}

/// The gradient of a row's input.
pub(super) fn backward<F: Row>(row: &F, at: &Backward<'_>) -> Result<Grads> {
    let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
    let saved = match F::READS {
        Reads::Nothing => grad.clone(),
        Reads::Input => at.input(0)?,
        Reads::Output => at.output(0)?,
    };
    Ok(smallvec![Some(gradient(row.clone(), grad, &saved)?)])
}

/// The gradient of an elementwise function, computed in one pass without temporaries.
#[derive(Clone, Debug)]
pub(crate) struct UnaryBackward<F>(pub(crate) F);

impl<F: Row> Kernel for UnaryBackward<F> {
    fn name(&self) -> &'static str {
        F::BACKWARD
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a", "b"], |[g, v]| self.0.gradient(g, v)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([g, v], [out]) = call.split();
        let laid = Laid::of(out.layout(), [g.layout(), v.layout()]);
        if [g.dtype(), v.dtype()] != [DType::F32; 2] {
            operands::evaluate(
                &laid,
                [g, v],
                out,
                operands::common_type_of(&[g, v]),
                |[g, v]| self.0.gradient(g, v),
                |[g, v]| self.0.gradient(g, v),
                |[g, v]| self.0.gradient(g, v),
            );
            return Ok(());
        }
        let [g, v] = laid.operands::<f32, 2>([g, v]);
        zip(
            laid.shape(),
            g,
            v,
            out.elements::<f32>(),
            #[inline(always)]
            |g, v| self.0.gradient(g, v),
        );
        Ok(())
    }
}

impl<F: Row> Operator for UnaryBackward<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [g, v] = operands::inputs(F::BACKWARD, ins)?;
        want_float(F::BACKWARD, g.dtype)?;
        operands::equal_shapes(F::BACKWARD, &[g, v])?;
        Ok(smallvec![Output::laid_out(v.layout.dense(), g.dtype)])
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        slope::saves(self, wanted, self.read())
    }

    /// The formula is linear in the incoming gradient, so its derivative with respect to that gradient is the formula itself.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        slope::backward(self, at, self.read(), |grad| {
            let read = if F::READS == Reads::Nothing { grad.clone() } else { at.input(1)? };
            call_one(self.clone(), &[grad, &read])
        })
    }
}

impl<F: Row> UnaryBackward<F> {
    /// The inputs, other than the gradient, that are read and are not placeholders.
    fn read(&self) -> &'static [usize] {
        if F::READS == Reads::Nothing { &[] } else { &[1] }
    }
}

impl<F: Row> Expression for UnaryBackward<F> {
    const NAME: &'static str = F::BACKWARD;

    #[inline(always)]
    fn of<R: Real>(&self, [g, v, _]: [R; 3]) -> R {
        self.0.gradient(g, v)
    }
}

/// `() -> y`: replaces each element with a function of it. The input is `y`.
#[derive(Clone, Debug)]
struct UnaryInPlace<F> {
    row: F,
    /// The name of the method that was called.
    name: &'static str,
}

impl<F: Row> Kernel for UnaryInPlace<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::elementwise::change(call, &Text::of_expression(["y"], |[y]| self.row.value(y)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([], [y]) = call.split();
        let dtype = y.dtype();
        if dtype == DType::F32 {
            kernels::change(
                y.elements::<f32>(),
                #[inline(always)]
                |y| self.row.value(y),
            );
            return Ok(());
        }
        let (shape, nowhere) = (Dims::from_elem(y.layout().len(), 1), [0]);
        // Only `y` is read, so any operand can be passed.
        let zero = AnyOperand { bytes: &[0; 8], dtype: DType::I64, strides: &nowhere };
        let y = (y.bytes(), dtype);
        match dtype.accumulator() {
            DType::F32 => kernels::update_any::<f32>(&shape, y, zero, |y, _| self.row.value(y)),
            DType::F64 => kernels::update_any::<f64>(&shape, y, zero, |y, _| self.row.value(y)),
            _ => kernels::update_any::<i64>(&shape, y, zero, |y, _| self.row.value(Whole(y)).0),
        }
        Ok(())
    }
}

impl<F: Row> Operator for UnaryInPlace<F> {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [y] = operands::inputs(self.name, ins)?;
        operands::want_holds(self.name, y.dtype, F::TYPES.result(self.name, y.dtype)?)?;
        Ok(smallvec![Output::in_place(0, &y)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        operands::without_gaps(layout)
    }

    fn autocast(&self) -> Autocast {
        Autocast::AsGiven
    }

    fn saves(&self, _: &[bool]) -> Saves {
        saves::<F>()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        backward(&self.row, at)
    }
}

/// Changes every element as a row of the table defines.
#[track_caller]
pub(super) fn change<F: Row>(y: &Tensor, row: F) -> Result<()> {
    change_as(F::IN_PLACE, y, row)
}

/// Like [`change`], under another method's name.
#[track_caller]
pub(super) fn change_as<F: Row>(name: &'static str, y: &Tensor, row: F) -> Result<()> {
    call(UnaryInPlace { row, name }, &[y]).map(drop)
}

macro_rules! unary {
    (@label $name:ident) => { stringify!($name) };
    (@label $name:ident $label:literal) => { $label };
    (@in_place $name:ident $row:ident [$($field:ident)*]) => {};
    (@in_place $name:ident $row:ident [$($field:ident)*] $in_place:ident) => {
        impl Tensor {
            #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
            ///
            /// # Errors
            /// The same errors as [`Tensor::add_`], or if the dtype cannot hold the result.
            #[track_caller]
            pub fn $in_place(&self $(, $field: f64)*) -> Result<()> {
                super::unary::change(self, $row { $($field),* })
            }
        }
    };
    ($(
        $(#[$doc:meta])*
        $vis:vis $name:ident $(named $label:literal)? => $row:ident $({ $($field:ident),* })? over $domain:ident of $types:ident
            $(autocast $cast:ident)? $(in place $in_place:ident)? {
            |$x:ident| $value:expr,
            reads $reads:ident,
            |$g:ident, $v:ident| $gradient:expr
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $row { $($(pub(crate) $field: f64),*)? }

        impl Row for $row {
            const NAME: &'static str = unary!(@label $name $($label)?);
            const IN_PLACE: &'static str = concat!(unary!(@label $name $($label)?), "_");
            const BACKWARD: &'static str = concat!(unary!(@label $name $($label)?), "_backward");
            const READS: Reads = Reads::$reads;
            const TYPES: Types = Types::$types;
            const AUTOCAST: Autocast = [$(Autocast::$cast,)? Autocast::AsGiven][0];
            #[inline(always)]
            fn value<R: Real>(&self, $x: R) -> R {
                $(let $row { $($field),* } = self; $(let $field = R::of(*$field);)*)?
                $value
            }
            #[inline(always)]
            #[allow(unused_variables, reason = "a gradient need not read everything")]
            fn gradient<R: Real>(&self, $g: R, $v: R) -> R {
                $(let $row { $($field),* } = self; $(let $field = R::of(*$field);)*)?
                $gradient
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// If the function does not support the dtype, or memory runs out.
            #[track_caller]
            $vis fn $name(&self $($(, $field: f64)*)?) -> Result<Tensor> {
                call_one(Unary($row { $($($field),*)? }), &[self])
            }
        }

        unary!(@in_place $name $row [$($($field)*)?] $($in_place)?);
    )*

    /// Cases for the conformance suite: every row.
    pub(crate) fn cases() -> Vec<Case> {
        vec![$(case($row { $($($field: 1.5),*)? }, Domain::$domain)),*]
    }
    };
}

pub(crate) use unary;

/// The gradient of a row's input, from the output's gradient and the input (for ReLU, the output works too).
#[track_caller]
pub(crate) fn gradient<F: Row>(row: F, grad: &Tensor, read: &Tensor) -> Result<Tensor> {
    call_one(UnaryBackward(row), &[grad, read])
}

/// A row's case for the suite.
pub(crate) fn case<F: Row>(row: F, domain: Domain) -> Case {
    let op = Unary(row.clone());
    let values = move |ins: &[Vec<f64>]| vec![ins[0].iter().map(|&x| row.value(x)).collect()];
    Case::new(F::NAME, &[&[3, 4]], move |ins| call(op.clone(), ins)).over(domain).expect(values)
}
