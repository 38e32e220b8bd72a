//! Sorts the elements of a dimension (`sort`, `argsort`), and finds the largest or smallest (`topk`).

use smallvec::smallvec;

use crate::cpu::kernels::parallel::scratch_workers;
use crate::cpu::kernels::sort::{Direction, sort, topk, topk_scratch_len};
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Dims;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::ops::elementwise::operands;
use crate::ops::{dim_index, scratch_bytes};
use crate::suite::{Case, Domain};
use crate::tensor::{Grads, Tensor};

/// Evaluates a body with a name bound to one of the three Rust types that rows are sorted in.
macro_rules! by_sorted {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $t = f64;
                $body
            }
            DType::F32 => {
                type $t = f32;
                $body
            }
            _ => {
                type $t = i64;
                $body
            }
        }
    };
}

/// `x -> values, indices`, along the last dimension.
#[derive(Clone, Copy, Debug)]
struct Sort(Direction);

impl Kernel for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::sort::sort(call, self.0 == Direction::Descending)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [values, places]) = call.split();
        by_sorted!(x.dtype(), T => {
            sort::<T>(x.shape(), (x.elements(), x.strides()), self.0, values.elements(), places.elements());
        });
        Ok(())
    }
}

impl Operator for Sort {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("sort", ins)?;
        Ok(smallvec![Output::new(x.shape(), x.dtype), Output::new(x.shape(), DType::I64)])
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        match device.kind {
            DeviceKind::Cuda => cuda::indexing::sort::scratch(ins[0].shape(), ins[0].dtype),
            DeviceKind::Cpu => 0,
        }
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let len = ins[0].shape().last().copied().unwrap_or(1);
        Cost::streaming(ins[0].layout.len() as u64 * u64::from(len.max(1).ilog2()), ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let last = at.shape(0).len() - 1;
        Ok(smallvec![Some(grad.gather_backward(last, &at.output(1)?, at.shape(0))?)])
    }
}

/// `x -> values, indices` of the first `count` along the last dimension.
#[derive(Clone, Copy, Debug)]
struct TopK {
    count: usize,
    direction: Direction,
    unsorted: bool,
}

impl Kernel for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::indexing::sort::topk(call, self.direction == Direction::Descending)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let ([x], [values, places]) = call.split();
        let order = (self.direction, self.unsorted);
        by_sorted!(x.dtype(), T => {
            let (src, outs) = ((x.elements::<T>(), x.strides()), (values.elements(), places.elements()));
            topk(x.shape(), src, order, self.count, outs, scratch);
        });
        Ok(())
    }
}

impl Operator for TopK {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("topk", ins)?;
        let mut shape = Dims::from_slice(x.shape());
        let last = shape.len() - 1;
        if self.count > shape[last] {
            let message =
                format!("cannot select {} elements of a dimension of size {}", self.count, shape[last]);
            return Err(Error::argument("topk", message));
        }
        shape[last] = self.count;
        Ok(smallvec![Output::new(&shape, x.dtype), Output::new(&shape, DType::I64)])
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], device: DeviceFacts) -> u64 {
        // A GPU's kernel finds the elements one by one.
        if device.kind == DeviceKind::Cuda {
            return 0;
        }
        let (lead, len) = match ins[0].shape() {
            [lead @ .., len] => (lead.iter().product(), *len),
            [] => (1, 1),
        };
        scratch_bytes(scratch_workers(lead) * topk_scratch_len(len))
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(ins[0].layout.len() as u64, ins, outs)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::output(1)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        let last = at.shape(0).len() - 1;
        Ok(smallvec![Some(grad.gather_backward(last, &at.output(1)?, at.shape(0))?)])
    }
}

fn direction(descending: bool) -> Direction {
    if descending { Direction::Descending } else { Direction::Ascending }
}

impl Tensor {
    /// Sorts the elements of a dimension. Returns the values and their indices (`int64`). The sort is stable, and NaN counts as
    /// the largest. Like `torch.sort`.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3i64, 1, 2], &[3], &Device::cpu())?;
    /// let (values, places) = x.sort(0, false)?;
    /// assert_eq!((values.to_vec::<i64>()?, places.to_vec::<i64>()?), (vec![1, 2, 3], vec![1, 2, 0]));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a dimension is out of range, or memory runs out.
    #[track_caller]
    pub fn sort(&self, dim: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        self.in_order("sort", dim, Sort(direction(descending)))
    }

    /// The indices that sort a dimension (`int64`). Like `torch.argsort`; see [`Tensor::sort`].
    ///
    /// # Errors
    /// The same errors as [`Tensor::sort`].
    #[track_caller]
    pub fn argsort(&self, dim: isize, descending: bool) -> Result<Tensor> {
        Ok(self.detach().sort(dim, descending)?.1)
    }

    /// The `count` largest (or smallest) elements of a dimension and their indices (`int64`), in order unless `sorted` is
    /// false. Among equal elements, the first come first. Like `torch.topk`.
    ///
    /// # Errors
    /// If the dimension is out of range or has fewer elements, or memory runs out.
    #[track_caller]
    pub fn topk(&self, count: usize, dim: isize, largest: bool, sorted: bool) -> Result<(Tensor, Tensor)> {
        self.in_order("topk", dim, TopK { count, direction: direction(largest), unsorted: !sorted })
    }

    /// Runs an operator on the last dimension, after moving `dim` there.
    #[track_caller]
    fn in_order<O: Operator>(&self, name: &'static str, dim: isize, op: O) -> Result<(Tensor, Tensor)> {
        if self.rank() == 0 && (-1..=0).contains(&dim) {
            let (values, places) = self.unsqueeze(0)?.in_order(name, 0, op)?;
            return Ok((values.reshape(&[] as &[usize])?, places.reshape(&[] as &[usize])?));
        }
        let dim = dim_index(name, dim, self.rank())? as isize;
        let last = dim == self.rank() as isize - 1;
        let outs = if last { call(op, &[self])? } else { call(op, &[&self.movedim(&[dim], &[-1])?])? };
        let back = |x: &Tensor| if last { Ok(x.clone()) } else { x.movedim(&[-1], &[dim]) };
        Ok((back(&outs[0])?, back(&outs[1])?))
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let sorted = |ins: &[Vec<f64>]| {
        let rows = ins[0].chunks(5).map(|row| {
            let mut places: Vec<usize> = (0..5).collect();
            places.sort_by(|&a, &b| row[a].total_cmp(&row[b]));
            (
                places.iter().map(|&i| row[i]).collect::<Vec<_>>(),
                places.iter().map(|&i| i as f64).collect::<Vec<_>>(),
            )
        });
        let (values, places): (Vec<_>, Vec<_>) = rows.unzip();
        vec![values.concat(), places.concat()]
    };
    let pair = |pair: (Tensor, Tensor)| Ok(smallvec![pair.0, pair.1]);
    vec![
        Case::new("sort", &[&[3, 5]], move |ins| pair(ins[0].sort(1, false)?))
            .over(Domain::Apart)
            .expect(sorted),
        Case::new("sort of columns", &[&[3, 5]], move |ins| pair(ins[0].sort(0, true)?)).over(Domain::Apart),
        Case::new("topk", &[&[3, 5]], move |ins| pair(ins[0].topk(2, -1, true, true)?)).over(Domain::Apart),
        Case::new("topk of columns", &[&[3, 5]], move |ins| pair(ins[0].topk(2, 0, false, true)?))
            .over(Domain::Apart),
        Case::new("argsort", &[&[3, 5]], |ins| Ok(smallvec![ins[0].argsort(1, false)?]))
            .over(Domain::Apart)
            .without_derivative(),
    ]
}
