//! The two operators of a recurrent layer, each for all steps: [`Forward`] and [`Backward`]. They have no derivatives; the
//! function in `layer.rs` provides them.

use smallvec::smallvec;

use super::parameters::{Layer, NAME};
use crate::cpu::kernels::matmul::Product;
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::recurrent::{
    Cell, Gradients, Kept, Start, Steps, backward, backward_scratch_len, forward, forward_scratch_len,
};
use crate::cuda::{self, CudaCall};
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Cost, Meta, Operator, Output, Outputs};
use crate::ops::want_same;
use crate::view::In;

/// `projected inputs, h0[, c0], w_hh[, b_hh][, w_hr] -> y[, gates, extra]`. The gates, or the output of a plain RNN, overwrite
/// the projected inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) layer: Layer,
}

/// `dy, dh, y, h0, w_hh[, dc, c0][, gates, extra][, w_hr] -> gradients of the projected inputs, of h0[, of c0][, of the state's
/// part, or of the projection's input]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) layer: Layer,
}

impl Layer {
    /// The sizes, from the shape of a sequence, `[…, …, k · hidden]`, and that of the state's weight.
    fn steps(self, sequence: &[usize], weight: &[usize]) -> Steps {
        let Layer { cell, batch_first, reverse, projected, .. } = self;
        let (hidden, state) = (weight[0] / cell.gates(), weight[1]);
        let (time, batch) = if batch_first { (sequence[1], sequence[0]) } else { (sequence[0], sequence[1]) };
        Steps { cell, time, batch, hidden, state, projected, batch_first, reverse }
    }

    /// The index of the state's weight among the inputs of [`Forward`].
    fn weight_forward(self) -> usize {
        1 + self.states()
    }

    fn is_plain(self) -> bool {
        self.cell.gates() == 1
    }
}

impl Kernel for Forward {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        // The projected inputs are changed in place, and are not an input of the kernel.
        let weight = call.ins[self.layer.weight_forward() - 1].shape();
        let steps = self.layer.steps(call.outs[0].shape(), weight);
        cuda::recurrent::forward(call, &steps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        by_float!(call.outs[0].dtype(), T => self.run::<T>(call));
        Ok(())
    }
}

impl Forward {
    fn run<T: Float + Product>(self, mut call: CpuCall<'_>) {
        let scratch = bytemuck::cast_slice_mut(call.scratch());
        // The projected inputs are changed in place: the kernel gets them only as an output.
        let mut ins = call.ins.iter();
        let mut next = || ins.next().unwrap_or_else(|| unreachable!("inferred"));
        let h0 = next();
        let c0 = if self.layer.cell == Cell::Lstm { next().elements() } else { &[] };
        let weight = next();
        let start = Start {
            h0: h0.elements::<T>(),
            c0,
            weight: weight.elements(),
            bias: if self.layer.biases { ins.next().map(In::elements) } else { None },
            projection: if self.layer.projected { ins.next().map(In::elements) } else { None },
        };
        let steps = self.layer.steps(call.outs[0].shape(), weight.shape());
        let mut outs = call.outs.into_iter().map(crate::view::Out::elements::<T>);
        let mut next = || outs.next().unwrap_or(&mut []);
        forward(&steps, start, (next(), next(), next()), scratch);
    }
}

impl Operator for Forward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        want_same(NAME, ins)?;
        let projected = &ins[0];
        let steps = self.layer.steps(projected.shape(), ins[self.layer.weight_forward()].shape());
        let new =
            |width: usize| Output::new(&[projected.shape()[0], projected.shape()[1], width], projected.dtype);
        let in_place = Output::in_place(0, projected);
        Ok(match self.layer.is_plain() {
            true => smallvec![in_place],
            false => smallvec![new(steps.state), in_place, new(steps.hidden)],
        })
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let steps = self.layer.steps(ins[0].shape(), ins[self.layer.weight_forward()].shape());
        (forward_scratch_len(&steps) * ins[0].dtype.accumulator().size()) as u64
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let hidden = ins[1].shape()[1];
        Cost::streaming(2 * (ins[0].layout.len() * hidden) as u64, ins, outs)
    }
}

impl Kernel for Backward {
    fn name(&self) -> &'static str {
        "recurrent_backward"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let steps = self.layer.steps(call.ins[0].shape(), call.ins[4].shape());
        cuda::recurrent::backward(call, &steps)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        by_float!(call.ins[0].dtype(), T => self.run::<T>(call));
        Ok(())
    }
}

impl Backward {
    fn run<T: Float + Product>(self, mut call: CpuCall<'_>) {
        let scratch = bytemuck::cast_slice_mut(call.scratch());
        let (cell, ins) = (self.layer.cell, &call.ins);
        let lstm = cell == Cell::Lstm;
        let part = |i: usize, there: bool| if there { ins[i].elements::<T>() } else { &[] };
        let gates = if lstm { 7 } else { 5 };
        let projected = self.layer.projected;
        let start = Start {
            h0: part(3, true),
            c0: part(6, lstm),
            weight: part(4, true),
            bias: None,
            projection: projected.then(|| part(9, true)),
        };
        let plain = self.layer.is_plain();
        let kept = Kept { y: part(2, true), gates: part(gates, !plain), extra: part(gates + 1, !plain) };
        let steps = self.layer.steps(ins[0].shape(), ins[4].shape());
        let (dy, last_h, last_c) = (part(0, true), part(1, true), part(5, lstm));
        let mut outs = call.outs.into_iter().map(crate::view::Out::elements::<T>);
        let mut next = |there: bool| if there { outs.next().unwrap_or(&mut []) } else { &mut [] };
        let (gates, dh, dc) = (next(true), next(true), next(lstm));
        let to = Gradients { gates, dh, dc, extra: next(cell == Cell::Gru || projected) };
        to.dh.copy_from_slice(last_h);
        to.dc.copy_from_slice(last_c);
        backward(&steps, start, (dy, kept), to, scratch);
    }
}

impl Operator for Backward {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        want_same(NAME, ins)?;
        let (y, h0) = (&ins[2], &ins[3]);
        let wide = [y.shape()[0], y.shape()[1], ins[4].shape()[0]];
        let new = |shape: &[usize]| Output::new(shape, y.dtype);
        let mut outs: Outputs = smallvec![new(&wide), new(h0.shape())];
        match self.layer.cell {
            Cell::Lstm => {
                outs.push(new(ins[6].shape()));
                outs.extend(self.layer.projected.then(|| new(y.shape())));
            }
            Cell::Gru => outs.push(new(y.shape())),
            _ => {}
        }
        Ok(outs)
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }

    fn scratch(&self, ins: &[Meta<'_>], _: &[Meta<'_>], _: DeviceFacts) -> u64 {
        let steps = self.layer.steps(ins[0].shape(), ins[4].shape());
        (backward_scratch_len(&steps) * ins[0].dtype.accumulator().size()) as u64
    }

    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let hidden = ins[3].shape()[1];
        Cost::streaming(2 * (outs[0].layout.len() * hidden) as u64, ins, outs)
    }
}
