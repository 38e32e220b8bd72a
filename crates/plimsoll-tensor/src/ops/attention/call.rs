//! The attention methods of tensors: their options, defaults and errors.

use smallvec::{SmallVec, smallvec};

use super::operands::{Arrangement, Attention, NAME};
use crate::dispatch::call;
use crate::error::{Error, Result};
use crate::layout::Dims;
use crate::tensor::Tensor;

/// Options of attention. The default is softmax(q kᵀ / √dim) v, with nothing else.
///
/// ```
/// use plimsoll_tensor::{AttentionOptions, Device, Tensor};
/// let x = Tensor::randn(&[2, 4, 16, 8], &Device::cpu())?; // batch, heads, rows, dim
/// let causal = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
/// let y = x.scaled_dot_product_attention(&x, &x, causal)?;
/// assert_eq!(y.shape(), [2, 4, 16, 8]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionOptions<'a> {
    /// The mask, broadcast to `[…, heads, queries, keys]`. A floating-point mask is added to the scores, and minus infinity
    /// hides a key; in a `bool` mask, false hides a key. A row that sees no key outputs 0.
    pub attn_mask: Option<&'a Tensor>,
    /// The probability of dropping a weight. Only a seed is saved.
    pub dropout_p: f64,
    /// Whether query `i` sees only the keys 0 to `i`. Cannot be combined with a mask.
    pub is_causal: bool,
    /// The factor that scores are multiplied by; `1 / √dim` if `None`.
    pub scale: Option<f64>,
    /// Whether keys and values may have fewer heads than the queries, each shared by an equal number of query heads.
    pub enable_gqa: bool,
}

impl AttentionOptions<'_> {
    fn operator(&self, arrangement: Arrangement, dim: usize, x: &Tensor) -> Result<Attention> {
        if !(0.0..=1.0).contains(&self.dropout_p) {
            let message = format!("dropout_p is {}: a probability must be from 0 to 1", self.dropout_p);
            return Err(Error::argument(NAME, message));
        }
        if self.is_causal && self.attn_mask.is_some() {
            let message = "both attn_mask and is_causal: put the causal part into the mask, or leave one out";
            return Err(Error::argument(NAME, message));
        }
        let scale = self.scale.unwrap_or_else(|| 1.0 / (dim as f64).sqrt());
        let dropout = (self.dropout_p > 0.0).then(|| (self.dropout_p, x.device().next_random()));
        Ok(Attention { arrangement, scale, causal: self.is_causal, dropout })
    }
}

impl Tensor {
    /// Attention of queries (`self`, `[…, heads, queries, dim]`) to keys `[…, heads, keys, dim]` with values `[…, heads, keys,
    /// value_dim]`: softmax(scale · q kᵀ + mask) v, of shape `[…, heads, queries, value_dim]`. In the output's memory, rows are
    /// outside heads, so that `transpose(1, 2)` and `reshape` join the heads without a copy. Views of a packed projection are
    /// read without a copy. The matrix of scores is never materialized, in either pass: only the inputs, the output and one
    /// number per row are saved. Like `torch.nn.functional.scaled_dot_product_attention`.
    ///
    /// A mask that requires a gradient, and a second derivative, do materialize the matrix of scores in the backward pass.
    ///
    /// # Errors
    /// If the sizes or dtypes are incompatible; if the numbers of heads differ without `enable_gqa`; if there is a mask
    /// and `is_causal` is set; if a probability is outside 0 to 1; or if memory runs out.
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: impl AsRef<Tensor>,
        value: impl AsRef<Tensor>,
        options: AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let rank = self.rank();
        if rank < 2 || [key, value].iter().any(|other| other.rank() != rank) {
            let message = format!(
                "query {:?}, key {:?} and value {:?}: needs two or more dimensions, the same number in each",
                self.shape(),
                key.shape(),
                value.shape()
            );
            return Err(Error::shape(NAME, message));
        }
        let [lead @ .., queries, dim] = self.shape() else { unreachable!("of two dimensions") };
        let heads = |x: &Tensor| if rank > 2 { x.shape()[rank - 3] } else { 1 };
        if !options.enable_gqa && (heads(self) != heads(key) || heads(self) != heads(value)) {
            let message = format!(
                "{} query heads, {} key heads and {} value heads: only `enable_gqa` shares heads",
                heads(self),
                heads(key),
                heads(value)
            );
            return Err(Error::shape(NAME, message));
        }
        let op = options.operator(Arrangement::Apart, *dim, self)?;
        let operands = [self, key, value].map(four_dimensions);
        let [q, k, v] = operands;
        let (q, k, v) = (q?, k?, v?);
        let mask = options.attn_mask.map(|mask| mask_of_four(mask, lead)).transpose()?;
        let mut ins: SmallVec<[&Tensor; 4]> = smallvec![&q, &k, &v];
        ins.extend(&mask);
        let out = call(op, &ins)?.remove(0);
        if rank == 4 {
            return Ok(out);
        }
        let shape: Dims = lead.iter().copied().chain([*queries, value.shape()[rank - 1]]).collect();
        out.reshape(shape.as_slice())
    }

    /// Self-attention of a packed projection `[batch, rows, (heads + 2 · kv_heads) · dim]`. Each row has its queries, then its
    /// keys, then its values. Returns `[batch, rows, heads · dim]`. The result equals the attention of the three parts, but the
    /// gradient is written packed, which saves three tensors of its size in the backward pass. If `kv_heads` is less than
    /// `heads`, heads are shared; `enable_gqa` is ignored.
    ///
    /// # Errors
    /// The same errors as [`Tensor::scaled_dot_product_attention`].
    #[track_caller]
    pub fn packed_attention(
        &self,
        heads: usize,
        kv_heads: usize,
        options: AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let arrangement = Arrangement::Packed { heads, kv_heads };
        let shape = arrangement.shape(&[self.shape()])?;
        let op = options.operator(arrangement, shape.dim, self)?;
        let mask = options.attn_mask.map(|mask| mask_of_four(mask, &[shape.batch, heads])).transpose()?;
        let mut ins: SmallVec<[&Tensor; 2]> = smallvec![self];
        ins.extend(&mask);
        Ok(call(op, &ins)?.remove(0))
    }
}

/// Reshapes to `[batch, heads, rows, columns]`: missing dimensions are 1, and further leading ones become one batch.
#[track_caller]
fn four_dimensions(x: &Tensor) -> Result<Tensor> {
    match x.rank() {
        4 => Ok(x.clone()),
        2 => x.unsqueeze(0)?.unsqueeze(0),
        3 => x.unsqueeze(0),
        rank => x.flatten(0, rank as isize - 4),
    }
}

/// A mask as four dimensions that broadcast. If several leading dimensions of the queries became one batch, so do those of the
/// mask.
#[track_caller]
fn mask_of_four(mask: &Tensor, lead: &[usize]) -> Result<Tensor> {
    let batch = &lead[..lead.len().saturating_sub(1)];
    if batch.len() > 1 && mask.rank() > 3 {
        let rest = &mask.shape()[mask.rank() - 3..];
        let shape: Dims = batch.iter().chain(rest).copied().collect();
        return mask.expand(&shape)?.flatten(0, batch.len() as isize - 1);
    }
    let mut wide = mask.clone();
    while wide.rank() < 4 {
        wide = wide.unsqueeze(0)?;
    }
    Ok(wide)
}
