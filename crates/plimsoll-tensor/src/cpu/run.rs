//! From an operation to a kernel: views become slices, sizes become the kernel's.
//!
//! One match, in the order of [`Op`]. Nothing is decided here but which slices a kernel gets; shapes were
//! checked in `ops/`, kernels assert what they rely on.

use super::kernels::binary::{self, Operand};
use super::kernels::matmul::{MatmulShape, MatrixStrides, matmul};
use super::kernels::strided::{CastTo, cast, copy_strided, fill};
use super::kernels::{conv, loss, optim, pool, reduce, softmax, unary};
use super::random;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::op::Op;
use crate::view::View;

/// The elements of an input, from its first to its last.
fn read<'a, T: Element>(view: &View<'a>) -> &'a [T] {
    // SAFETY: this back end's addresses are host memory, and dispatch made the views in `ins` for reading.
    unsafe { view.as_slice() }
}

/// The elements of an output or of scratch. Called once per view and operation.
fn edit<'a, T: Element>(view: &View<'a>) -> &'a mut [T] {
    // SAFETY: as in `read`; dispatch holds the locks of `outs` exclusively, scratch is this call's alone,
    // no two outputs share a storage, and `run` turns each into a slice once.
    unsafe { view.as_mut_slice() }
}

fn floats<'a>(view: &View<'a>) -> &'a [f32] {
    read(view)
}

fn operand<'a>(view: &View<'a>) -> Operand<'a> {
    Operand { data: read(view), strides: view.strides() }
}

/// The one element of a scalar.
fn scalar(view: &View<'_>) -> f32 {
    floats(view)[0]
}

/// Bytes of scratch that [`run`] needs; by sizes alone, so the simulated device answers the same.
pub(crate) fn scratch_bytes(op: &Op) -> u64 {
    let floats = match op {
        Op::Conv2d(shape) => conv::conv2d_scratch_len(shape),
        Op::Conv2dBackwardInput(shape) => conv::conv2d_backward_input_scratch_len(shape),
        Op::Conv2dBackwardWeight(shape) => conv::conv2d_backward_weight_scratch_len(shape),
        _ => 0,
    };
    (floats * DType::F32.size()) as u64
}

macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $t = f32;
                $body
            }
            DType::I64 => {
                type $t = i64;
                $body
            }
            DType::I32 => {
                type $t = i32;
                $body
            }
            DType::U8 => {
                type $t = u8;
                $body
            }
        }
    };
}

pub(crate) fn run(op: &Op, ins: &[View<'_>], outs: &[View<'_>], scratch: Option<View<'_>>) -> Result<()> {
    let scratch: &mut [f32] = scratch.as_ref().map_or(&mut [], |view| edit(view));
    match (op, ins, outs) {
        (Op::Fill(value), [], [out]) => by_dtype!(out.dtype(), T => fill_strided(*value as T, out)),
        (&Op::Arange { start, step }, [], [out]) => by_dtype!(out.dtype(), T => {
            edit::<T>(out).iter_mut().enumerate().for_each(|(i, x)| *x = (start + step * i as f64) as T);
        }),
        (&Op::Random(distribution, from), [], [out]) => random::fill(distribution, from, edit(out)),
        (Op::Copy, [x], [out]) => by_dtype!(out.dtype(), T => {
            copy_strided::<T>(out.shape(), read(x), x.strides(), edit(out), out.strides());
        }),
        (Op::Cast, [x], [out]) => {
            by_dtype!(x.dtype(), T => by_dtype!(out.dtype(), U => cast_dense::<T, U>(x, out)));
        }
        (&Op::Unary(f), [x], [out]) => unary::unary(f, x.shape(), read(x), x.strides(), edit(out)),
        (&Op::Binary(f), [a, b], [out]) => run_binary(f, a, b, out)?,
        (&Op::AddAssign { alpha }, [x], [y]) => binary::add_assign(y.shape(), edit(y), alpha, operand(x)),
        (Op::MulAssign, [x], [y]) => binary::mul_assign(y.shape(), edit(y), operand(x)),
        (Op::ReluBackward, [grad, y], [out]) => unary::relu_backward(read(grad), read(y), edit(out)),
        (Op::Sum { reduced, scale }, [x], [out]) => sum(x, reduced, *scale, edit(out)),
        (Op::ArgMax, [x], [out]) => {
            reduce::argmax(x.shape(), read(x), x.strides(), x.shape().len() - 1, edit(out));
        }
        (Op::Matmul, [a, b], [out]) => run_matmul(a, b, out),
        (Op::Linear, [x, w, bias @ ..], [out]) => linear(x, w, bias.first(), out),
        (Op::Conv2d(shape), [x, w, bias @ ..], [out]) => {
            conv::conv2d(shape, read(x), read(w), bias.first().map(floats), edit(out), scratch);
        }
        (Op::Conv2dBackwardInput(shape), [grad, w], [out]) => {
            conv::conv2d_backward_input(shape, read(grad), read(w), edit(out), scratch);
        }
        (Op::Conv2dBackwardWeight(shape), [grad, x], [out]) => {
            conv::conv2d_backward_weight(shape, read(x), read(grad), edit(out), scratch);
        }
        (Op::MaxPool2d(shape), [x], [out, index]) => match index.dtype() {
            DType::U8 => pool::max_pool2d(shape, read(x), edit(out), edit::<u8>(index)),
            _ => pool::max_pool2d(shape, read(x), edit(out), edit::<i32>(index)),
        },
        (Op::MaxPool2dBackward(shape), [grad, index], [out]) => match index.dtype() {
            DType::U8 => pool::max_pool2d_backward(shape, read(grad), read::<u8>(index), edit(out)),
            _ => pool::max_pool2d_backward(shape, read(grad), read::<i32>(index), edit(out)),
        },
        (Op::Softmax, [x], [out]) => softmax::softmax(columns(x), read(x), edit(out)),
        (Op::SoftmaxBackward, [grad, y], [out]) => {
            softmax::softmax_backward(columns(y), read(grad), read(y), edit(out));
        }
        (Op::LogSoftmax, [x], [out]) => softmax::log_softmax(columns(x), read(x), edit(out)),
        (Op::LogSoftmaxBackward, [grad, y], [out]) => {
            softmax::log_softmax_backward(columns(y), read(grad), read(y), edit(out));
        }
        (&Op::NllLoss(reduction), [x, target], [out]) => {
            let value = loss::nll_loss(columns(x), read(x), read(target), reduction);
            edit(out)[0] = value.map_err(bad_target)?;
        }
        (&Op::NllLossBackward(reduction), [grad, target], [out]) => {
            loss::nll_loss_backward(columns(out), scalar(grad), read(target), reduction, edit(out))
                .map_err(bad_target)?;
        }
        (&Op::MseLoss(reduction), [x, target], [out]) => {
            edit(out)[0] = loss::mse_loss(read(x), read(target), reduction);
        }
        (&Op::MseLossBackward(reduction, sign), [grad, x, target], [out]) => {
            loss::mse_loss_backward(read(x), read(target), sign * scalar(grad), reduction, edit(out));
        }
        (Op::Sgd(step), [grad], [param, buffer @ ..]) => {
            optim::sgd_step(step, edit(param), read(grad), buffer.first().map(edit));
        }
        (Op::Adam(step), [grad], [param, exp_avg, exp_avg_sq]) => {
            optim::adam_step(step, edit(param), read(grad), edit(exp_avg), edit(exp_avg_sq));
        }
        _ => unreachable!("{} with {} inputs and {} outputs", op.name(), ins.len(), outs.len()),
    }
    Ok(())
}

/// Copies host bytes into a contiguous tensor.
pub(crate) fn write(to: View<'_>, bytes: &[u8]) {
    by_dtype!(to.dtype(), T => bytemuck::cast_slice_mut(edit::<T>(&to)).copy_from_slice(bytes));
}

/// Appends a contiguous tensor's bytes to host memory.
pub(crate) fn read_bytes(from: View<'_>, bytes: &mut Vec<u8>) {
    by_dtype!(from.dtype(), T => bytes.extend_from_slice(bytemuck::cast_slice(read::<T>(&from))));
}

/// The last dimension: rows of it are what a softmax works on.
fn columns(view: &View<'_>) -> usize {
    view.shape().last().copied().unwrap_or(1)
}

fn fill_strided<T: Element>(value: T, out: &View<'_>) {
    if out.layout().is_contiguous() {
        return fill(edit(out), value);
    }
    let repeat = vec![0; out.shape().len()];
    copy_strided(out.shape(), &[value], &repeat, edit(out), out.strides());
}

fn cast_dense<T: Element + CastTo<U>, U: Element>(x: &View<'_>, out: &View<'_>) {
    cast::<T, U>(read(x), edit(out));
}

fn run_binary(f: crate::op::BinaryFn, a: &View<'_>, b: &View<'_>, out: &View<'_>) -> Result<()> {
    let misfit = || Error::shape(f.name(), format!("{:?} and {:?} do not broadcast", a.shape(), b.shape()));
    let a_layout = a.layout().expand(out.shape()).ok_or_else(misfit)?;
    let b_layout = b.layout().expand(out.shape()).ok_or_else(misfit)?;
    let a = Operand { data: read(a), strides: a_layout.strides() };
    let b = Operand { data: read(b), strides: b_layout.strides() };
    binary::binary(f, out.shape(), a, b, edit(out));
    Ok(())
}

fn sum(x: &View<'_>, reduced: &[usize], scale: f32, out: &mut [f32]) {
    let reduced: Vec<bool> = reduced.iter().map(|&mark| mark == 1).collect();
    reduce::sum(x.shape(), read(x), x.strides(), &reduced, out);
    if scale != 1.0 {
        out.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Both inputs have the output's leading dimensions; where these do not have one common stride, the
/// products are made one by one.
fn run_matmul(a: &View<'_>, b: &View<'_>, out: &View<'_>) {
    let lead = out.shape().len() - 2;
    let [m, n] = [out.shape()[lead], out.shape()[lead + 1]];
    let k = a.shape()[lead + 1];
    if k == 0 || out.layout().is_empty() {
        // Sums of nothing, or no sums: an input without elements has no place to begin a matrix at.
        return fill(edit::<f32>(out), 0.0);
    }
    let matrix = |view: &View<'_>, batch: usize| MatrixStrides {
        batch,
        row: view.strides()[lead],
        col: view.strides()[lead + 1],
    };
    let (a_data, b_data, out_data) = (floats(a), floats(b), edit::<f32>(out));
    let shape = MatmulShape { batch: 1, m, k, n };
    let c_strides = MatrixStrides::row_major(m, n);
    let batch: usize = out.shape()[..lead].iter().product();
    if let (Some(a_batch), Some(b_batch)) = (lead_stride(a, lead), lead_stride(b, lead)) {
        let shape = MatmulShape { batch, ..shape };
        let (a, b) = ((a_data, matrix(a, a_batch)), (b_data, matrix(b, b_batch)));
        return matmul(&shape, a, b, None, (out_data, c_strides));
    }
    let at = |view: &View<'_>, mut index: usize| {
        (0..lead).rev().fold(0, |at, dim| {
            let place = index % view.shape()[dim];
            index /= view.shape()[dim];
            at + place * view.strides()[dim]
        })
    };
    for i in 0..batch {
        let (a, b) = ((&a_data[at(a, i)..], matrix(a, 0)), (&b_data[at(b, i)..], matrix(b, 0)));
        matmul(&shape, a, b, None, (&mut out_data[i * m * n..][..m * n], c_strides));
    }
}

/// The one distance between neighbouring matrices, where the leading dimensions have one.
fn lead_stride(view: &View<'_>, lead: usize) -> Option<usize> {
    let mut dims = (0..lead).rev().filter(|&dim| view.shape()[dim] != 1);
    let Some(last) = dims.next() else { return Some(0) };
    let stride = view.strides()[last];
    let mut span = stride * view.shape()[last];
    dims.all(|dim| {
        let fits = view.strides()[dim] == span;
        span *= view.shape()[dim];
        fits
    })
    .then_some(stride)
}

fn linear(x: &View<'_>, w: &View<'_>, bias: Option<&View<'_>>, out: &View<'_>) {
    let [rows, k] = [x.shape()[0], x.shape()[1]];
    let n = w.shape()[0];
    let strides =
        |view: &View<'_>| MatrixStrides { batch: 0, row: view.strides()[0], col: view.strides()[1] };
    let shape = MatmulShape { batch: 1, m: rows, k, n };
    let (a, b) = ((read(x), strides(x)), (read(w), strides(w).transposed()));
    matmul(&shape, a, b, bias.map(floats), (edit(out), MatrixStrides::row_major(rows, n)));
}

fn bad_target(bad: loss::BadTarget) -> Error {
    Error::Target { op: "nll_loss", row: bad.row, value: bad.value, classes: bad.cols }
}
