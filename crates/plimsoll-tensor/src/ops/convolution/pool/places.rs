//! The positions of the maxima as PyTorch returns them: indices into the image, `int64`.

use smallvec::smallvec;

use super::spec::Spec;
use crate::cpu::kernels::pool::places::places;
use crate::cuda::convolution::pool::MaxPass;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call_one;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::{Dims, Layout};
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::elementwise::operands;
use crate::ops::shape::memory_format::MemoryFormat;
use crate::tensor::Tensor;

/// `position in the window -> index into the image`. Row-major.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) spec: Spec,
    /// The shape of the image.
    pub(super) x: Dims,
}

impl Kernel for Places {
    fn name(&self) -> &'static str {
        "max_pool_places"
    }

    /// The positions are bytes, and are not converted to a different type.
    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let shape = self.spec.shape(self.name(), &self.x, MemoryFormat::Contiguous)?;
        cuda::convolution::pool::max_pool(call, MaxPass::Places, &shape)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([index], [out]) = call.split();
        let shape = self.spec.shape(self.name(), &self.x, MemoryFormat::Contiguous)?;
        match index.dtype() {
            DType::U8 => places::<u8>(&shape, index.elements(), out.elements()),
            _ => places::<i32>(&shape, index.elements(), out.elements()),
        }
        Ok(())
    }
}

impl Operator for Places {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let [index] = operands::inputs(self.name(), ins)?;
        Ok(smallvec![Output::new(index.shape(), DType::I64)])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// The positions of the maxima, as an output.
#[track_caller]
pub(super) fn of_image(spec: Spec, x: &Tensor, index: &Tensor) -> Result<Tensor> {
    call_one(Places { spec, x: x.shape().into() }, &[&index.contiguous()?])
}
