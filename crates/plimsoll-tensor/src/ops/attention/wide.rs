//! Attention of `float64`, by operations on whole tensors: exact, at the price of matrices of scores, as PyTorch's there.

use super::Attention;
use super::composed::Factors;
use super::operands::Arrangement;
use crate::cpu::kernels::attention::AttentionShape;
use crate::dtype::DType;
use crate::error::Result;
use crate::operator::{Meta, Operator};
use crate::road::create;
use crate::tensor::Tensor;

/// Far below any score: rows that see nothing stay finite.
const HIDDEN: f64 = -1e30;

impl Attention {
    /// The output for these operands, and a mask if there is one more.
    pub(super) fn wide(&self, ins: &[&Tensor]) -> Result<Tensor> {
        let metas: Vec<Meta<'_>> =
            ins.iter().map(|x| Meta { layout: &x.data().layout, dtype: x.dtype() }).collect();
        self.infer(&metas)?;
        let operands = self.arrangement.operands();
        let shapes: Vec<&[usize]> = ins[..operands].iter().map(|x| x.shape()).collect();
        let shape = self.arrangement.shape(&shapes)?;
        let [q, k, v] = self.apart(|i| Ok(ins[i].clone()), &shape)?;
        let mut scores = q.matmul(&k.transpose(-1, -2)?)?.mul_scalar(self.scale)?;
        let hidden = self.hidden(ins.get(operands).copied(), &shape, &mut scores)?;
        let mut weights = match &hidden {
            None => scores.softmax(-1)?,
            // A row that sees no key has weights of 0.
            Some(hidden) => {
                let blind = hidden.all_dims(&[-1])?.unsqueeze(-1)?;
                scores.masked_fill(hidden, HIDDEN)?.softmax(-1)?.masked_fill(&blind, 0.0)?
            }
        };
        if let Some(dropout) = self.dropout {
            let factors = create(Factors { shape, dropout }, q.device())?.remove(0);
            weights = weights.mul(&factors.to_dtype(DType::F64)?.reshape(weights.shape())?)?;
        }
        let &AttentionShape { batch, heads, queries, value_dim, .. } = &shape;
        let out = weights.matmul(&v)?.reshape([batch, heads, queries, value_dim].as_slice())?;
        match self.arrangement {
            Arrangement::Apart => Ok(out),
            Arrangement::Packed { .. } => {
                out.transpose(1, 2)?.reshape([batch, queries, heads * value_dim].as_slice())
            }
        }
    }

    /// Which scores do not count, if any; a mask of numbers is added to the others.
    fn hidden(
        &self,
        mask: Option<&Tensor>,
        shape: &AttentionShape,
        scores: &mut Tensor,
    ) -> Result<Option<Tensor>> {
        let &AttentionShape { heads, kv_heads, queries, keys, .. } = shape;
        let Some(mask) = mask else {
            if !self.causal {
                return Ok(None);
            }
            let ones = Tensor::full(&[queries, keys], 1.0, DType::Bool, scores.device())?;
            return ones.triu(1).map(Some);
        };
        let &[b, h, t, s] = mask.shape() else { unreachable!("of four dimensions") };
        let groups = if h == 1 { [1, 1] } else { [kv_heads, heads / kv_heads.max(1)] };
        let mask = mask.reshape([b, groups[0], groups[1], t, s].as_slice())?;
        let hidden = match mask.dtype() {
            DType::Bool => mask.logical_not()?,
            _ => {
                *scores = scores.add(&mask)?;
                mask.detach().lt_scalar(HIDDEN)?
            }
        };
        hidden.expand(scores.shape()).map(Some)
    }
}
