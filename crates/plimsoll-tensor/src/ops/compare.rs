//! Comparisons, tests of numbers, and logic on what they answer: conditions, a byte each.

use smallvec::smallvec;

use super::elementwise::{self, expanded};
use super::want_dtype;
use crate::cpu::kernels::elementwise::{Operand, map, zip};
use crate::dtype::{DType, Element, by_dtype};
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims};
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::road::{call, call_one};
use crate::suite::Case;
use crate::tensor::Tensor;

/// The type of conditions.
pub(super) const CONDITION: DType = DType::U8;

/// How two elements compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Eq => "eq",
            Order::Ne => "ne",
            Order::Lt => "lt",
            Order::Le => "le",
            Order::Gt => "gt",
            Order::Ge => "ge",
        }
    }

    /// With each order a loop of its own.
    #[inline(always)]
    fn zip<T: Copy + PartialOrd + Sync>(
        self,
        shape: &[usize],
        a: Operand<'_, T>,
        b: Operand<'_, T>,
        out: &mut [u8],
    ) {
        macro_rules! each {
            ($sign:tt) => {
                zip(
                    shape,
                    a,
                    b,
                    out,
                    #[inline(always)]
                    |a, b| u8::from(a $sign b),
                )
            };
        }
        match self {
            Order::Eq => each!(==),
            Order::Ne => each!(!=),
            Order::Lt => each!(<),
            Order::Le => each!(<=),
            Order::Gt => each!(>),
            Order::Ge => each!(>=),
        }
    }
}

/// `a, b -> condition`, broadcast.
#[derive(Clone, Copy, Debug)]
struct Compare(Order);

impl Kernel for Compare {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([a, b], [out]) = call.split();
        let shape = out.shape();
        let strides = [&a, &b].map(|x| expanded(x, shape));
        by_dtype!(a.dtype(), T => {
            let a = Operand { data: a.elements::<T>(), strides: &strides[0] };
            let b = Operand { data: b.elements::<T>(), strides: &strides[1] };
            self.0.zip(shape, a, b, out.words());
        });
        Ok(())
    }
}

impl Operator for Compare {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = elementwise::inputs(self.name(), ins)?;
        want_dtype(self.name(), b.dtype, a.dtype)?;
        let shape = layout::broadcast(self.name(), a.shape(), b.shape())?;
        Ok(smallvec![Output::new(&shape, CONDITION)])
    }
}

/// `x -> condition`: each element against one value.
#[derive(Clone, Copy, Debug)]
struct CompareValue {
    order: Order,
    value: f64,
}

impl Kernel for CompareValue {
    fn name(&self) -> &'static str {
        self.order.name()
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        let (shape, nowhere) = (out.shape(), Dims::from_elem(0, out.shape().len()));
        by_dtype!(x.dtype(), T => {
            // Integers are compared with fractions as real numbers are.
            if T::DTYPE.is_float() || (self.value as T) as f64 == self.value {
                let x = Operand { data: x.elements::<T>(), strides: x.strides() };
                let value = Operand { data: &[self.value as T], strides: &nowhere };
                self.order.zip(shape, x, value, out.words());
            } else {
                let (x, value, order) = (Operand { data: x.elements::<T>(), strides: x.strides() }, self.value, self.order);
                let holds = |x: T| match order {
                    Order::Eq => false,
                    Order::Ne => true,
                    Order::Lt | Order::Le => (x as f64) < value,
                    Order::Gt | Order::Ge => (x as f64) > value,
                };
                map(shape, x, out.words::<u8>(), |x| u8::from(holds(x)));
            }
        });
        Ok(())
    }
}

impl Operator for CompareValue {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = elementwise::inputs(self.name(), ins)?;
        Ok(smallvec![Output::new(x.shape(), CONDITION)])
    }
}

macro_rules! comparisons {
    ($($name:ident, $scalar:ident => $order:ident, $sign:literal;)*) => {
        impl Tensor {
            $(
                #[doc = concat!("Where `self ", $sign, " other`, broadcast: a condition. As `torch.", stringify!($name), "`.")]
                ///
                /// # Errors
                /// Types that differ; shapes that do not broadcast; out of memory.
                pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                    call_one(Compare(Order::$order), &[self, other])
                }

                #[doc = concat!("Where `self ", $sign, " value`: a condition. As `torch.", stringify!($name), "` with a number.")]
                ///
                /// # Errors
                /// Out of memory.
                pub fn $scalar(&self, value: f64) -> Result<Tensor> {
                    call_one(CompareValue { order: Order::$order, value }, &[self])
                }
            )*
        }

        const ORDERS: &[Order] = &[$(Order::$order),*];
    };
}
comparisons! {
    eq, eq_scalar => Eq, "==";
    ne, ne_scalar => Ne, "!=";
    lt, lt_scalar => Lt, "<";
    le, le_scalar => Le, "<=";
    gt, gt_scalar => Gt, ">";
    ge, ge_scalar => Ge, ">=";
}

/// What the conformance suite runs.
pub(crate) fn cases() -> Vec<Case> {
    let holds = |order: Order, a: f64, b: f64| {
        f64::from(u8::from(match order {
            Order::Eq => a == b,
            Order::Ne => a != b,
            Order::Lt => a < b,
            Order::Le => a <= b,
            Order::Gt => a > b,
            Order::Ge => a >= b,
        }))
    };
    let case = |&order: &Order| {
        Case::new(order.name(), &[&[3, 4], &[4]], move |ins| {
            let mut outs = call(Compare(order), ins)?;
            outs.extend(call(CompareValue { order, value: 0.0 }, &ins[..1])?);
            Ok(outs)
        })
        .expect(move |ins| {
            let (a, b) = (&ins[0], &ins[1]);
            let pairs = (0..12).map(|i| holds(order, a[i], b[i % 4])).collect();
            vec![pairs, a.iter().map(|&x| holds(order, x, 0.0)).collect()]
        })
        .without_derivative()
    };
    ORDERS.iter().map(case).collect()
}
