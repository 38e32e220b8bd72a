//! Blocks that attend to their own input and to another sequence: [`TransformerDecoderLayer`], and [`TransformerDecoder`], a
//! stack of them.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::label::LabelId;
use plimsoll_tensor::{Result, Tensor};

use super::super::{
    Dropout, LayerNorm, Linear, Module, ModuleList, MultiheadAttention, MultiheadOptions, Scope,
};
use super::{TransformerOptions, feed_forward};
use crate::members;

/// The masks of a decoder's two attentions: see [`MultiheadOptions`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderMasks<'a> {
    /// The mask of the target's self-attention.
    pub tgt_mask: Option<&'a Tensor>,
    /// The mask of the target's attention to the memory.
    pub memory_mask: Option<&'a Tensor>,
    /// Marks the target tokens that are padding.
    pub tgt_key_padding_mask: Option<&'a Tensor>,
    /// Marks the memory tokens that are padding.
    pub memory_key_padding_mask: Option<&'a Tensor>,
    /// Whether a target token sees no later ones. Needs no mask.
    pub tgt_is_causal: bool,
    /// Whether a target token sees no later tokens of the memory. Needs no mask.
    pub memory_is_causal: bool,
}

/// Self-attention, attention to an encoder's output, and an MLP. Like `torch.nn.TransformerDecoderLayer`. Clones
/// share parameters.
#[derive(Clone, Debug)]
pub struct TransformerDecoderLayer {
    label: LabelId,
    options: TransformerOptions,
    self_attn: MultiheadAttention,
    multihead_attn: MultiheadAttention,
    linear1: Linear,
    dropout: Dropout,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    norm3: LayerNorm,
    dropout1: Dropout,
    dropout2: Dropout,
    dropout3: Dropout,
}

impl TransformerDecoderLayer {
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
    ) -> Result<TransformerDecoderLayer> {
        let wide = options.dim_feedforward;
        let dropout = |name: &str| Dropout::new(&scope.at(name), options.dropout);
        let norm = |name: &str| options.norm(&scope.at(name), d_model);
        Ok(TransformerDecoderLayer {
            label: scope.label(),
            options,
            self_attn: options.attention(&scope.at("self_attn"), d_model, nhead)?,
            multihead_attn: options.attention(&scope.at("multihead_attn"), d_model, nhead)?,
            linear1: Linear::new(&scope.at("linear1"), d_model, wide)?,
            dropout: dropout("dropout")?,
            linear2: Linear::new(&scope.at("linear2"), wide, d_model)?,
            norm1: norm("norm1")?,
            norm2: norm("norm2")?,
            norm3: norm("norm3")?,
            dropout1: dropout("dropout1")?,
            dropout2: dropout("dropout2")?,
            dropout3: dropout("dropout3")?,
        })
    }

    /// The output for a target and an encoder's output.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward(&self, tgt: &Tensor, memory: &Tensor, masks: DecoderMasks<'_>) -> Result<Tensor> {
        let _entry = Entry::here();
        let to_itself = MultiheadOptions {
            key_padding_mask: masks.tgt_key_padding_mask,
            attn_mask: masks.tgt_mask,
            is_causal: masks.tgt_is_causal,
            ..MultiheadOptions::default()
        };
        let to_memory = MultiheadOptions {
            key_padding_mask: masks.memory_key_padding_mask,
            attn_mask: masks.memory_mask,
            is_causal: masks.memory_is_causal,
            ..MultiheadOptions::default()
        };
        let options = &self.options;
        let x = options
            .part(&self.norm1, &self.dropout1, tgt, |x| Ok(self.self_attn.forward(x, x, x, to_itself)?.0))?;
        let x = options.part(&self.norm2, &self.dropout2, &x, |x| {
            Ok(self.multihead_attn.forward(x, memory, memory, to_memory)?.0)
        })?;
        options.part(&self.norm3, &self.dropout3, &x, |x| {
            feed_forward(self.label, options.activation, [&self.linear1, &self.linear2], &self.dropout, x)
        })
    }
}

impl Module for TransformerDecoderLayer {
    members!(
        self_attn,
        multihead_attn,
        linear1,
        dropout,
        linear2,
        norm1,
        norm2,
        norm3,
        dropout1,
        dropout2,
        dropout3
    );
}

/// A stack of decoder layers, optionally with a final normalization. Like `torch.nn.TransformerDecoder`.
#[derive(Debug)]
pub struct TransformerDecoder {
    layers: ModuleList<TransformerDecoderLayer>,
    norm: Option<LayerNorm>,
}

impl TransformerDecoder {
    /// `num_layers` layers, each with its own initial values; without a final normalization.
    ///
    /// # Errors
    /// The same errors as [`TransformerDecoderLayer::new`].
    pub fn new(
        scope: &Scope,
        num_layers: usize,
        d_model: usize,
        nhead: usize,
        options: TransformerOptions,
    ) -> Result<TransformerDecoder> {
        let layer = |scope: &Scope| TransformerDecoderLayer::new(scope, d_model, nhead, options);
        Ok(TransformerDecoder {
            layers: ModuleList::new(&scope.at("layers"), num_layers, layer)?,
            norm: None,
        })
    }

    /// Returns the decoder with a final normalization, which must be built under the name `norm`; `norm=LayerNorm(d_model)` in
    /// PyTorch.
    pub fn with_norm(mut self, norm: LayerNorm) -> TransformerDecoder {
        self.norm = Some(norm);
        self
    }

    /// The output for a target and an encoder's output, with the same masks in every layer.
    ///
    /// # Errors
    /// If the sizes or types do not match, or memory runs out.
    #[track_caller]
    pub fn forward(&self, tgt: &Tensor, memory: &Tensor, masks: DecoderMasks<'_>) -> Result<Tensor> {
        let _entry = Entry::here();
        let x = self.layers.iter().try_fold(tgt.clone(), |x, layer| layer.forward(&x, memory, masks))?;
        self.norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))
    }
}

impl Module for TransformerDecoder {
    members!(layers, norm);
}
