//! An operator's kernels: one method for each kind of device, and what it is called with.
//!
//! This is all that a device knows of an operator ([`crate::Operator`] has the rest). A kernel computes; it
//! never allocates: outputs and scratch come to it ready-made.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::random::RandomStream;
use crate::view::{In, Out};

/// What of an operator is another in each replay of a captured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varies {
    /// Its random numbers: a replay draws the next ones, as the step would.
    Random(RandomStream),
    /// An optimizer's step: its number, and options such as the learning rate.
    Step,
}

/// The name of an operator and how each kind of device computes it.
pub trait Kernel: fmt::Debug + Send + Sync + 'static {
    /// PyTorch's name for it where it has one: for traces, errors, and the owner of bytes outside any layer.
    fn name(&self) -> &'static str;

    /// For an elementwise operator, one output's element as an expression of CUDA C++ of its inputs' elements `a` to `d`, with
    /// constants as `C(2.5)`, where `C` is the type that it is computed in: a GPU's kernel is a loop around it.
    fn expression(&self) -> Option<String> {
        None
    }

    /// The type in which [`Kernel::cpu`] reads and writes a tensor of this type. Where it is another, dispatch hands the
    /// kernel converted copies, and converts what it wrote. By default kernels know floats of 32 and 64 bits and
    /// `int64`, and that serves every type; one that reads all of them itself gives back what it is given.
    fn cpu_type(&self, dtype: DType) -> DType {
        dtype.accumulator()
    }

    /// Describes the work on an NVIDIA GPU: launches of kernels and matrix products. By default that of
    /// [`Kernel::expression`], computed in the type in which the inputs meet.
    ///
    /// # Errors
    /// [`Error::NoKernel`]: an operator, or types, without such a kernel.
    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        match self.expression() {
            Some(text) => cuda::elementwise::of_operator(call, &text, None),
            None => call.missing(),
        }
    }

    /// What is another in each replay of a captured step that contains it. By default nothing: a replay repeats it as it is.
    fn varies(&self) -> Option<Varies> {
        None
    }

    /// The same operator with other random numbers, where it [`Kernel::varies`] by them.
    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        let _ = from;
        None
    }

    /// Computes on host memory.
    ///
    /// # Errors
    /// What only the values can show, such as an index out of range; an operator without such a kernel.
    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        drop(call);
        Err(Error::NoKernel { op: self.name(), device: "cpu" })
    }
}

/// What a kernel on the host is called with. An input that is changed in place comes as an output only; no
/// output shares memory with an input or with another output.
#[derive(Debug)]
pub struct CpuCall<'a> {
    /// The tensors to read, in the operator's order.
    pub ins: SmallVec<[In<'a>; 4]>,
    /// The tensors to write, in the operator's order.
    pub outs: SmallVec<[Out<'a>; 4]>,
    /// As many bytes as [`crate::Operator::scratch`] asked for, as 32-bit floats of any value.
    pub scratch: Option<Out<'a>>,
}

impl<'a> CpuCall<'a> {
    /// The inputs and outputs of an operator that has `N` and `M` of them.
    ///
    /// # Panics
    /// When it was called with other numbers of them.
    pub fn split<const N: usize, const M: usize>(self) -> ([In<'a>; N], [Out<'a>; M]) {
        let counts = (self.ins.len(), self.outs.len());
        assert_eq!(counts, (N, M), "a kernel's inputs and outputs");
        let (mut ins, mut outs) = (self.ins.into_iter(), self.outs.into_iter());
        (
            std::array::from_fn(|_| ins.next().unwrap_or_else(|| unreachable!("counted"))),
            std::array::from_fn(|_| outs.next().unwrap_or_else(|| unreachable!("counted"))),
        )
    }

    /// The scratch, once; empty where none was asked for.
    pub fn scratch(&mut self) -> &'a mut [f32] {
        // Where there is none, a place that is aligned for numbers of 64 bits, too: kernels look at scratch as such.
        self.scratch.take().map_or_else(|| bytemuck::cast_slice_mut::<f64, f32>(&mut []), Out::elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_that_was_not_asked_for_is_of_any_type() {
        let mut call = CpuCall { ins: SmallVec::new(), outs: SmallVec::new(), scratch: None };
        assert!(bytemuck::cast_slice_mut::<f32, f64>(call.scratch()).is_empty());
    }
}
