//! Combines the masks of an attention layer into one mask of its scores.

use plimsoll_tensor::{DType, Error, Result, Tensor};

/// Sizes of the scores.
pub(super) struct Scores {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
}

/// Masks as PyTorch's layers take them: in a `bool` mask, true hides a key; a floating-point mask is added to the scores.
pub(super) struct Masks<'a> {
    pub(super) attn: Option<&'a Tensor>,
    pub(super) padding: Option<&'a Tensor>,
    pub(super) causal: bool,
}

impl Masks<'_> {
    /// One mask for `scaled_dot_product_attention`, where true keeps a key; `None` if only `causal` hides keys. The mask has a
    /// matrix for each head only if one of the given masks has.
    pub(super) fn kept(&self, scores: &Scores) -> Result<Option<Tensor>> {
        let [attn, padding] = self.wide(scores)?;
        let Some(first) = attn.as_ref().or(padding.as_ref()) else { return Ok(None) };
        let device = first.device().clone();
        let mut parts: Vec<Tensor> = attn.into_iter().chain(padding).collect();
        if self.causal {
            parts.push(later_keys(scores, &device)?);
        }
        let mut whole: Option<Tensor> = None;
        if parts.iter().all(|mask| mask.dtype() == DType::Bool) {
            for mask in parts {
                let keep = mask.logical_not()?;
                whole = Some(whole.map_or(Ok(keep.clone()), |whole| whole.logical_and(&keep))?);
            }
            return Ok(whole);
        }
        sum(parts)
    }

    /// One mask to add to the scores; `None` if nothing hides a key.
    pub(super) fn added(&self, scores: &Scores, of: &Tensor) -> Result<Option<Tensor>> {
        let mut parts: Vec<Tensor> = self.wide(scores)?.into_iter().flatten().collect();
        if self.causal {
            parts.push(later_keys(scores, of.device())?);
        }
        sum(parts)
    }

    /// Both masks, expanded to four dimensions.
    fn wide(&self, scores: &Scores) -> Result<[Option<Tensor>; 2]> {
        let &Scores { batch, heads, queries, keys } = scores;
        let attn = |mask: &Tensor| match *mask.shape() {
            [a, b] if [a, b] == [queries, keys] => mask.reshape(&[1, 1, queries, keys]),
            [a, b, c] if [a, b, c] == [batch * heads, queries, keys] => {
                mask.reshape(&[batch, heads, queries, keys])
            }
            _ => {
                let wanted = format!("[{queries}, {keys}] or [{}, {queries}, {keys}]", batch * heads);
                Err(unfit("attn_mask", mask, &wanted))
            }
        };
        let padding = |mask: &Tensor| match *mask.shape() {
            [a, b] if [a, b] == [batch, keys] => mask.reshape(&[batch, 1, 1, keys]),
            [a] if batch == 1 && a == keys => mask.reshape(&[1, 1, 1, keys]),
            _ => Err(unfit("key_padding_mask", mask, &format!("[{batch}, {keys}]"))),
        };
        let checked = |mask: &Tensor| {
            if mask.dtype() == DType::Bool || mask.dtype().is_float() {
                return Ok(());
            }
            let expected = "a mask of bool or floating-point type";
            Err(Error::DType { op: "multihead_attention", expected, got: mask.dtype() })
        };
        self.attn.map_or(Ok(()), checked)?;
        self.padding.map_or(Ok(()), checked)?;
        Ok([self.attn.map(attn).transpose()?, self.padding.map(padding).transpose()?])
    }
}

fn unfit(name: &str, mask: &Tensor, wanted: &str) -> Error {
    let message = format!("{name} {:?}: needs {wanted}", mask.shape());
    Error::Shape { op: "multihead_attention", message }
}

/// True for the keys after each query.
fn later_keys(scores: &Scores, device: &plimsoll_tensor::Device) -> Result<Tensor> {
    Tensor::full(&[scores.queries, scores.keys], 1.0, DType::Bool, device)?.triu(1)
}

/// The sum of masks; true counts as minus infinity.
fn sum(parts: Vec<Tensor>) -> Result<Option<Tensor>> {
    let mut whole: Option<Tensor> = None;
    for mask in parts {
        let mask = match mask.dtype() {
            DType::Bool => {
                Tensor::zeros(mask.shape(), mask.device())?.masked_fill(&mask, f64::NEG_INFINITY)?
            }
            _ => mask,
        };
        whole = Some(whole.map_or(Ok(mask.clone()), |whole| whole.add(&mask))?);
    }
    Ok(whole)
}
