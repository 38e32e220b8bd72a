//! Blocks that attend to their own input: [`TransformerEncoderLayer`], and [`TransformerEncoder`], a stack of them.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::label::LabelId;
use plimsoll_tensor::{Result, Tensor};

use super::super::{
    Dropout, LayerNorm, Linear, Module, ModuleList, MultiheadAttention, MultiheadOptions, Scope,
};
use super::{TransformerOptions, feed_forward};
use crate::members;

/// The masks of an encoder's attention: see [`MultiheadOptions`].
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderMasks<'a> {
    /// A mask of scores, `[length, length]`, or one for each head and each sequence.
    pub mask: Option<&'a Tensor>,
    /// Marks the tokens that are padding: `[batch, length]`.
    pub src_key_padding_mask: Option<&'a Tensor>,
    /// Whether a token sees no later ones. Needs no mask.
    pub is_causal: bool,
}

/// Self-attention and an MLP. Like `torch.nn.TransformerEncoderLayer`. Clones share parameters.
///
/// ```
/// use plimsoll::nn::{Module, Scope, TransformerEncoderLayer, TransformerOptions};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let options = TransformerOptions { batch_first: true, ..TransformerOptions::default() };
/// let layer = TransformerEncoderLayer::new(&Scope::new(&device, 1), 32, 4, options)?;
/// assert_eq!(layer.forward(&Tensor::randn(&[2, 10, 32], &device)?)?.shape(), [2, 10, 32]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerEncoderLayer {
    label: LabelId,
    options: TransformerOptions,
    self_attn: MultiheadAttention,
    linear1: Linear,
    dropout: Dropout,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
}

impl TransformerEncoderLayer {
    /// A layer for tokens of `d_model` numbers, where `d_model` is a multiple of `nhead`.
    ///
    /// # Errors
    /// If the width is not a multiple of the number of heads, a probability is outside 0 to 1, the path is already in
    /// use ([`Scope::parameter`]), or memory runs out.
    pub fn new(
        scope: &Scope,
        d_model: usize,
        nhead: usize,
        options: TransformerOptions,
    ) -> Result<TransformerEncoderLayer> {
        let wide = options.dim_feedforward;
        let dropout = |name: &str| Dropout::new(&scope.at(name), options.dropout);
        Ok(TransformerEncoderLayer {
            label: scope.label(),
            options,
            self_attn: options.attention(&scope.at("self_attn"), d_model, nhead)?,
            linear1: Linear::new(&scope.at("linear1"), d_model, wide)?,
            dropout: dropout("dropout")?,
            linear2: Linear::new(&scope.at("linear2"), wide, d_model)?,
            norm1: options.norm(&scope.at("norm1"), d_model)?,
            norm2: options.norm(&scope.at("norm2"), d_model)?,
            dropout1: dropout("dropout1")?,
            dropout2: dropout("dropout2")?,
        })
    }

    /// The output for this input, with masks.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward_masked(&self, src: &Tensor, masks: EncoderMasks<'_>) -> Result<Tensor> {
        let _entry = Entry::here();
        let hidden = MultiheadOptions {
            key_padding_mask: masks.src_key_padding_mask,
            attn_mask: masks.mask,
            is_causal: masks.is_causal,
            ..MultiheadOptions::default()
        };
        let options = &self.options;
        let x = options
            .part(&self.norm1, &self.dropout1, src, |x| Ok(self.self_attn.forward(x, x, x, hidden)?.0))?;
        options.part(&self.norm2, &self.dropout2, &x, |x| {
            feed_forward(self.label, options.activation, [&self.linear1, &self.linear2], &self.dropout, x)
        })
    }
}

impl Module for TransformerEncoderLayer {
    members!(self_attn, linear1, dropout, linear2, norm1, norm2, dropout1, dropout2);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_masked(input, EncoderMasks::default())
    }
}

/// A stack of encoder layers, optionally with a final normalization. Like `torch.nn.TransformerEncoder`.
#[derive(Debug)]
pub struct TransformerEncoder {
    layers: ModuleList<TransformerEncoderLayer>,
    norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// `num_layers` layers, each with its own initial values; without a final normalization.
    ///
    /// # Errors
    /// The same errors as [`TransformerEncoderLayer::new`].
    pub fn new(
        scope: &Scope,
        num_layers: usize,
        d_model: usize,
        nhead: usize,
        options: TransformerOptions,
    ) -> Result<TransformerEncoder> {
        let layer = |scope: &Scope| TransformerEncoderLayer::new(scope, d_model, nhead, options);
        Ok(TransformerEncoder {
            layers: ModuleList::new(&scope.at("layers"), num_layers, layer)?,
            norm: None,
        })
    }

    /// Returns the encoder with a final normalization, which must be built under the name `norm`; `norm=LayerNorm(d_model)` in
    /// PyTorch.
    pub fn with_norm(mut self, norm: LayerNorm) -> TransformerEncoder {
        self.norm = Some(norm);
        self
    }

    /// The output for this input, with the same masks in every layer.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward_masked(&self, src: &Tensor, masks: EncoderMasks<'_>) -> Result<Tensor> {
        let _entry = Entry::here();
        let x = self.layers.iter().try_fold(src.clone(), |x, layer| layer.forward_masked(&x, masks))?;
        self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }
}

impl Module for TransformerEncoder {
    members!(layers, norm);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.forward_masked(input, EncoderMasks::default())
    }
}
