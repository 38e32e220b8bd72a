//! Scaled dot-product attention that never materializes the matrix of scores.
//!
//! It saves the inputs, the output and one number for each row of scores, as PyTorch's kernels do. Memory is linear in
//! the sequence length.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::operands::{self, Attention, sizes};
use crate::autograd::is_grad_enabled;
use crate::cpu::kernels::attention::{attention, forward_scratch_len};
use crate::cuda::{self, CudaCall};
use crate::dtype::DType;
use crate::error::Result;
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::Layout;
use crate::operator::{Autocast, Backward, Cost, Meta, Operator, Output, Outputs, Saves};
use crate::random::RandomStream;
use crate::tensor::Grads;

impl Kernel for Attention {
    fn name(&self) -> &'static str {
        "scaled_dot_product_attention"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn varies(&self) -> Option<Varies> {
        self.dropout.map(|(_, from)| Varies::Random(from))
    }

    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(self.with_stream(from)))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let ins = call.ins.clone();
        let layouts: SmallVec<[&Layout; 4]> = ins.iter().map(|x| x.layout).collect();
        let by_tiles = self.is_by_tiles((&layouts, ins[0].dtype), &[], &[call.outs[0].layout], call.facts);
        let (params, heads) = self.params(&ins, by_tiles);
        let [out, log_sums] = call.outs[..] else { return call.missing() };
        let strides = self.arrangement.out_strides(out.layout, &params.shape.into());
        params.forward(call, heads, (out, cuda::attention::Heads { address: out.address, strides }), log_sums)
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let (shape, heads) = self.arrangement.heads(&call.ins);
        let scores = self.scores(&shape, call.ins.get(self.arrangement.operands()));
        let mut outs = call.outs.into_iter();
        let mut next = || outs.next().unwrap_or_else(|| unreachable!("inferred"));
        let (out, log_sums) = (next(), next());
        let strides = self.arrangement.out_strides(out.layout(), &shape);
        attention(&shape, &scores, heads, (out.bytes(), strides), log_sums.bytes(), scratch);
        Ok(())
    }
}

impl Operator for Attention {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let shape = sizes(self.arrangement, ins)?;
        let log_sums = Output::new(&[shape.batch, shape.heads, shape.queries], ins[0].dtype.accumulator());
        Ok(smallvec![self.arrangement.out(&shape, ins[0].dtype), log_sums])
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input >= self.arrangement.operands() || operands::rows_are_dense(layout)
    }

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let layouts: SmallVec<[&Layout; 4]> = ins.iter().map(|meta| meta.layout).collect();
        let by_tiles = || self.is_by_tiles((&layouts, ins[0].dtype), &[], &[outs[0].layout], device);
        sizes(self.arrangement, ins).map_or(0, |shape| match device.kind {
            DeviceKind::Cuda if by_tiles() => 0,
            DeviceKind::Cuda => cuda::attention::scratch(&shape.into(), ins[0].dtype, 1),
            _ => operands::float_bytes(forward_scratch_len(&shape, ins[0].dtype)),
        })
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let flops = sizes(self.arrangement, ins).map_or(0, |shape| operands::flops(&shape, self.causal, 2));
        Cost::streaming(flops, ins, outs)
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn saves(&self, wanted: &[bool]) -> Saves {
        let inputs = (0..wanted.len()).fold(Saves::NOTHING, |all, i| all.and(Saves::input(i)));
        inputs.and(Saves::output(0)).and(Saves::output(1))
    }

    fn has_gradient_kernel(&self) -> bool {
        true
    }

    /// The log-sum-exp is a by-product of the kernel: no gradient flows through it.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(smallvec![None; at.inputs()]) };
        let mask = self.arrangement.operands();
        if is_grad_enabled() || (at.inputs() > mask && at.wants(mask)) {
            return self.composed(at, grad);
        }
        self.fused(at, grad)
    }
}
