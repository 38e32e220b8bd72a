//! Selects elements by a condition: `where`, `masked_fill`, `masked_select`.

use smallvec::smallvec;

use crate::cpu::kernels::elementwise::{Operand, update};
use crate::cpu::kernels::mask::{choose, compress, expand_into};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, Scalar, result_type};
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims, Layout};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands::{self, expanded};
use crate::ops::{want_dtype, want_values};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// Fails unless the dtype is `bool`.
fn want_mask(op: &'static str, dtype: DType) -> Result<()> {
    want_dtype(op, dtype, DType::Bool)
}

/// `condition, a, b -> out`, broadcast.
#[derive(Clone, Copy, Debug)]
struct Where;

impl Kernel for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let dtype = call.ins[1].dtype;
        cuda::elementwise::of_operator(call, "a != C(0) ? b : c", Some(dtype))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([mask, a, b], [out]) = call.split();
        let shape = out.shape();
        let strides = [&mask, &a, &b].map(|x| expanded(x, shape));
        let mask = Operand { data: mask.words(), strides: &strides[0] };
        by_word!(a.dtype(), W => {
            let a = Operand { data: a.words::<W>(), strides: &strides[1] };
            choose(shape, mask, a, Operand { data: b.words(), strides: &strides[2] }, out.words());
        });
        Ok(())
    }
}

impl Operator for Where {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [mask, a, b] = operands::inputs("where", ins)?;
        want_mask("where", mask.dtype)?;
        want_dtype("where", b.dtype, a.dtype)?;
        let values = layout::broadcast("where", a.shape(), b.shape())?;
        let shape = layout::broadcast("where", mask.shape(), &values)?;
        Ok(smallvec![Output::new(&shape, a.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(0)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None, None]) };
        let mask = at.input(0)?;
        let side = |side: usize, filled: bool| {
            let to_side =
                || call_one(MaskedFill { value: 0.0, filled }, &[grad, &mask])?.sum_to(at.shape(side));
            at.wants(side).then(to_side).transpose()
        };
        Ok(smallvec![None, side(1, false)?, side(2, true)?])
    }
}

/// `x, mask -> out`: a value where the mask equals `filled`, elsewhere `x`; broadcast.
#[derive(Clone, Copy, Debug)]
struct MaskedFill {
    value: f64,
    filled: bool,
}

impl Kernel for MaskedFill {
    fn name(&self) -> &'static str {
        "masked_fill"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (dtype, value) = (call.ins[0].dtype, self.value);
        let (filled, kept) = (format!("C({value:?})"), "a".to_owned());
        let (then, otherwise) = if self.filled { (filled, kept) } else { (kept, filled) };
        cuda::elementwise::of_operator(call, &format!("b != C(0) ? {then} : {otherwise}"), Some(dtype))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, mask], [out]) = call.split();
        let (shape, nowhere) = (out.shape(), Dims::from_elem(0, out.shape().len()));
        let strides = [&x, &mask].map(|x| expanded(x, shape));
        let mask = Operand { data: mask.words(), strides: &strides[1] };
        by_word!(x.dtype(), W => {
            let word: W = operands::word(x.dtype(), self.value);
            let value = Operand { data: &[word], strides: &nowhere };
            let x = Operand { data: x.words::<W>(), strides: &strides[0] };
            let (a, b) = if self.filled { (value, x) } else { (x, value) };
            choose(shape, mask, a, b, out.words());
        });
        Ok(())
    }
}

impl Operator for MaskedFill {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, mask] = operands::inputs("masked_fill", ins)?;
        want_mask("masked_fill", mask.dtype)?;
        let shape = layout::broadcast("masked_fill", x.shape(), mask.shape())?;
        Ok(smallvec![Output::new(&shape, x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let zeroed = call_one(MaskedFill { value: 0.0, ..*self }, &[grad, &at.input(1)?])?;
        Ok(smallvec![Some(zeroed.sum_to(at.shape(0))?), None])
    }
}

/// `y, mask -> y` in place: a value where the mask is set, broadcast.
#[derive(Clone, Copy, Debug)]
struct MaskedFillInPlace {
    value: f64,
}

impl Kernel for MaskedFillInPlace {
    fn name(&self) -> &'static str {
        "masked_fill_"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::elementwise::change(call, &format!("a != C(0) ? C({:?}) : y", self.value))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([mask], [y]) = call.split();
        let strides = expanded(&mask, y.shape());
        let (shape, dtype) = (Dims::from_slice(y.shape()), y.dtype());
        let mask = Operand { data: mask.words::<u8>(), strides: &strides };
        by_word!(dtype, W => {
            let word: W = operands::word(dtype, self.value);
            update(&shape, y.words::<W>(), mask, |y, mask| if mask != 0 { word } else { y });
        });
        Ok(())
    }
}

impl Operator for MaskedFillInPlace {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [y, mask] = operands::inputs("masked_fill_", ins)?;
        want_mask("masked_fill_", mask.dtype)?;
        if mask.layout.expand(y.shape()).is_none() {
            let message = format!("a mask {:?} does not broadcast to {:?}", mask.shape(), y.shape());
            return Err(Error::shape("masked_fill_", message));
        }
        Ok(smallvec![Output::in_place(0, &y)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input != 0 || layout.is_contiguous()
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let zeroed = call_one(MaskedFill { value: 0.0, filled: true }, &[grad, &at.input(1)?])?;
        Ok(smallvec![Some(zeroed), None])
    }
}

/// The scratch memory in which a GPU counts the set elements before each part of a mask.
fn masked_scratch(device: DeviceFacts) -> u64 {
    if device.kind == DeviceKind::Cuda { cuda::indexing::mask::MASKED_SCRATCH_BYTES } else { 0 }
}

/// `x, mask -> out`, a vector; both inputs have the same shape, and `count` elements of the mask are set.
#[derive(Clone, Copy, Debug)]
struct MaskedSelect {
    count: usize,
}

impl Kernel for MaskedSelect {
    fn name(&self) -> &'static str {
        "masked_select"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::mask::masked(call, false)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x, mask], [out]) = call.split();
        let mask = Operand { data: mask.words(), strides: mask.strides() };
        let all = by_word!(x.dtype(), W => {
            compress(x.shape(), mask, Operand { data: x.words::<W>(), strides: x.strides() }, out.words())
        });
        match all {
            true => Ok(()),
            false => {
                Err(Error::argument("masked_select", "the mask changed while its elements were counted"))
            }
        }
    }
}

impl Operator for MaskedSelect {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x, mask] = operands::inputs("masked_select", ins)?;
        want_mask("masked_select", mask.dtype)?;
        operands::equal_shapes("masked_select", &[x, mask])?;
        Ok(smallvec![Output::new(&[self.count], x.dtype)])
    }

    fn scratch(&self, _: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        masked_scratch(device)
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        Ok(smallvec![Some(call_one(MaskedSelectBackward, &[grad, &at.input(1)?])?), None])
    }
}

/// `grad, mask -> grad of x`: puts the gradient's elements, in order, where the mask is set; zeros elsewhere.
#[derive(Clone, Copy, Debug)]
struct MaskedSelectBackward;

impl Kernel for MaskedSelectBackward {
    fn name(&self) -> &'static str {
        "masked_select_backward"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::mask::masked(call, true)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad, mask], [out]) = call.split();
        let operand = Operand { data: mask.words(), strides: mask.strides() };
        by_word!(grad.dtype(), W => {
            expand_into::<W>(mask.shape(), operand, (grad.words(), grad.strides()[0]), out.words());
        });
        Ok(())
    }
}

impl Operator for MaskedSelectBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad, mask] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::new(mask.shape(), grad.dtype)])
    }

    fn scratch(&self, _: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        masked_scratch(device)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::input(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None, None]) };
        let op = MaskedSelect { count: at.shape(0)[0] };
        Ok(smallvec![Some(call_one(op, &[grad, &at.input(1)?])?), None])
    }
}

/// Fails unless an integer dtype can hold the value.
fn want_fit(op: &'static str, dtype: DType, value: f64) -> Result<()> {
    let (low, high) = match dtype {
        // As in PyTorch, negative values wrap.
        DType::U8 => (-255.0, 255.0),
        DType::I16 => (-32_768.0, 32_767.0),
        DType::I32 => (-2_147_483_648.0, 2_147_483_647.0),
        DType::I64 => (-9.3e18, 9.3e18),
        _ => return Ok(()),
    };
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{value} does not fit in {}: convert with `to_dtype`", dtype.name())))
}

/// One of the two sides of [`Tensor::where_cond`]: a tensor or a number.
pub trait WhereValue {
    /// The tensor, or the number.
    fn side(&self) -> std::result::Result<&Tensor, Scalar>;
}

impl<T: AsRef<Tensor>> WhereValue for T {
    fn side(&self) -> std::result::Result<&Tensor, Scalar> {
        Ok(self.as_ref())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl WhereValue for $number {
            fn side(&self) -> std::result::Result<&Tensor, Scalar> {
                Err((*self).into())
            }
        }
    )*};
}
numbers!(f64, f32, i64, i32, u8);

impl Tensor {
    /// `a` where this condition is true, `b` elsewhere, in their promoted dtype; all three broadcast, and each side may be a number.
    /// Like `torch.where(self, a, b)`; `where` is a keyword in Rust.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], &[2], &Device::cpu())?;
    /// assert_eq!(x.gt_scalar(0.0)?.where_cond(&x, 0.5)?.to_vec::<f32>()?, [0.5, 2.0]);
    /// assert_eq!(x.gt_scalar(0.0)?.where_cond(1, -1)?.to_vec::<i64>()?, [-1, 1]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the condition is not `bool`, the shapes do not broadcast, or memory runs out.
    #[track_caller]
    #[allow(clippy::needless_pass_by_value, reason = "what is passed is a reference or a number")]
    pub fn where_cond(&self, a: impl WhereValue, b: impl WhereValue) -> Result<Tensor> {
        let (a, b) = (a.side(), b.side());
        let dtype = match (a, b) {
            (Ok(a), Ok(b)) => result_type([a, b].map(|x| (x.dtype(), x.rank() > 0))).unwrap_or(a.dtype()),
            (Ok(x), Err(number)) | (Err(number), Ok(x)) => number.result_type(x.dtype()),
            (Err(Scalar::Int(_)), Err(Scalar::Int(_))) => DType::I64,
            (Err(_), Err(_)) => DType::F32,
        };
        let (a, b) = (self.where_side(a, dtype)?, self.where_side(b, dtype)?);
        call_one(Where, &[self, &a, &b])
    }

    #[track_caller]
    fn where_side(&self, side: std::result::Result<&Tensor, Scalar>, dtype: DType) -> Result<Tensor> {
        match side {
            Ok(tensor) => tensor.to_dtype(dtype),
            Err(number) => {
                want_fit("where", dtype, number.to_f64())?;
                Tensor::full(&[], number.to_f64(), dtype, self.device())
            }
        }
    }

    /// A copy with `value` where the mask is set; both broadcast. Like `Tensor.masked_fill`.
    ///
    /// # Errors
    /// If the mask is not `bool`, the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn masked_fill(&self, mask: impl AsRef<Tensor>, value: f64) -> Result<Tensor> {
        let mask = mask.as_ref();
        want_fit("masked_fill", self.dtype(), value)?;
        call_one(MaskedFill { value, filled: true }, &[self, mask])
    }

    /// [`Tensor::masked_fill`] in place: the mask is broadcast to this shape.
    ///
    /// # Errors
    /// The same errors as [`Tensor::masked_fill`] and [`Tensor::add_`].
    #[track_caller]
    pub fn masked_fill_(&self, mask: impl AsRef<Tensor>, value: f64) -> Result<()> {
        let mask = mask.as_ref();
        want_fit("masked_fill_", self.dtype(), value)?;
        call(MaskedFillInPlace { value }, &[self, mask]).map(drop)
    }

    /// Returns the elements where the mask is set, in row-major order, as a vector; both broadcast. Like `torch.masked_select`.
    ///
    /// # Errors
    /// If the mask is not `bool`, the shapes do not broadcast, the device computes no values (the size of the result
    /// depends on the mask's values), or memory runs out.
    #[track_caller]
    pub fn masked_select(&self, mask: impl AsRef<Tensor>) -> Result<Tensor> {
        let mask = mask.as_ref();
        want_mask("masked_select", mask.dtype())?;
        want_values("masked_select", "the mask", self.device())?;
        let shape = layout::broadcast("masked_select", self.shape(), mask.shape())?;
        let (x, mask) = (self.expand(&shape)?, mask.expand(&shape)?);
        let count = mask.count_nonzero()?.item::<i64>()? as usize;
        call_one(MaskedSelect { count }, &[&x, &mask])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let masked = |case: Case, shape: &[usize]| case.and(shape, DType::Bool, Domain::Below(2));
    let either = |ins: &[Vec<f64>]| {
        let at = |i: usize| if ins[2][i] != 0.0 { ins[0][i] } else { ins[1][i % 4] };
        vec![(0..12).map(at).collect()]
    };
    let filled = |ins: &[Vec<f64>]| {
        vec![ins[0].iter().enumerate().map(|(i, &x)| if ins[1][i / 4] != 0.0 { -2.0 } else { x }).collect()]
    };
    let fill = MaskedFill { value: -2.0, filled: true };
    let mask = |x: &Tensor| Tensor::from_slice(&[true, false, false, true, true, false], &[2, 3], x.device());
    let selected = |ins: &[Vec<f64>]| vec![vec![ins[0][0], ins[0][3], ins[0][4]]];
    vec![
        masked(Case::new("where", &[&[3, 4], &[4]], |ins| call(Where, &[ins[2], ins[0], ins[1]])), &[3, 4])
            .expect(either),
        masked(Case::new("masked_fill", &[&[3, 4]], move |ins| call(fill, ins)), &[3, 1]).expect(filled),
        masked(
            Case::new("masked_fill_", &[&[3, 4]], |ins| {
                call(MaskedFillInPlace { value: -2.0 }, &[ins[0], ins[1]])
            }),
            &[3, 1],
        )
        .expect(filled)
        .without_derivative(),
        Case::new("masked_select", &[&[2, 3]], move |ins| {
            call(MaskedSelect { count: 3 }, &[ins[0], &mask(ins[0])?])
        })
        .expect(selected),
        Case::new("masked_select_backward", &[&[3]], move |ins| {
            call(MaskedSelectBackward, &[ins[0], &mask(ins[0])?])
        }),
    ]
}
