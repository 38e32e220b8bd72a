//! An operator's kernels: one method for each kind of device, and its arguments.
//!
//! This is everything that a device knows about an operator; [`crate::Operator`] has the other methods. A kernel computes;
//! it never allocates: its outputs and scratch memory are allocated before the call.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::random::RandomStream;
use crate::view::{In, Out};

/// The part of an operator that changes with each replay of a captured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varies {
    /// Its random numbers: each replay draws the next ones, as the step itself would.
    Random(RandomStream),
    /// An optimizer step: its number, and options such as the learning rate.
    Step,
}

/// The name of an operator, and its kernels for each kind of device.
pub trait Kernel: fmt::Debug + Send + Sync + 'static {
    /// The operator's name, PyTorch's if it has one. Used in traces, in errors, and as the owner of bytes outside any layer.
    fn name(&self) -> &'static str;

    /// For an elementwise operator, the output element as a CUDA C++ expression of the input elements `a` to `d`. Constants
    /// are written `C(2.5)`, where `C` is the compute type. The GPU kernel is a loop around this expression.
    fn expression(&self) -> Option<String> {
        None
    }

    /// The type in which [`Kernel::cpu`] reads and writes a tensor of this type. If it differs from `dtype`, dispatch
    /// passes converted copies to the kernel and converts its outputs back. The default is for kernels that support only
    /// floats of 32 and 64 bits and `int64`. A kernel that reads every type itself returns `dtype`.
    fn cpu_type(&self, dtype: DType) -> DType {
        dtype.accumulator()
    }

    /// Describes the work on an NVIDIA GPU: kernel launches and matrix products. The default runs [`Kernel::expression`] in
    /// the promoted type of the inputs.
    ///
    /// # Errors
    /// [`Error::NoKernel`]: the operator has no CUDA kernel, or none for these types.
    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        match self.expression() {
            Some(text) => cuda::elementwise::of_operator(call, &text, None),
            None => call.missing(),
        }
    }

    /// The part of this operator that changes with each replay of a captured step that contains it. By default nothing
    /// changes: a replay repeats the same work.
    fn varies(&self) -> Option<Varies> {
        None
    }

    /// The same operator with different random numbers, if [`Kernel::varies`] says that it draws some.
    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        let _ = from;
        None
    }

    /// Computes on host memory.
    ///
    /// # Errors
    /// Errors that depend on values, such as an index out of range; also if an operator has no CPU kernel.
    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        drop(call);
        Err(Error::NoKernel { op: self.name(), device: "cpu" })
    }
}

/// The arguments of a kernel on the host. An input that is changed in place appears only as an output; no output shares memory
/// with an input or with another output.
#[derive(Debug)]
pub struct CpuCall<'a> {
    /// The tensors to read, in the operator's order.
    pub ins: SmallVec<[In<'a>; 4]>,
    /// The tensors to write, in the operator's order.
    pub outs: SmallVec<[Out<'a>; 4]>,
    /// Uninitialized memory of the size that [`crate::Operator::scratch`] returned, as 32-bit floats.
    pub scratch: Option<Out<'a>>,
}

impl<'a> CpuCall<'a> {
    /// The inputs and outputs of an operator with `N` inputs and `M` outputs.
    ///
    /// # Panics
    /// If the operator was called with a different number of either.
    pub fn split<const N: usize, const M: usize>(self) -> ([In<'a>; N], [Out<'a>; M]) {
        let counts = (self.ins.len(), self.outs.len());
        assert_eq!(counts, (N, M), "a kernel's inputs and outputs");
        let (mut ins, mut outs) = (self.ins.into_iter(), self.outs.into_iter());
        (
            std::array::from_fn(|_| ins.next().unwrap_or_else(|| unreachable!("counted"))),
            std::array::from_fn(|_| outs.next().unwrap_or_else(|| unreachable!("counted"))),
        )
    }

    /// Takes the scratch memory; empty if none was requested or it was taken before.
    pub fn scratch(&mut self) -> &'a mut [f32] {
        // The empty slice must be aligned for 64-bit numbers too, since kernels may reinterpret scratch as such.
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
