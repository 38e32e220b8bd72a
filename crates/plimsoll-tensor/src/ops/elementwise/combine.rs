//! Operations on three tensors in one pass: `lerp`, `addcmul`, `addcdiv`, out of place and in place, without a temporary for
//! the product.

use smallvec::smallvec;

use super::operands::{self, Laid};
use super::real::{Real, Whole};
use super::traced::Text;
use crate::cpu::kernels::combine::update_by;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::{DType, result_type};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Layout};
use crate::operator::{Backward, Meta, Operator, Output, Outputs, Saves};
use crate::ops::{want_float, want_number, want_same};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// The function of `a, b, c`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Formula {
    /// `a + c · (b - a)`.
    Lerp,
    /// Like `Lerp`, with the same weight for all elements; `c` is not read.
    LerpBy(f64),
    /// `a + value · b · c`.
    Addcmul(f64),
    /// `a + value · b / c`.
    Addcdiv(f64),
}

/// `a + w · (b - a)`, computed from the closer end, so that the results at both ends are exact.
#[inline(always)]
fn lerp<R: Real>(a: R, b: R, w: R) -> R {
    let half = R::of(0.5);
    let from_start = a + w * (b - a);
    let from_end = b - (b - a) * (R::of(1.0) - w);
    // Nearer to the start: -0.5 < w < 0.5.
    half.at_most(w, from_end, w.at_most(-half, from_end, from_start))
}

impl Formula {
    #[inline(always)]
    fn value<R: Real>(self, a: R, b: R, c: R) -> R {
        match self {
            Formula::Lerp => lerp(a, b, c),
            Formula::LerpBy(weight) => lerp(a, b, R::of(weight)),
            Formula::Addcmul(value) => a + R::of(value) * b * c,
            Formula::Addcdiv(value) => a + R::of(value) * b / c,
        }
    }

    fn name(self, in_place: bool) -> &'static str {
        match (self, in_place) {
            (Formula::Lerp | Formula::LerpBy(_), false) => "lerp",
            (Formula::Lerp | Formula::LerpBy(_), true) => "lerp_",
            (Formula::Addcmul(_), false) => "addcmul",
            (Formula::Addcmul(_), true) => "addcmul_",
            (Formula::Addcdiv(_), false) => "addcdiv",
            (Formula::Addcdiv(_), true) => "addcdiv_",
        }
    }

    /// Checks the inputs. Returns the shape of the result.
    fn check(self, op: &'static str, ins: &[Meta<'_>]) -> Result<layout::Dims> {
        if ins.len() != self.inputs() {
            return Err(Error::argument(op, format!("needs {} tensors, got {}", self.inputs(), ins.len())));
        }
        want_same(op, ins)?;
        match self {
            Formula::Addcmul(_) => want_number(op, ins[0].dtype)?,
            _ => want_float(op, ins[0].dtype)?,
        }
        let mut shape = layout::Dims::from_slice(ins[0].shape());
        for other in &ins[1..] {
            shape = layout::broadcast(op, &shape, other.shape())?;
        }
        Ok(shape)
    }

    fn inputs(self) -> usize {
        if matches!(self, Formula::LerpBy(_)) { 2 } else { 3 }
    }

    fn saves(self, wanted: &[bool]) -> Saves {
        let want = |i: usize| wanted.get(i).copied().unwrap_or(false);
        let saved = |i: usize, needed: bool| Saves::input(i).only_if(needed);
        match self {
            Formula::LerpBy(_) => Saves::NOTHING,
            Formula::Lerp => saved(0, want(2)).and(saved(1, want(2))).and(saved(2, want(0) || want(1))),
            Formula::Addcmul(_) => saved(1, want(2)).and(saved(2, want(1))),
            Formula::Addcdiv(_) => saved(1, want(2)).and(saved(2, want(1) || want(2))),
        }
    }

    fn backward(self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        let side = |side: usize| -> Result<Option<Tensor>> {
            if !at.wants(side) {
                return Ok(None);
            }
            let to_side = match (self, side) {
                (Formula::LerpBy(weight), 0) => grad.affine(1.0 - weight, 0.0)?,
                (Formula::LerpBy(weight), _) => grad.affine(weight, 0.0)?,
                (Formula::Lerp, 0) => grad.mul(&at.input(2)?.affine(-1.0, 1.0)?)?,
                (Formula::Lerp, 1) => grad.mul(&at.input(2)?)?,
                (Formula::Lerp, _) => grad.mul(&at.input(1)?.sub(&at.input(0)?)?)?,
                (_, 0) => grad.clone(),
                (Formula::Addcmul(value), side) => grad.mul(&at.input(3 - side)?)?.affine(value, 0.0)?,
                (Formula::Addcdiv(value), 1) => grad.div(&at.input(2)?)?.affine(value, 0.0)?,
                (Formula::Addcdiv(value), _) => {
                    let c = at.input(2)?;
                    grad.mul(&at.input(1)?.div(&c)?.div(&c)?)?.affine(-value, 0.0)?
                }
            };
            to_side.sum_to(at.shape(side)).map(Some)
        };
        (0..at.inputs()).map(side).collect()
    }
}

/// `a, b, c -> out`, broadcast.
#[derive(Clone, Copy, Debug)]
struct Combine(Formula);

impl Kernel for Combine {
    fn name(&self) -> &'static str {
        self.0.name(false)
    }

    fn expression(&self) -> Option<String> {
        Some(Text::of_expression(["a", "b", "c"], |[a, b, c]| self.0.value(a, b, c)))
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [a, b, rest @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let ins = [*a, *b, rest.first().copied().unwrap_or(*b)];
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        let laid = Laid::of(out.layout(), ins.each_ref().map(|x| x.layout()));
        let compute = out.dtype();
        let formula = self.0;
        operands::evaluate(
            &laid,
            ins,
            out,
            compute,
            #[inline(always)]
            |[a, b, c]| formula.value(a, b, c),
            #[inline(always)]
            |[a, b, c]| formula.value(a, b, c),
            #[inline(always)]
            |[a, b, c]| formula.value(a, b, c),
        );
        Ok(())
    }
}

impl Operator for Combine {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let shape = self.0.check(self.name(), ins)?;
        Ok(smallvec![Output::laid_out(operands::layout_for(&shape, ins), ins[0].dtype)])
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        self.0.saves(wanted)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        self.0.backward(at)
    }
}

/// `a, b, c -> a` in place.
#[derive(Clone, Copy, Debug)]
struct CombineInPlace(Formula);

impl Kernel for CombineInPlace {
    fn name(&self) -> &'static str {
        self.0.name(true)
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let text = Text::of_expression(["y", "a", "b"], |[a, b, c]| self.0.value(a, b, c));
        cuda::elementwise::change(call, &text)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [b, rest @ ..] = call.ins.as_slice() else { unreachable!("inferred") };
        let ins = [*b, rest.first().copied().unwrap_or(*b)];
        let y = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        let laid = Laid::of(y.layout(), ins.each_ref().map(|x| x.layout()));
        let (dtype, formula, operands) = (y.dtype(), self.0, laid.any(ins));
        let y = (y.bytes(), dtype);
        match dtype.accumulator() {
            DType::F32 => update_by::<f32>(laid.shape(), y, operands, |a, b, c| formula.value(a, b, c)),
            DType::F64 => update_by::<f64>(laid.shape(), y, operands, |a, b, c| formula.value(a, b, c)),
            _ => update_by::<i64>(laid.shape(), y, operands, |a, b, c| {
                formula.value(Whole(a), Whole(b), Whole(c)).0
            }),
        }
        Ok(())
    }
}

impl Operator for CombineInPlace {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let shape = self.0.check(self.name(), ins)?;
        if shape.as_slice() != ins[0].shape() {
            let message = format!("the result has shape {shape:?}, which {:?} cannot hold", ins[0].shape());
            return Err(Error::shape(self.name(), message));
        }
        Ok(smallvec![Output::in_place(0, &ins[0])])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input != 0 || operands::without_gaps(layout)
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        self.0.saves(wanted)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        self.0.backward(at)
    }
}

/// Converts all to their promoted dtype.
#[track_caller]
fn promoted<const N: usize>(tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let types = tensors.iter().map(|x| (x.dtype(), x.rank() > 0));
    let dtype = result_type(types).unwrap_or(tensors[0].dtype());
    let mut converted = tensors.map(Tensor::clone);
    for tensor in &mut converted {
        *tensor = tensor.to_dtype(dtype)?;
    }
    Ok(converted)
}

impl Tensor {
    /// Interpolates linearly between this tensor and `end` with a weight for each element, broadcast: `self + weight · (end -
    /// self)`. Like `torch.lerp`.
    ///
    /// # Errors
    /// If the dtypes differ or are not floating-point, the shapes do not broadcast, or memory runs out.
    #[track_caller]
    pub fn lerp(&self, end: impl AsRef<Tensor>, weight: impl AsRef<Tensor>) -> Result<Tensor> {
        let (end, weight) = (end.as_ref(), weight.as_ref());
        call_one(Combine(Formula::Lerp), &[self, end, weight])
    }

    /// [`Tensor::lerp`] with the same weight for all elements.
    ///
    /// # Errors
    /// The same errors as [`Tensor::lerp`].
    #[track_caller]
    pub fn lerp_scalar(&self, end: impl AsRef<Tensor>, weight: f64) -> Result<Tensor> {
        let end = end.as_ref();
        call_one(Combine(Formula::LerpBy(weight)), &[self, end])
    }

    /// [`Tensor::lerp`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::lerp`] and [`Tensor::add_`].
    #[track_caller]
    pub fn lerp_(&self, end: impl AsRef<Tensor>, weight: impl AsRef<Tensor>) -> Result<()> {
        let (end, weight) = (end.as_ref(), weight.as_ref());
        call(CombineInPlace(Formula::Lerp), &[self, end, weight]).map(drop)
    }

    /// [`Tensor::lerp_scalar`] in place: a step of an exponential moving average.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let average = Tensor::zeros(&[2], &Device::cpu())?;
    /// average.lerp_scalar_(&Tensor::ones(&[2], &Device::cpu())?, 0.25)?;
    /// assert_eq!(average.to_vec::<f32>()?, [0.25, 0.25]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Tensor::lerp_`].
    #[track_caller]
    pub fn lerp_scalar_(&self, end: impl AsRef<Tensor>, weight: f64) -> Result<()> {
        let end = end.as_ref();
        call(CombineInPlace(Formula::LerpBy(weight)), &[self, end]).map(drop)
    }

    /// `self + value · a · b`, broadcast. Like `torch.addcmul`.
    ///
    /// # Errors
    /// If the shapes do not broadcast, a tensor is `bool`, or memory runs out.
    #[track_caller]
    pub fn addcmul(&self, a: impl AsRef<Tensor>, b: impl AsRef<Tensor>, value: f64) -> Result<Tensor> {
        let (a, b) = (a.as_ref(), b.as_ref());
        let [x, a, b] = promoted([self, a, b])?;
        call_one(Combine(Formula::Addcmul(value)), &[&x, &a, &b])
    }

    /// `self + value · a / b`, broadcast. Like `torch.addcdiv`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::addcmul`], or if the tensors are integers.
    #[track_caller]
    pub fn addcdiv(&self, a: impl AsRef<Tensor>, b: impl AsRef<Tensor>, value: f64) -> Result<Tensor> {
        let (a, b) = (a.as_ref(), b.as_ref());
        let [x, a, b] = promoted([self, a, b])?;
        call_one(Combine(Formula::Addcdiv(value)), &[&x, &a, &b])
    }

    /// [`Tensor::addcmul`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::addcmul`] and [`Tensor::add_`].
    #[track_caller]
    pub fn addcmul_(&self, a: impl AsRef<Tensor>, b: impl AsRef<Tensor>, value: f64) -> Result<()> {
        let (a, b) = (a.as_ref(), b.as_ref());
        call(CombineInPlace(Formula::Addcmul(value)), &[self, a, b]).map(drop)
    }

    /// [`Tensor::addcdiv`] in place.
    ///
    /// # Errors
    /// The same errors as [`Tensor::addcdiv`] and [`Tensor::add_`].
    #[track_caller]
    pub fn addcdiv_(&self, a: impl AsRef<Tensor>, b: impl AsRef<Tensor>, value: f64) -> Result<()> {
        let (a, b) = (a.as_ref(), b.as_ref());
        call(CombineInPlace(Formula::Addcdiv(value)), &[self, a, b]).map(drop)
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let case = |formula: Formula, shapes: &[&[usize]]| {
        Case::new(format!("{formula:?} {shapes:?}"), shapes, move |ins| call(Combine(formula), ins))
            .over(Domain::Positive)
    };
    let values = |formula: Formula| {
        move |ins: &[Vec<f64>]| {
            let c = |i: usize| ins.get(2).map_or(0.0, |c| c[i]);
            vec![(0..12).map(|i| formula.value(ins[0][i], ins[1][i], c(i))).collect()]
        }
    };
    let same: [&[usize]; 3] = [&[3, 4]; 3];
    vec![
        case(Formula::LerpBy(0.3), &same[..2]).expect(values(Formula::LerpBy(0.3))),
        case(Formula::Lerp, &same).expect(values(Formula::Lerp)),
        case(Formula::Addcmul(0.5), &same).expect(values(Formula::Addcmul(0.5))),
        case(Formula::Addcdiv(-2.0), &same).expect(values(Formula::Addcdiv(-2.0))),
        case(Formula::Addcdiv(0.5), &[&[3, 1], &[4], &[3, 4]]),
        case(Formula::Lerp, &[&[4], &[3, 4], &[]]),
    ]
}
