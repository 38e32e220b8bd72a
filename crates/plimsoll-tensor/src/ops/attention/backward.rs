//! The gradients of attention, from a kernel that recomputes blocks of scores with the log-sum-exp.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::operands::{self, Arrangement, Attention};
use crate::cpu::kernels::attention::{Gradients, Heads, attention_backward, backward_scratch_len};
use crate::cpu::kernels::parallel::Cut;
use crate::cuda::{self, CudaCall};
use crate::dispatch::call;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::{DeviceFacts, DeviceKind};
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::layout::Layout;
use crate::operator::{Backward, Cost, Meta, Operator, Output, Outputs};
use crate::random::RandomStream;
use crate::tensor::{Grads, Tensor};

/// `operands…[, mask], out, log-sum-exp, grad -> gradients of the operands[, sum of the rows of the packed gradient]`.
#[derive(Clone, Copy, Debug)]
struct AttentionBackward {
    of: Attention,
    /// Whether the kernel also outputs the sum of the rows.
    row_sum: bool,
}

impl Attention {
    pub(super) fn fused(&self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let mut saved: SmallVec<[Tensor; 7]> =
            (0..at.inputs()).map(|i| at.input(i)).collect::<Result<_>>()?;
        saved.extend([at.output(0)?, at.output(1)?]);
        let mut ins: SmallVec<[&Tensor; 7]> = saved.iter().collect();
        ins.push(grad);
        let mut results: Grads = smallvec![None; at.inputs()];
        let is_packed = matches!(self.arrangement, Arrangement::Packed { .. });
        let is_cuda = grad.device().facts().kind == DeviceKind::Cuda;
        let row_sum = is_cuda && is_packed && at.wants_row_sum(0);
        let mut outs = call(AttentionBackward { of: *self, row_sum }, &ins)?.into_iter();
        for (i, gradient) in outs.by_ref().take(self.arrangement.operands()).enumerate() {
            results[i] = at.wants(i).then_some(gradient);
        }
        if let (Some(gradient), Some(sum)) = (&results[0], outs.next()) {
            gradient.bring_row_sum(sum);
        }
        Ok(results)
    }
}

impl AttentionBackward {
    fn arrangement(&self) -> Arrangement {
        self.of.arrangement
    }

    /// The inputs of the forward pass, and the last three inputs.
    fn forward_ins<'a, T>(&self, ins: &'a [T]) -> (&'a [T], [&'a T; 3]) {
        let [first @ .., out, log_sums, grad] = ins else { unreachable!("called with them") };
        (first, [out, log_sums, grad])
    }
}

impl Kernel for AttentionBackward {
    fn name(&self) -> &'static str {
        "scaled_dot_product_attention_backward"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        dtype
    }

    fn varies(&self) -> Option<Varies> {
        self.of.dropout.map(|(_, from)| Varies::Random(from))
    }

    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(AttentionBackward { of: self.of.with_stream(from), ..*self }))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let all = call.ins.clone();
        let (ins, [out, log_sums, grad]) = self.forward_ins(&all);
        let layouts: SmallVec<[&Layout; 4]> = ins.iter().map(|x| x.layout).collect();
        let to: SmallVec<[&Layout; 3]> = call.outs.iter().map(|x| x.layout).collect();
        let of_out = [out.layout, grad.layout];
        let by_tiles = self.of.is_by_tiles((&layouts, ins[0].dtype), &of_out, &to, call.facts);
        let (params, heads) = self.of.params(ins, by_tiles);
        let shape = params.shape.into();
        let of_out = [out, grad].map(|x| cuda::attention::Heads {
            address: x.address,
            strides: self.arrangement().out_strides(x.layout, &shape),
        });
        let outs = call.outs.clone();
        let to = self.of.cuda_heads(&outs, &shape);
        let row_sum = if self.row_sum { outs.last().copied() } else { None };
        let is_summed = params.backward(call, heads, of_out, *log_sums, (to, row_sum))?;
        match row_sum {
            Some(row_sum) if !is_summed => {
                cuda::reduce::sum(call, outs[0], row_sum, &[true, true, false], 1.0)
            }
            _ => Ok(()),
        }
    }

    fn cpu(&self, mut call: CpuCall<'_>) -> Result<()> {
        let scratch = call.scratch();
        let (ins, [out, log_sums, grad]) = self.forward_ins(&call.ins);
        let (shape, heads) = self.arrangement().heads(ins);
        let scores = self.of.scores(&shape, ins.get(self.arrangement().operands()));
        let of_out = [out, grad].map(|tensor| Heads {
            bytes: tensor.bytes(),
            dtype: tensor.dtype(),
            strides: self.arrangement().out_strides(tensor.layout(), &shape),
        });
        let layouts: SmallVec<[&Layout; 3]> = call.outs.iter().map(|out| out.layout()).collect();
        let places = self.arrangement().places(&layouts, &shape);
        let dtype = heads[0].dtype;
        let cuts: SmallVec<[Cut<'_, u8>; 3]> =
            call.outs.into_iter().map(|out| Cut::new(out.bytes())).collect();
        let to = Gradients {
            dtype,
            memory: places.map(|(i, ..)| &cuts[i]),
            begins: places.map(|(_, begin, _)| begin),
            strides: places.map(|(.., strides)| strides),
        };
        attention_backward(&shape, &scores, heads, of_out, log_sums.bytes(), &to, scratch);
        Ok(())
    }
}

impl Operator for AttentionBackward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        if ins.len() < self.arrangement().operands() + 3 {
            return Err(Error::argument(
                self.name(),
                "needs the tensors that the forward pass saved, and a gradient",
            ));
        }
        let operands = ins.iter().take(self.arrangement().operands());
        let grads = operands.map(|meta| Output::laid_out(operands::laid_like(meta.layout), meta.dtype));
        let sum = self.row_sum.then(|| Output::new(&ins[0].shape()[ins[0].rank() - 1..], ins[0].dtype));
        Ok(grads.chain(sum).collect())
    }

    fn takes(&self, input: usize, layout: &Layout) -> bool {
        let has_rows = layout.rank() > 1;
        // A mask is read element by element. It is the only input before the output that is not an operand.
        !has_rows || input == self.arrangement().operands() || operands::rows_are_dense(layout)
    }

    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(Meta::shape).collect();
        let shape = self.arrangement().shape(&shapes);
        let (operands, [out, _, grad]) = self.forward_ins(ins);
        let layouts: SmallVec<[&Layout; 4]> = operands.iter().map(|meta| meta.layout).collect();
        let to: SmallVec<[&Layout; 3]> = outs.iter().map(|meta| meta.layout).collect();
        let of_out = [out.layout, grad.layout];
        let by_tiles = || self.of.is_by_tiles((&layouts, ins[0].dtype), &of_out, &to, device);
        // If attention's kernels do not compute the sum, a separate pass does.
        let sum = || {
            let [batch, rows, cols] = ins[0].shape() else { return 0 };
            if self.row_sum { cuda::reduce::sum_scratch(*cols, batch * rows, ins[0].dtype) } else { 0 }
        };
        shape.map_or(0, |shape| match device.kind {
            DeviceKind::Cuda if by_tiles() => {
                let (sizes, numbers) = (shape.into(), cuda::attention::flash::scratch(&shape.into()));
                match cuda::attention::flash::sums_scratch(&sizes, device) {
                    Some(parts) if self.row_sum => numbers + parts,
                    _ => numbers.max(sum()),
                }
            }
            DeviceKind::Cuda => cuda::attention::scratch(&shape.into(), ins[0].dtype, 2).max(sum()),
            _ => operands::float_bytes(backward_scratch_len(&shape, ins[0].dtype)),
        })
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(Meta::shape).collect();
        let shape = self.arrangement().shape(&shapes);
        let flops = shape.map_or(0, |shape| operands::flops(&shape, self.of.causal, 5));
        Cost::streaming(flops, ins, outs)
    }
}
