//! Multi-head attention with its projections, as a layer: [`MultiheadAttention`].

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{AttentionOptions, DType, Error, PadMode, Result, Tensor};

use super::attention_mask::{Masks, Scores};
use super::{Init, Linear, Mode, Module, Parameter, Scope};
use crate::members;

const NAME: &str = "multihead_attention";

/// The options of [`MultiheadAttention`]. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiheadAttentionOptions {
    /// Dropout probability of attention weights while training.
    pub dropout: f64,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Width of the keys, if it differs from that of the queries.
    pub kdim: Option<usize>,
    /// Width of the values, if it differs from that of the queries.
    pub vdim: Option<usize>,
    /// Whether tensors are `[batch, length, width]` instead of `[length, batch, width]`.
    pub batch_first: bool,
    /// Whether a trained key and value (`bias_k`, `bias_v`) are added to each sequence.
    pub add_bias_kv: bool,
    /// Whether a key and a value of zeros are added to each sequence.
    pub add_zero_attn: bool,
}

impl Default for MultiheadAttentionOptions {
    fn default() -> Self {
        MultiheadAttentionOptions {
            dropout: 0.0,
            bias: true,
            kdim: None,
            vdim: None,
            batch_first: false,
            add_bias_kv: false,
            add_zero_attn: false,
        }
    }
}

/// The options of one call to [`MultiheadAttention`]: masks, and whether it returns the weights.
///
/// Masks follow PyTorch's layer: where a mask of `bool` is **true**, a key is hidden (the opposite of
/// [`Tensor::scaled_dot_product_attention`]); a floating-point mask is added to the scores.
#[derive(Clone, Copy, Debug, Default)]
pub struct MultiheadOptions<'a> {
    /// Marks the keys that are padding: `[batch, keys]`, or `[keys]` without a batch.
    pub key_padding_mask: Option<&'a Tensor>,
    /// A mask of scores: `[queries, keys]`, or `[batch · heads, queries, keys]`.
    pub attn_mask: Option<&'a Tensor>,
    /// Whether query `i` sees only keys 0 to `i`. Needs no mask.
    pub is_causal: bool,
    /// Whether to return the attention weights, which are a matrix for each head. Without them, memory is linear in the sequence
    /// lengths. PyTorch's default is true.
    pub need_weights: bool,
    /// Whether to return the weights of each head instead of their mean over heads; `average_attn_weights=False` in PyTorch.
    pub weights_of_each_head: bool,
}

/// Multi-head attention: projects queries, keys and values, attends with several heads, and projects the result back. Like
/// `torch.nn.MultiheadAttention`.
///
/// ```
/// use plimsoll::nn::{Module, MultiheadAttention, MultiheadAttentionOptions, MultiheadOptions, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let options = MultiheadAttentionOptions { batch_first: true, ..MultiheadAttentionOptions::default() };
/// let attention = MultiheadAttention::new(&Scope::new(&device, 1), 16, 4, options)?;
/// let x = Tensor::randn(&[2, 5, 16], &device)?; // batch, length, width
/// let (y, _) = attention.forward(&x, &x, &x, MultiheadOptions { is_causal: true, ..MultiheadOptions::default() })?;
/// assert_eq!(y.shape(), [2, 5, 16]);
/// let names: Vec<String> = attention.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    label: LabelId,
    width: usize,
    heads: usize,
    dropout: f64,
    batch_first: bool,
    mode: Mode,
    /// The projections of queries, keys and values, `[3 · width, width]`; used if all have the same width.
    in_proj_weight: Option<Parameter>,
    /// The three separate projections, used if the widths differ.
    q_proj_weight: Option<Parameter>,
    k_proj_weight: Option<Parameter>,
    v_proj_weight: Option<Parameter>,
    in_proj_bias: Option<Parameter>,
    /// `[1, 1, width]`: one more key and value.
    bias_k: Option<Parameter>,
    bias_v: Option<Parameter>,
    add_zero_attn: bool,
    out_proj: Linear,
}

impl MultiheadAttention {
    /// A layer for queries of width `embed_dim`, which must be a multiple of `num_heads`.
    ///
    /// # Errors
    /// If the width is not a multiple of the number of heads, a probability is outside 0 to 1, the path is already in
    /// use ([`Scope::parameter`]), or memory runs out.
    pub fn new(
        scope: &Scope,
        embed_dim: usize,
        num_heads: usize,
        options: MultiheadAttentionOptions,
    ) -> Result<MultiheadAttention> {
        if embed_dim == 0 || num_heads == 0 || !embed_dim.is_multiple_of(num_heads) {
            let message = format!("a width of {embed_dim} is not divisible by {num_heads} heads");
            return Err(Error::Argument { op: NAME, message });
        }
        if !(0.0..=1.0).contains(&options.dropout) {
            let message = format!("a dropout of {} is not a probability: use 0 to 1", options.dropout);
            return Err(Error::Argument { op: NAME, message });
        }
        let (kdim, vdim) = (options.kdim.unwrap_or(embed_dim), options.vdim.unwrap_or(embed_dim));
        let alike = kdim == embed_dim && vdim == embed_dim;
        let weight = |there: bool, name: &str, outputs: usize, inputs: usize| {
            let init = Init::xavier_uniform(inputs, outputs);
            there.then(|| scope.parameter(name, &[outputs, inputs], init)).transpose()
        };
        let in_proj_weight = weight(alike, "in_proj_weight", 3 * embed_dim, embed_dim)?;
        let q_proj_weight = weight(!alike, "q_proj_weight", embed_dim, embed_dim)?;
        let k_proj_weight = weight(!alike, "k_proj_weight", embed_dim, kdim)?;
        let v_proj_weight = weight(!alike, "v_proj_weight", embed_dim, vdim)?;
        let bias = |scope: &Scope, name: &str, size: usize| {
            options.bias.then(|| scope.parameter(name, &[size], Init::Zeros)).transpose()
        };
        let in_proj_bias = bias(scope, "in_proj_bias", 3 * embed_dim)?;
        let added = |name: &str| {
            let make =
                || scope.parameter(name, &[1, 1, embed_dim], Init::xavier_normal(embed_dim, embed_dim)); // as `xavier_normal_` counts them
            options.add_bias_kv.then(make).transpose()
        };
        let (bias_k, bias_v) = (added("bias_k")?, added("bias_v")?);
        let out = scope.at("out_proj");
        let out_weight = out.parameter("weight", &[embed_dim, embed_dim], Init::default_for(embed_dim))?;
        let out_proj = Linear::of(&out, out_weight, bias(&out, "bias", embed_dim)?);
        Ok(MultiheadAttention {
            label: scope.label(),
            width: embed_dim,
            heads: num_heads,
            dropout: options.dropout,
            batch_first: options.batch_first,
            mode: Mode::default(),
            in_proj_weight,
            q_proj_weight,
            k_proj_weight,
            v_proj_weight,
            in_proj_bias,
            bias_k,
            bias_v,
            add_zero_attn: options.add_zero_attn,
            out_proj,
        })
    }

    /// Attention of `query` to `key` with values `value`. With `need_weights`, also returns the weights, `[batch, queries, keys]`
    /// or `[batch, heads, queries, keys]`. Tensors are `[length, batch, width]`, `[batch, length, width]` with `batch_first`, or
    /// `[length, width]`. If all three are the same tensor, they are projected in one product. Like
    /// `torch.nn.MultiheadAttention.forward`.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: MultiheadOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let _owner = Span::layer(self.label);
        self.check(query, key, value)?;
        let batched = query.rank() == 3;
        let swap = batched && !self.batch_first;
        let lay = |x: &Tensor| if swap { x.transpose(0, 1) } else { Ok(x.clone()) };
        let lead = |x: Tensor| if batched { lay(&x) } else { x.unsqueeze(0) };
        let rows = |x: &Tensor| x.shape()[if swap || !batched { 0 } else { 1 }];
        let scores = Scores {
            batch: if batched { query.shape()[usize::from(swap)] } else { 1 },
            heads: self.heads,
            queries: rows(query),
            keys: rows(key),
        };
        let masks =
            Masks { attn: options.attn_mask, padding: options.key_padding_mask, causal: options.is_causal };
        let dropout_p = if self.mode.is_training() { self.dropout } else { 0.0 };
        let (mixed, weights) = if options.need_weights {
            let [q, k, v] = self.project(query, key, value)?;
            let q = self.split(&lead(q)?)?;
            let [k, v] = self.extended(self.split(&lead(k)?)?, self.split(&lead(v)?)?)?;
            let weights =
                q.mul_scalar(1.0 / ((self.width / self.heads) as f64).sqrt())?.matmul(&k.transpose(2, 3)?)?;
            let weights = match masks.added(&scores, query)?.map(|mask| self.wider(&mask)).transpose()? {
                Some(mask) => weights.add(&mask)?.softmax(-1)?,
                None => weights.softmax(-1)?,
            };
            let weights = weights.dropout(dropout_p, dropout_p > 0.0)?;
            (self.join(&weights.matmul(&v)?)?, Some(weights))
        } else {
            let mut mask = masks.kept(&scores)?;
            // As in PyTorch, `is_causal` without a mask hides the added keys, because these come after all other
            // keys.
            if self.added_keys() > 0 {
                mask = mask.map(|mask| self.wider(&mask)).transpose()?;
            }
            let attention = AttentionOptions {
                attn_mask: mask.as_ref(),
                dropout_p,
                is_causal: options.is_causal && mask.is_none(),
                ..AttentionOptions::default()
            };
            let alike = query.is_same(key) && key.is_same(value) && self.added_keys() == 0;
            let packed = self.in_proj_weight.as_ref().filter(|_| alike);
            let mixed = match packed {
                Some(weight) => {
                    let qkv = query.linear(weight, self.in_proj_bias.as_deref())?;
                    lead(qkv)?.packed_attention(self.heads, self.heads, attention)?
                }
                None => {
                    let [q, k, v] = self.project(query, key, value)?;
                    let q = self.split(&lead(q)?)?;
                    let [k, v] = self.extended(self.split(&lead(k)?)?, self.split(&lead(v)?)?)?;
                    self.join(&q.scaled_dot_product_attention(&k, &v, attention)?)?
                }
            };
            (mixed, None)
        };
        let mixed = if batched { lay(&mixed)? } else { mixed.squeeze(0)? };
        let out = self.out_proj.forward(&mixed)?;
        let weights = weights
            .map(|weights| {
                let weights = if options.weights_of_each_head { weights } else { weights.mean_dims(&[1])? };
                if batched { Ok(weights) } else { weights.squeeze(0) }
            })
            .transpose()?;
        Ok((out, weights))
    }

    fn check(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<()> {
        let [q, k, v] = [query, key, value].map(Tensor::shape);
        let width =
            |weight: &Option<Parameter>| weight.as_ref().map_or(self.width, |weight| weight.shape()[1]);
        let widths = [self.width, width(&self.k_proj_weight), width(&self.v_proj_weight)];
        let fits = matches!(q.len(), 2 | 3)
            && [q, k, v]
                .iter()
                .zip(widths)
                .all(|(shape, width)| shape.len() == q.len() && shape.last() == Some(&width))
            && k[..k.len() - 1] == v[..v.len() - 1]
            && (q.len() == 2 || q[usize::from(!self.batch_first)] == k[usize::from(!self.batch_first)]);
        if fits {
            return Ok(());
        }
        let lead = if self.batch_first { "[batch, length, width]" } else { "[length, batch, width]" };
        let message = format!(
            "query {q:?}, key {k:?} and value {v:?}: needs {lead} or [length, width], widths {widths:?}, equal batch \
             sizes, and as many values as keys"
        );
        Err(Error::Shape { op: NAME, message })
    }

    /// The three projections; their dimensions are in the order of the inputs'.
    fn project(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3]> {
        let width = self.width;
        let part = |x: &Tensor, first: usize, count: usize| -> Result<Tensor> {
            let bias = self.in_proj_bias.as_ref().map(|bias| bias.narrow(0, first * width, count * width));
            let bias = bias.transpose()?;
            let own = [&self.q_proj_weight, &self.k_proj_weight, &self.v_proj_weight][first];
            match (own, &self.in_proj_weight) {
                (Some(weight), _) => x.linear(weight, bias.as_ref()),
                (None, Some(weight)) => {
                    x.linear(&weight.narrow(0, first * width, count * width)?, bias.as_ref())
                }
                (None, None) => unreachable!("made with one or the other"),
            }
        };
        if self.in_proj_weight.is_some() && key.is_same(value) {
            let keys_and_values = part(key, 1, 2)?;
            let last = keys_and_values.rank() as isize - 1;
            let half = |start: usize| keys_and_values.narrow(last, start, width);
            return Ok([part(query, 0, 1)?, half(0)?, half(width)?]);
        }
        Ok([part(query, 0, 1)?, part(key, 1, 1)?, part(value, 2, 1)?])
    }

    /// `[batch, length, width]` as `[batch, heads, length, width / heads]`.
    fn split(&self, x: &Tensor) -> Result<Tensor> {
        x.unflatten(2, &[self.heads, self.width / self.heads])?.transpose(1, 2)
    }

    /// How many keys are added to each sequence.
    fn added_keys(&self) -> usize {
        usize::from(self.bias_k.is_some()) + usize::from(self.add_zero_attn)
    }

    /// Keys and values, `[batch, heads, keys, width / heads]`, including those added to each sequence.
    fn extended(&self, k: Tensor, v: Tensor) -> Result<[Tensor; 2]> {
        if self.added_keys() == 0 {
            return Ok([k, v]);
        }
        let extend = |x: Tensor, bias: &Option<Parameter>| {
            let one = [x.shape()[0], self.heads, 1, self.width / self.heads];
            let mut parts = vec![x.clone()];
            if let Some(bias) = bias {
                let bias = bias.to_dtype(x.dtype())?.reshape(&[1, self.heads, 1, one[3]])?;
                parts.push(bias.expand(&one)?);
            }
            if self.add_zero_attn {
                parts.push(Tensor::full(&one, 0.0, x.dtype(), x.device())?);
            }
            Tensor::cat(&parts.iter().collect::<Vec<_>>(), 2)
        };
        Ok([extend(k, &self.bias_k)?, extend(v, &self.bias_v)?])
    }

    /// A mask that also keeps the added keys.
    fn wider(&self, mask: &Tensor) -> Result<Tensor> {
        let keep = if mask.dtype() == DType::Bool { 1.0 } else { 0.0 };
        mask.pad(&[0, self.added_keys() as isize], PadMode::Constant(keep))
    }

    /// Concatenates the heads again: `[batch, length, width]`.
    fn join(&self, x: &Tensor) -> Result<Tensor> {
        x.transpose(1, 2)?.flatten(2, 3)
    }
}

impl Module for MultiheadAttention {
    members!(
        mode,
        in_proj_weight,
        q_proj_weight,
        k_proj_weight,
        v_proj_weight,
        in_proj_bias,
        bias_k,
        bias_v,
        out_proj,
    );

    /// Attention of a tensor to itself, without masks.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(self.forward(input, input, input, MultiheadOptions::default())?.0)
    }
}
