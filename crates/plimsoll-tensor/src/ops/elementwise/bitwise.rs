//! Bitwise operations on integers: `bitwise_and` and similar functions, and the operators `& | ^ !`. On `bool` they are
//! logical.

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::Whole;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::tensor::Tensor;

/// `a, b -> out`, broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    And,
    Or,
    Xor,
    LeftShift,
    RightShift,
}

impl Bits {
    /// Left shifts by the width or more give 0; right shifts give the sign.
    #[inline(always)]
    fn of(self, a: i64, b: i64) -> i64 {
        let shift = u32::try_from(b).unwrap_or(u32::MAX);
        match self {
            Bits::And => a & b,
            Bits::Or => a | b,
            Bits::Xor => a ^ b,
            Bits::LeftShift => a.checked_shl(shift).unwrap_or(0),
            Bits::RightShift => a >> shift.min(63),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Bits::And => "a & b",
            Bits::Or => "a | b",
            Bits::Xor => "a ^ b",
            Bits::LeftShift => "b < 0 || b > 63 ? 0 : a << b",
            Bits::RightShift => "a >> (b < 0 || b > 63 ? 63 : b)",
        }
    }
}

impl Kernel for Bits {
    fn name(&self) -> &'static str {
        match self {
            Bits::And => "bitwise_and",
            Bits::Or => "bitwise_or",
            Bits::Xor => "bitwise_xor",
            Bits::LeftShift => "bitwise_left_shift",
            Bits::RightShift => "bitwise_right_shift",
        }
    }

    fn expression(&self) -> Option<String> {
        Some(self.text().to_owned())
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::elementwise::of_operator(call, self.text(), Some(DType::I64))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([a, b], [out]) = call.split();
        let laid = Laid::of(out.layout(), [a.layout(), b.layout()]);
        operands::evaluate(
            &laid,
            [a, b],
            out,
            DType::I64,
            |_| unreachable!("inferred"),
            |_| unreachable!("inferred"),
            |[a, b]| Whole(self.of(a.0, b.0)),
        );
        Ok(())
    }
}

impl Operator for Bits {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [a, b] = operands::inputs(self.name(), ins)?;
        let dtype = operands::common_type(ins);
        if dtype.is_float() {
            return Err(Error::DType { op: self.name(), expected: "integers or booleans", got: dtype });
        }
        if dtype == DType::Bool && matches!(self, Bits::LeftShift | Bits::RightShift) {
            return Err(Error::DType { op: self.name(), expected: "integers", got: dtype });
        }
        let shape = layout::broadcast(self.name(), a.shape(), b.shape())?;
        Ok(smallvec![Output::laid_out(operands::layout_for(&shape, ins), dtype)])
    }
}

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident $scalar:ident $op:ident;)*) => {$(
        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// If a dtype is floating-point, the shapes do not broadcast, or memory runs out.
            #[track_caller]
            pub fn $name(&self, other: impl AsRef<Tensor>) -> Result<Tensor> {
                let other = other.as_ref();
                call_one(Bits::$op, &[self, other])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with the same number for all elements.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($name), "`].")]
            #[track_caller]
            pub fn $scalar(&self, other: i64) -> Result<Tensor> {
                // The number takes the tensor's dtype, even if the tensor is a scalar.
                let dtype = if self.dtype() == DType::Bool { DType::I64 } else { self.dtype() };
                call_one(Bits::$op, &[self, &Tensor::from_slice(&[other], &[], self.device())?.to_dtype(dtype)?])
            }
        }
    )*};
}

bits! {
    /// Bitwise AND, broadcast: `a & b`. Like `torch.bitwise_and`.
    bitwise_and bitwise_and_scalar And;
    /// Bitwise OR, broadcast: `a | b`. Like `torch.bitwise_or`.
    bitwise_or bitwise_or_scalar Or;
    /// Bitwise exclusive OR, broadcast: `a ^ b`. Like `torch.bitwise_xor`.
    bitwise_xor bitwise_xor_scalar Xor;
    /// Left shift, broadcast. Like `torch.bitwise_left_shift`.
    bitwise_left_shift bitwise_left_shift_scalar LeftShift;
    /// Arithmetic right shift, broadcast. Like `torch.bitwise_right_shift`.
    bitwise_right_shift bitwise_right_shift_scalar RightShift;
}

impl Tensor {
    /// Bitwise NOT: `!&a`. Like `torch.bitwise_not`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let mask = Tensor::from_slice(&[true, false], &[2], &Device::cpu())?;
    /// assert_eq!((!&mask)?.to_vec::<bool>()?, [false, true]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the dtype is floating-point, or memory runs out.
    #[track_caller]
    pub fn bitwise_not(&self) -> Result<Tensor> {
        match self.dtype() {
            DType::Bool => self.logical_not(),
            _ => self.bitwise_xor_scalar(-1),
        }
    }
}
