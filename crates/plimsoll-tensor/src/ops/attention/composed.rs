//! The gradients of attention composed of tensor operations: for second derivatives, and for a mask that requires a gradient.
//! These materialize matrices of scores, as PyTorch does in these cases.

use std::sync::Arc;

use smallvec::smallvec;

use super::operands::{Arrangement, Attention};
use crate::cpu::kernels::attention::{AttentionShape, dropout_factors};
use crate::cpu::kernels::number::{Float, by_float};
use crate::cpu::kernels::philox::Dropout;
use crate::cuda::{self, CudaCall};
use crate::dispatch::{call_one, create};
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{CpuCall, Kernel, Varies};
use crate::operator::{Backward, Meta, Operator, Output, Outputs};
use crate::random::RandomStream;
use crate::tensor::{Grads, Tensor};

/// Far below any score, but finite, so that rows that see no key stay finite.
const HIDDEN: f64 = -1e30;

/// `[, mask] -> the bias of the scores`: the mask as numbers, with minus infinity replaced by a finite number; or the causal
/// mask.
#[derive(Clone, Copy, Debug)]
struct Bias {
    queries: usize,
    keys: usize,
    /// The dtype of the scores.
    dtype: DType,
}

impl Kernel for Bias {
    fn name(&self) -> &'static str {
        "attention_bias"
    }

    fn cpu_type(&self, dtype: DType) -> DType {
        if dtype.is_float() { dtype.accumulator() } else { dtype }
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (ins, out) = (call.ins.clone(), call.outs[0]);
        let text = match ins.first() {
            Some(mask) if mask.dtype == DType::Bool => format!("a != C(0.0) ? C(0.0) : C({HIDDEN:?})"),
            Some(_) => format!("a < C({HIDDEN:?}) ? C({HIDDEN:?}) : a"),
            None => {
                let word = if self.dtype == DType::F64 {
                    HIDDEN.to_bits()
                } else {
                    u64::from((HIDDEN as f32).to_bits())
                };
                let words = [0, word];
                let of = cuda::indexing::mask::Triangle { upper: false, diagonal: 0, words };
                return cuda::indexing::mask::triangle(call, None, of);
            }
        };
        let expression = cuda::elementwise::Expression::new(text, self.dtype);
        cuda::elementwise::evaluate(call, expression, &ins, out)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let out = call.outs.into_iter().next().unwrap_or_else(|| unreachable!("inferred"));
        by_float!(self.dtype, T => {
            let (out, hidden) = (out.elements::<T>(), <T as Float>::of(HIDDEN));
            let hide = |hides: bool| if hides { hidden } else { 0.0 };
            match call.ins.first() {
                Some(mask) if mask.dtype() == DType::Bool => {
                    out.iter_mut().zip(mask.elements::<u8>()).for_each(|(out, &keep)| *out = hide(keep == 0));
                }
                Some(mask) => by_float!(mask.dtype(), M => {
                    out.iter_mut()
                        .zip(mask.elements::<M>())
                        .for_each(|(out, &x)| *out = if x.wide() < HIDDEN { hidden } else { <T as Float>::of(x.wide()) });
                }),
                None => {
                    let hides = |i: usize| i % self.keys > i / self.keys;
                    out.iter_mut().enumerate().for_each(|(i, out)| *out = hide(hides(i)));
                }
            }
        });
        Ok(())
    }
}

impl Operator for Bias {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let of_causal = [1, 1, self.queries, self.keys];
        Ok(smallvec![Output::new(ins.first().map_or(&of_causal[..], Meta::shape), self.dtype)])
    }

    fn takes(&self, _: usize, layout: &crate::layout::Layout) -> bool {
        layout.is_contiguous()
    }

    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        Ok(smallvec![at.grad(0).cloned()])
    }
}

/// `() -> dropout's factors of the weights`, `[batch, heads, queries, keys]`.
#[derive(Clone, Copy, Debug)]
struct Factors {
    shape: AttentionShape,
    /// The probability of dropping a weight, and the random stream.
    dropout: (f64, RandomStream),
}

impl Kernel for Factors {
    fn name(&self) -> &'static str {
        "attention_dropout"
    }

    fn varies(&self) -> Option<Varies> {
        Some(Varies::Random(self.dropout.1))
    }

    fn with_random(&self, from: RandomStream) -> Option<Arc<dyn Kernel>> {
        Some(Arc::new(Factors { dropout: (self.dropout.0, from), ..*self }))
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        let (p, from) = self.dropout;
        let (words, stream) = Dropout::new(p, from).words();
        cuda::random::factors(call, self.shape.keys, words, stream)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([], [out]) = call.split();
        let (p, from) = self.dropout;
        dropout_factors(&self.shape, &Dropout::new(p, from), out.elements());
        Ok(())
    }
}

impl Operator for Factors {
    fn infer(&self, _: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::new(&self.shape.of_scores(), DType::F32)])
    }
}

impl Attention {
    /// With `P` the weights, `f` dropout's factors and `g` the output's gradient: `dv = (P ∘ f)ᵀ g`, `dP = g vᵀ ∘ f`, `dS = P ∘
    /// (dP - sum over a row of P ∘ dP)`, `dq = scale · dS k`, `dk = scale · dSᵀ q`; `dS` is also the gradient of the mask.
    pub(super) fn composed(&self, at: &Backward<'_>, grad: &Tensor) -> Result<Grads> {
        let operands = self.arrangement.operands();
        let shapes = [0, 1, 2].map(|i| at.shape(i.min(operands - 1)));
        let shape = self.arrangement.shape(&shapes[..operands])?;
        let [q, k, v] = self.apart(|i| at.input(i), &shape)?;
        let grad = self.grouped(grad, &shape)?;
        let mask = (at.inputs() > operands).then(|| at.input(operands)).transpose()?;
        let log_sums = at.output(1)?.detach();
        let weights = self.weights([&q, &k], mask.as_ref(), &log_sums, &shape)?;
        let factors = match self.dropout {
            None => None,
            Some(dropout) => {
                let factors = create(Factors { shape, dropout }, q.device())?.remove(0);
                Some(factors.to_dtype(q.dtype())?.reshape(weights.shape())?)
            }
        };
        let dropped = |x: Tensor| factors.as_ref().map_or(Ok(x.clone()), |factors| x.mul(factors));
        let dv = dropped(weights.clone())?.transpose(-1, -2)?.matmul(&grad)?;
        let slopes = weights.mul(&dropped(grad.matmul(&v.transpose(-1, -2)?)?)?)?;
        let ds = slopes.sub(&weights.mul(&slopes.sum_keepdim(&[-1])?)?)?;
        let dq = ds.matmul(&k)?.mul_scalar(self.scale)?;
        let dk = ds.transpose(-1, -2)?.matmul(&q)?.mul_scalar(self.scale)?;
        let mut results = self.joined(at, [dq, dk.sum_dims(&[2])?, dv.sum_dims(&[2])?], &shape)?;
        if let Some(mask) = mask {
            let of_scores = ds.reshape(shape.of_scores().as_slice())?;
            let wanted = at.wants(operands).then(|| of_scores.sum_to(mask.shape()));
            results.push(wanted.transpose()?);
        }
        Ok(results)
    }

    /// The attention weights, `[batch, kv_heads, group, queries, keys]`.
    #[track_caller]
    fn weights(
        &self,
        [q, k]: [&Tensor; 2],
        mask: Option<&Tensor>,
        log_sums: &Tensor,
        shape: &AttentionShape,
    ) -> Result<Tensor> {
        let &AttentionShape { batch, heads, kv_heads, queries, keys, .. } = shape;
        let mut scores = q.matmul(&k.transpose(-1, -2)?)?.mul_scalar(self.scale)?;
        let bias = Bias { queries, keys, dtype: scores.dtype().accumulator() };
        let bias = match mask {
            Some(mask) => Some(call_one(bias, &[mask])?),
            None if self.causal => Some(create(bias, q.device())?.remove(0)),
            None => None,
        };
        if let Some(bias) = bias {
            let &[b, h, t, s] = bias.shape() else { unreachable!("of four dimensions") };
            let groups = if h == 1 { [1, 1] } else { [kv_heads, heads / kv_heads.max(1)] };
            let bias = bias.to_dtype(scores.dtype())?.reshape([b, groups[0], groups[1], t, s].as_slice())?;
            scores = scores.add(&bias)?;
        }
        // The log-sum-exp of a row that sees no key is minus infinity, and its weights are all 0.
        let sees = log_sums.exp()?.not_positive()?.affine(-1.0, 1.0)?;
        let rows = [batch, kv_heads, heads / kv_heads.max(1), queries, 1];
        scores.softmax(-1)?.mul(&sees.to_dtype(scores.dtype())?.reshape(rows.as_slice())?)
    }

    /// Splits the operands: queries `[batch, kv_heads, group, queries, dim]`, keys and values `[batch, kv_heads, 1, keys, …]`.
    #[track_caller]
    pub(super) fn apart(
        &self,
        input: impl Fn(usize) -> Result<Tensor>,
        shape: &AttentionShape,
    ) -> Result<[Tensor; 3]> {
        let &AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim } = shape;
        let group = heads / kv_heads.max(1);
        let [q, k, v] = match self.arrangement {
            Arrangement::Apart => [input(0)?, input(1)?, input(2)?],
            Arrangement::Packed { .. } => {
                let rows = input(0)?.reshape([batch, queries, heads + 2 * kv_heads, dim].as_slice())?;
                let part = |start, len| rows.narrow(2, start, len)?.transpose(1, 2);
                [part(0, heads)?, part(heads, kv_heads)?, part(heads + kv_heads, kv_heads)?]
            }
        };
        Ok([
            q.reshape([batch, kv_heads, group, queries, dim].as_slice())?,
            k.reshape([batch, kv_heads, 1, keys, dim].as_slice())?,
            v.reshape([batch, kv_heads, 1, keys, value_dim].as_slice())?,
        ])
    }

    /// A gradient of the output as `[batch, kv_heads, group, queries, value_dim]`.
    #[track_caller]
    fn grouped(&self, grad: &Tensor, shape: &AttentionShape) -> Result<Tensor> {
        let &AttentionShape { batch, heads, kv_heads, queries, value_dim, .. } = shape;
        let heads_first = match self.arrangement {
            Arrangement::Apart => grad.clone(),
            Arrangement::Packed { .. } => {
                grad.reshape([batch, queries, heads, value_dim].as_slice())?.transpose(1, 2)?
            }
        };
        heads_first.reshape([batch, kv_heads, heads / kv_heads.max(1), queries, value_dim].as_slice())
    }

    /// The gradients, reshaped to the operands' shapes.
    fn joined(&self, at: &Backward<'_>, grads: [Tensor; 3], shape: &AttentionShape) -> Result<Grads> {
        let [dq, dk, dv] = grads;
        match self.arrangement {
            Arrangement::Apart => {
                let mut results = Grads::new();
                for (i, grad) in [dq, dk, dv].into_iter().enumerate() {
                    results.push(at.wants(i).then(|| grad.reshape(at.shape(i))).transpose()?);
                }
                Ok(results)
            }
            Arrangement::Packed { .. } => {
                let &AttentionShape { batch, heads, kv_heads, queries, dim, .. } = shape;
                let rows = |grad: Tensor, count: usize| {
                    let rows = grad.reshape([batch, count, queries, dim].as_slice())?.transpose(1, 2)?;
                    rows.reshape([batch, queries, count * dim].as_slice())
                };
                let parts = [rows(dq, heads)?, rows(dk, kv_heads)?, rows(dv, kv_heads)?];
                let packed = Some(Tensor::cat(&parts.each_ref(), -1)?);
                Ok(smallvec![packed])
            }
        }
    }
}
