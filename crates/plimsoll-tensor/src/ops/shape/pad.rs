//! Pads a tensor with a value, or with its own elements.

use smallvec::{SmallVec, smallvec};

use crate::cpu::kernels::number::by_float;
use crate::cpu::kernels::remap::{Axis, remap, remap_add};
use crate::cpu::kernels::strided::{copy_strided, fill};
use crate::cuda::shape::remap::Source;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call, call_one};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{self, Dims};
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::suite::Case;
use crate::tensor::{Grads, Tensor};
use crate::word::by_word;

/// The contents of the padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// This value.
    Constant(f64),
    /// The inside mirrored, without repeating the edge.
    Reflect,
    /// The nearest element.
    Replicate,
    /// The elements at the opposite end.
    Circular,
}

/// Elements before and after, for each dimension.
type Pads = SmallVec<[(usize, usize); 6]>;

/// `x -> out`: `x` with padding around it.
#[derive(Clone, Debug)]
struct Pad {
    mode: PadMode,
    pads: Pads,
}

/// The axes for the modes that pad with the tensor's own elements.
fn axes(mode: PadMode, pads: &Pads, shape: &[usize]) -> SmallVec<[Axis; 4]> {
    let axis = |(&size, &(before, after)): (&usize, &(usize, usize))| match mode {
        _ if before + after == 0 => Axis::same(size),
        PadMode::Reflect => Axis::reflected(size, before, after),
        PadMode::Replicate => Axis::replicated(size, before, after),
        PadMode::Circular => Axis::circular(size, before, after),
        PadMode::Constant(_) => unreachable!("a constant comes from nowhere"),
    };
    shape.iter().zip(pads).map(axis).collect()
}

/// The axes in the form that a GPU's kernels take.
fn sources(mode: PadMode, pads: &Pads) -> SmallVec<[Source; 6]> {
    let source = |&(before, after): &(usize, usize)| match mode {
        _ if before + after == 0 => Source::Same { before },
        PadMode::Constant(_) => Source::Same { before },
        PadMode::Reflect => Source::Reflected { before },
        PadMode::Replicate => Source::Nearest { before },
        PadMode::Circular => Source::Circle { before },
    };
    pads.iter().map(source).collect()
}

/// The bits of a value of this dtype, in the low bits of a word.
fn word_bits(dtype: DType, value: f64) -> u64 {
    by_word!(dtype, W => {
        let mut bytes = [0; 8];
        let word: W = operands::word(dtype, value);
        bytes[..size_of::<W>()].copy_from_slice(bytemuck::bytes_of(&word));
        u64::from_le_bytes(bytes)
    })
}

impl Kernel for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let outside = match self.mode {
            PadMode::Constant(value) => word_bits(call.ins[0].dtype, value),
            _ => 0,
        };
        if call.outs[0].is_empty() {
            return Ok(());
        }
        if call.ins[0].is_empty() {
            let PadMode::Constant(value) = self.mode else { return Ok(()) };
            let out = call.outs[0];
            return cuda::elementwise::fill(call, value, out);
        }
        cuda::shape::remap::remap(call, &sources(self.mode, &self.pads), outside)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([x], [out]) = call.split();
        if out.layout().is_empty() {
            return Ok(());
        }
        if let PadMode::Constant(value) = self.mode {
            let inside = self.pads.iter().zip(x.shape()).enumerate();
            let place = inside
                .fold(out.layout().clone(), |place, (dim, (pad, &size))| place.narrow(dim, pad.0, size));
            by_word!(x.dtype(), W => {
                let out = out.words::<W>();
                fill(out, operands::word(x.dtype(), value));
                if !place.is_empty() {
                    let to = &mut out[place.offset()..place.end()];
                    copy_strided(x.shape(), x.words(), x.strides(), to, place.strides());
                }
            });
            return Ok(());
        }
        let axes = axes(self.mode, &self.pads, x.shape());
        by_word!(x.dtype(), W => remap::<W>(&axes, x.words(), x.strides(), out.words()));
        Ok(())
    }
}

impl Operator for Pad {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [x] = operands::inputs("pad", ins)?;
        for (dim, (&size, &(before, after))) in x.shape().iter().zip(&self.pads).enumerate() {
            let most = match self.mode {
                PadMode::Constant(_) => usize::MAX,
                PadMode::Reflect => size.saturating_sub(1),
                PadMode::Replicate if size == 0 => 0,
                PadMode::Replicate => usize::MAX,
                PadMode::Circular => size,
            };
            if before > most || after > most {
                let message = format!(
                    "{before} and {after} elements around dimension {dim} of size {size}: {:?} padding allows at \
                     most {most} on a side",
                    self.mode
                );
                return Err(Error::argument("pad", message));
            }
        }
        let shape = x
            .shape()
            .iter()
            .zip(&self.pads)
            .map(|(&size, &(before, after))| size.saturating_add(before).saturating_add(after));
        let shape: Dims = shape.collect();
        layout::checked_len(&shape)?;
        Ok(smallvec![Output::new(&shape, x.dtype)])
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(0, ins, outs)
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        if let PadMode::Constant(_) = self.mode {
            let dims = self.pads.iter().zip(at.shape(0)).enumerate();
            let inside = |grad: Tensor, (dim, (&(before, after), &size))| match before + after {
                0 => Ok(grad),
                _ => grad.narrow(dim as isize, before, size),
            };
            return Ok(smallvec![Some(dims.into_iter().try_fold(grad.clone(), inside)?)]);
        }
        let back = PadBackward { mode: self.mode, pads: self.pads.clone(), shape: at.shape(0).into() };
        Ok(smallvec![Some(call_one(back, &[grad])?)])
    }
}

/// `grad -> grad of x`: each element gets the sum over all its copies.
#[derive(Clone, Debug)]
struct PadBackward {
    mode: PadMode,
    pads: Pads,
    shape: Dims,
}

impl Kernel for PadBackward {
    fn name(&self) -> &'static str {
        "pad_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::shape::remap::remap_add(call, &sources(self.mode, &self.pads))
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([grad], [out]) = call.split();
        let axes = axes(self.mode, &self.pads, &self.shape);
        by_float!(grad.dtype(), T => {
            remap_add::<T>(&axes, (grad.elements(), grad.strides()), &self.shape, out.elements());
        });
        Ok(())
    }
}

impl Operator for PadBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [grad] = operands::inputs("pad_backward", ins)?;
        Ok(smallvec![Output::new(&self.shape, grad.dtype)])
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None]) };
        Ok(smallvec![Some(call_one(Pad { mode: self.mode, pads: self.pads.clone() }, &[grad])?)])
    }
}

impl Tensor {
    /// Returns a padded copy. `pads` begins with the last dimension: `[before, after, before, after, …]`; negative numbers
    /// crop. Like `torch.nn.functional.pad`.
    ///
    /// ```
    /// # use plimsoll_tensor::{Device, PadMode, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], &[3], &Device::cpu())?;
    /// assert_eq!(x.pad(&[1, 2], PadMode::Reflect)?.to_vec::<f32>()?, [2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the number of pads is odd or more than two for each dimension, there is more padding than the mode has
    /// elements for, or memory runs out.
    #[track_caller]
    pub fn pad(&self, pads: &[isize], mode: PadMode) -> Result<Tensor> {
        let (rank, count) = (self.rank(), pads.len() / 2);
        if !pads.len().is_multiple_of(2) || count > rank {
            let message =
                format!("{pads:?} for {:?}: needs two numbers for each of the last dimensions", self.shape());
            return Err(Error::argument("pad", message));
        }
        let (mut inside, mut all) = (self.clone(), Pads::from_elem((0, 0), rank));
        for (i, pair) in pads.chunks(2).enumerate() {
            let dim = rank - 1 - i;
            let (size, cut) =
                (inside.shape()[dim], [pair[0].min(0).unsigned_abs(), pair[1].min(0).unsigned_abs()]);
            if cut[0].saturating_add(cut[1]) > size {
                let message =
                    format!("{pair:?} removes more elements than dimension {dim} of size {size} has");
                return Err(Error::argument("pad", message));
            }
            if cut != [0, 0] {
                inside = inside.narrow(dim as isize, cut[0], size - cut[0] - cut[1])?;
            }
            all[dim] = (pair[0].max(0).unsigned_abs(), pair[1].max(0).unsigned_abs());
        }
        call_one(Pad { mode, pads: all }, &[&inside])
    }
}

/// Cases for the conformance suite.
pub(crate) fn cases() -> Vec<Case> {
    let ring = |ins: &[Vec<f64>]| {
        // The shape [2, 3] with a column on each side and a row below.
        let at = |row: usize, col: usize| match (row, col) {
            (0..2, 1..4) => ins[0][row * 3 + col - 1],
            _ => 7.5,
        };
        vec![(0..15).map(|i| at(i / 5, i % 5)).collect()]
    };
    let pads = Pads::from_slice(&[(0, 1), (1, 1)]);
    let constant = Pad { mode: PadMode::Constant(7.5), pads: pads.clone() };
    let own = |mode: PadMode| {
        let op = Pad { mode, pads: pads.clone() };
        Case::new(format!("pad, {mode:?}"), &[&[2, 3]], move |ins| call(op.clone(), ins))
    };
    let back = PadBackward { mode: PadMode::Circular, pads: pads.clone(), shape: Dims::from_slice(&[2, 3]) };
    vec![
        Case::new("pad with a constant", &[&[2, 3]], move |ins| call(constant.clone(), ins)).expect(ring),
        own(PadMode::Reflect),
        own(PadMode::Replicate),
        own(PadMode::Circular),
        Case::new("pad_backward", &[&[3, 5]], move |ins| call(back.clone(), ins)),
        Case::new("pad and cut", &[&[2, 3]], |ins| {
            Ok(smallvec![ins[0].pad(&[-1, 2], PadMode::Constant(0.0))?])
        }),
    ]
}
