//! Functions of two elements, broadcast: one row of the table makes an operator; and the signs `+ - * /`.
//!
//! A row has the function and the gradient of each side, as expressions of the incoming gradient `g` and of
//! both elements, with what each reads.

use std::fmt::Debug;
use std::marker::PhantomData;

use smallvec::smallvec;

use super::elementwise::{self, Laid};
use super::real::Real;
use super::traced::{Text, Traced};
use super::want_number;
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::elementwise::{zip, zip3};
use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::dtype::result_type;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout;
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::road::{call, call_one};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// Which of both elements an expression reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Neither,
    Other,
    Both,
}

/// Of which types a row is, and of which its results are. Inputs of two types meet in one: [`result_type`].
///
/// [`result_type`]: crate::result_type
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Types {
    /// Of all, in their common type.
    All,
    /// Of numbers, in their common type.
    Numbers,
    /// Of floating point; what is not becomes `float32`.
    Floats,
    /// Of all; the results are true or false.
    Truth,
}

impl Types {
    /// The type in which two elements meet.
    fn compute(self, common: DType) -> DType {
        if self == Types::Floats { common.or_float() } else { common }
    }

    /// The type of the results.
    fn result(self, op: &'static str, common: DType) -> Result<DType> {
        match self {
            Types::Truth => Ok(DType::Bool),
            Types::Numbers => want_number(op, common).map(|()| common),
            Types::All | Types::Floats => Ok(self.compute(common)),
        }
    }
}

/// A row of the table.
pub(crate) trait Row: Clone + Copy + Debug + Default + Send + Sync + 'static {
    const NAME: &'static str;
    const BACKWARD: &'static str;
    /// What the gradients of the left and of the right side read, beside `g`.
    const READS: [Reads; 2];
    const TYPES: Types;
    fn value<R: Real>(a: R, b: R) -> R;
    fn left<R: Real>(g: R, a: R, b: R) -> R;
    fn right<R: Real>(g: R, a: R, b: R) -> R;
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Binary<F>(F);

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
        let text = Text::of_expression(["a", "b"], |[a, b]| F::value(a, b));
        cuda::elementwise::of_operator(call, &text, compute)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([a, b], [out]) = call.split();
        let laid = Laid::of(out.layout(), [a.layout(), b.layout()]);
        if [a.dtype(), b.dtype(), out.dtype()] != [DType::F32; 3] {
            elementwise::evaluate(
                &laid,
                [a, b],
                out,
                F::TYPES.compute(elementwise::common_type_of(&[a, b])),
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
        let [a, b] = elementwise::inputs(F::NAME, ins)?;
        let common = if a.dtype == b.dtype { a.dtype } else { elementwise::common_type(ins) };
        let dtype = F::TYPES.result(F::NAME, common)?;
        if a.shape() == b.shape() {
            return Ok(smallvec![Output::laid_out(elementwise::layout_for(a.shape(), ins), dtype)]);
        }
        let shape = layout::broadcast(F::NAME, a.shape(), b.shape())?;
        Ok(smallvec![Output::laid_out(elementwise::layout_for(&shape, ins), dtype)])
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let side = |side: usize| match F::READS[side] {
            Reads::Neither => Saves::NOTHING,
            Reads::Other => Saves::input(1 - side),
            Reads::Both => Saves::input(0).and(Saves::input(1)),
        };
        side(0).only_if(wanted[0]).and(side(1).only_if(wanted[1]))
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let side = |side: usize| {
            at.wants(side).then(|| side_of::<F>(at, grad, side)?.sum_to(at.shape(side))).transpose()
        };
        Ok(smallvec![side(0)?, side(1)?])
    }
}

/// The gradient of one side, in the output's shape.
fn side_of<F: Row>(at: &Backward<'_>, grad: &Tensor, side: usize) -> Result<Tensor> {
    // What is not read is stood for by the gradient itself.
    let [a, b] = match F::READS[side] {
        Reads::Neither => [grad.clone(), grad.clone()],
        Reads::Other if side == 0 => [grad.clone(), at.input(1)?],
        Reads::Other => [at.input(0)?, grad.clone()],
        Reads::Both => [at.input(0)?, at.input(1)?],
    };
    if is_grad_enabled() || F::READS[side] == Reads::Neither {
        return Traced::evaluate([grad, &a, &b], |[g, a, b]| match side {
            0 => F::left(g, a, b),
            _ => F::right(g, a, b),
        });
    }
    call_one(BinaryBackward::<F> { side, row: PhantomData }, &[grad, &a, &b])
}

/// The gradient of one side, in one pass and without temporaries.
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
            elementwise::evaluate(
                &laid,
                [g, a, b],
                out,
                elementwise::common_type_of(&[g, a, b]),
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
        let [g, ..] = elementwise::inputs::<3>(F::BACKWARD, ins)?;
        Ok(smallvec![Output::laid_out(g.layout.dense(), g.dtype)])
    }
}

macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $name:ident => $row:ident over $domain:ident of $types:ident {
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
            const BACKWARD: &'static str = concat!(stringify!($name), "_backward");
            const READS: [Reads; 2] = [Reads::$left_reads, Reads::$right_reads];
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
            /// Shapes that do not broadcast, types without such a function, two devices, out of memory: as for
            /// every operation on two tensors.
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                call_one(Binary($row), &[self, other])
            }
        }
    )*

    /// What the conformance suite runs: every row.
    pub(crate) fn cases() -> Vec<Case> {
        [$(row_cases($row, Domain::$domain)),*].into_iter().flatten().collect()
    }
    };
}

fn row_cases<F: Row>(row: F, domain: Domain) -> Vec<Case> {
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

binary! {
    /// `self + other`, broadcast.
    add => Sum over Any of All {
        |a, b| a + b,
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// `self - other`, broadcast.
    sub => Difference over Any of Numbers {
        |a, b| a - b,
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| -g
    }

    /// `self * other`, element by element, broadcast.
    mul => Product over Any of All {
        |a, b| a * b,
        left reads Other: |g, a, b| g * b,
        right reads Other: |g, a, b| g * a
    }

    /// `self / other`, element by element, broadcast.
    div => Quotient over Positive of Floats {
        |a, b| a / b,
        left reads Other: |g, a, b| g / b,
        right reads Both: |g, a, b| -g * ((a / b) / b)
    }

    /// `self / (1 + e^-self) * other`, broadcast: SwiGLU's product of a gate and a value. It keeps the two, nothing else.
    swiglu => SwiGlu over Any of Floats {
        |a, b| a / (R::of(1.0) + (-a).exp()) * b,
        left reads Both: |g, a, b| {
            let s = R::of(1.0) / (R::of(1.0) + (-a).exp());
            g * b * (s * (R::of(1.0) + a * (R::of(1.0) - s)))
        },
        right reads Other: |g, a, b| g * (a / (R::of(1.0) + (-a).exp()))
    }

    /// Whether `self` equals `other`, broadcast: a tensor of `bool`.
    eq => Equal over Any of Truth {
        |a, b| a.equals(b, R::of(1.0), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self` differs from `other`, which what is not a number does from all, broadcast: a tensor of `bool`.
    ne => NotEqual over Any of Truth {
        |a, b| a.equals(b, R::of(0.0), R::of(1.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self <= other`, broadcast: a tensor of `bool`.
    le => AtMost over Any of Truth {
        |a, b| a.at_most(b, R::of(1.0), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self >= other`, broadcast: a tensor of `bool`.
    ge => AtLeast over Any of Truth {
        |a, b| b.at_most(a, R::of(1.0), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self < other`, broadcast: a tensor of `bool`.
    lt => Less over Any of Truth {
        |a, b| a.at_most(b, a.equals(b, R::of(0.0), R::of(1.0)), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }

    /// Whether `self > other`, broadcast: a tensor of `bool`.
    gt => Greater over Any of Truth {
        |a, b| b.at_most(a, a.equals(b, R::of(0.0), R::of(1.0)), R::of(0.0)),
        left reads Neither: |g, a, b| g,
        right reads Neither: |g, a, b| g
    }
}

impl Tensor {
    /// Summed over whatever broadcasting repeated, so that it has `shape` again; itself where it has.
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

/// `&a + &b`, `&a + 2.0`, `&a + 2` and `2.0 + &a`, each with its sign.
macro_rules! sign {
    ($trait:ident, $method:ident, $scalar:ident) => {
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(self, other)
            }
        }
        sign!(@ $trait, $method, $scalar, f64);
        sign!(@ $trait, $method, $scalar, i64);
    };
    (@ $trait:ident, $method:ident, $scalar:ident, $number:ty) => {
        impl std::ops::$trait<$number> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, value: $number) -> Result<Tensor> {
                self.$scalar(value)
            }
        }
    };
}
sign!(Add, add, add_scalar);
sign!(Sub, sub, sub_scalar);
sign!(Mul, mul, mul_scalar);
sign!(Div, div, div_scalar);

impl std::ops::Add<&Tensor> for f64 {
    type Output = Result<Tensor>;
    fn add(self, tensor: &Tensor) -> Result<Tensor> {
        tensor.add_scalar(self)
    }
}

impl std::ops::Sub<&Tensor> for f64 {
    type Output = Result<Tensor>;
    fn sub(self, tensor: &Tensor) -> Result<Tensor> {
        tensor.affine(-1.0, self)
    }
}

impl std::ops::Mul<&Tensor> for f64 {
    type Output = Result<Tensor>;
    fn mul(self, tensor: &Tensor) -> Result<Tensor> {
        tensor.mul_scalar(self)
    }
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}
