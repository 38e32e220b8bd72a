//! A recurrent layer composed of tensor operations, step by step: slower, but its derivative can be differentiated.

use super::parameters::Layer;
use crate::cpu::kernels::recurrent::Cell;
use crate::dispatch::Tensors;
use crate::error::Result;
use crate::tensor::Tensor;

/// Computes the same as [`Layer`], from the same inputs.
#[track_caller]
pub(super) fn layer(op: &Layer, ins: &[Tensor]) -> Result<Tensors> {
    let (x, weights) = (&ins[0], &ins[op.weight()..]);
    let hidden = weights[1].shape()[0] / op.cell.gates();
    let [of_input, of_state] = op.biases(weights);
    let projected = x.linear(&weights[0], of_input)?;
    let steps = projected.unbind(op.time())?;
    let (mut h, mut c) = (ins[1].clone(), (op.cell == Cell::Lstm).then(|| ins[2].clone()));
    let mut outs: Vec<Tensor> = Vec::new();
    let count = steps.len();
    for i in 0..count {
        let x = &steps[if op.reverse { count - 1 - i } else { i }];
        let state = h.linear(&weights[1], of_state)?;
        let gate = |of: &Tensor, k: usize| of.narrow(1, k * hidden, hidden);
        let both = |k: usize| gate(x, k)?.add(&gate(&state, k)?);
        h = match op.cell {
            Cell::Relu => both(0)?.relu()?,
            Cell::Tanh => both(0)?.tanh()?,
            Cell::Lstm => {
                let [i, f, o] = [both(0)?.sigmoid()?, both(1)?.sigmoid()?, both(3)?.sigmoid()?];
                let before = c.take().unwrap_or_else(|| unreachable!("an LSTM has a memory"));
                let now = f.mul(&before)?.add(&i.mul(&both(2)?.tanh()?)?)?;
                let h = o.mul(&now.tanh()?)?;
                c = Some(now);
                match op.projection(weights) {
                    Some(projection) => h.linear(projection, None)?,
                    None => h,
                }
            }
            Cell::Gru => {
                let (r, z) = (both(0)?.sigmoid()?, both(1)?.sigmoid()?);
                let n = gate(x, 2)?.add(&r.mul(&gate(&state, 2)?)?)?.tanh()?;
                n.add(&z.mul(&h.sub(&n)?)?)?
            }
        };
        outs.push(h.clone());
    }
    if op.reverse {
        outs.reverse();
    }
    let y = Tensor::stack(&outs.iter().collect::<Vec<_>>(), op.time())?;
    Ok([y, h].into_iter().chain(c).collect())
}
