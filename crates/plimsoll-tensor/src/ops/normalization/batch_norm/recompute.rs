//! Recomputes the output of a batch normalization from its statistics: the recipe that is saved in place of the output.

use smallvec::{SmallVec, smallvec};

use super::{Then, channels, images};
use crate::cpu::kernels::channel_norm::{Affine, normalize, normalize_add};
use crate::cpu::kernels::number::by_float;
use crate::cuda::CudaCall;
use crate::cuda::normalization::batch_norm::{self, Scale};
use crate::dispatch::call_one;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};
use crate::ops::shape::memory_format::{MemoryFormat, kept};
use crate::tensor::Tensor;

/// `x, mean, rstd[, weight, bias][, residual] -> out`.
#[derive(Clone, Copy, Debug)]
struct RecomputedOutput {
    then: Then,
}

/// Makes operations that read the output save a recipe to recompute it. `outs` are the output, the mean and the inverse
/// deviation.
#[track_caller]
pub(super) fn recompute(
    outs: &[Tensor],
    x: &Tensor,
    then: Then,
    [weight, bias, residual]: [Option<&Tensor>; 3],
) -> Result<()> {
    let mut ins: SmallVec<[&Tensor; 6]> = smallvec![x, &outs[1], &outs[2]];
    ins.extend([weight, bias, residual].into_iter().flatten());
    let recomputed = move |ins: &[Tensor]| {
        call_one(RecomputedOutput { then }, &ins.iter().collect::<SmallVec<[&Tensor; 6]>>())
    };
    outs[0].recompute_with(recomputed, &ins)
}

impl RecomputedOutput {
    /// The index of the residual, which is the last input, if there is one.
    fn residual(self, inputs: usize) -> Option<usize> {
        (self.then == Then::AddRelu).then(|| inputs - 1)
    }

    /// The indices of weight and bias, if present.
    fn scale(self, inputs: usize) -> [Option<usize>; 2] {
        let end = self.residual(inputs).unwrap_or(inputs);
        [3, 4].map(|i| (i < end).then_some(i))
    }
}

impl Kernel for RecomputedOutput {
    fn name(&self) -> &'static str {
        self.then.name()
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let ins = call.ins.clone();
        let [weight, bias] = self.scale(ins.len()).map(|i| i.map(|i| ins[i]));
        let scale = Scale { mean: ins[1], rstd: ins[2], weight, bias };
        let residual = self.residual(ins.len()).map(|i| ins[i]);
        batch_norm::apply(call, images(ins[0].layout), &scale, residual, self.then.cut())
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let (ins, mut outs) = (call.ins, call.outs.into_iter());
        let out = outs.next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(ins[0].dtype(), T => {
            let [weight, bias] = self.scale(ins.len()).map(|i| i.map(|i| ins[i].elements::<T>()));
            let (mean, rstd) = (ins[1].elements(), ins[2].elements());
            let affine = Affine { mean, rstd, weight, bias, relu: self.then != Then::Nothing };
            let (size, x) = (channels(ins[0].layout()), ins[0].elements());
            match self.residual(ins.len()) {
                Some(i) => normalize_add(size, &affine, [x, ins[i].elements()], out.elements()),
                None => normalize(size, &affine, x, out.elements()),
            }
        });
        Ok(())
    }
}

impl Operator for RecomputedOutput {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::laid_out(kept(ins[0].layout), ins[0].dtype)])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        let is_image = input == 0 || layout.rank() > 1;
        layout.is_contiguous() || (is_image && MemoryFormat::of(layout).is_some())
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(3 * ins[0].layout.len() as u64, ins, outs)
    }
}
