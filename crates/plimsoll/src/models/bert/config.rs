//! The configuration and the inputs of a BERT.

use plimsoll_tensor::{Activation, Result, Tensor};

use crate::models::config_json::{Fields, parsed};

/// The configuration of a BERT.
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Attention heads; must divide the width.
    pub num_attention_heads: usize,
    /// Hidden width of the MLP.
    pub intermediate_size: usize,
    /// Activation function of the MLP and of the head that predicts tokens.
    pub hidden_act: Activation,
    /// Dropout probability of embeddings and of the outputs added to the residual stream.
    pub hidden_dropout_prob: f64,
    /// Dropout probability of attention weights.
    pub attention_probs_dropout_prob: f64,
    /// Maximum number of tokens in a sequence.
    pub max_position_embeddings: usize,
    /// Number of token types, such as first and second sentence.
    pub type_vocab_size: usize,
    /// Epsilon added to the variance in layer normalization.
    pub layer_norm_eps: f64,
    /// The padding token, whose embedding gets no gradient.
    pub pad_token_id: usize,
}

impl BertConfig {
    /// `bert-base-uncased`: 110 million parameters.
    pub fn base() -> BertConfig {
        BertConfig {
            vocab_size: 30_522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            pad_token_id: 0,
        }
    }

    /// `bert-large-uncased`: 335 million parameters.
    pub fn large() -> BertConfig {
        BertConfig {
            hidden_size: 1024,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            intermediate_size: 4096,
            ..BertConfig::base()
        }
    }

    /// Reads a `config.json` of `transformers`, of model type `bert`.
    ///
    /// # Errors
    /// The same errors as [`Gpt2Config::from_json`](crate::models::Gpt2Config::from_json).
    pub fn from_json(text: &str) -> Result<BertConfig> {
        let value = parsed("bert", text)?;
        let fields = Fields::of("bert", &["bert"], &value)?;
        fields.only("position_embedding_type", "absolute")?;
        fields.only("is_decoder", false)?;
        fields.only("add_cross_attention", false)?;
        let default = BertConfig::base();
        Ok(BertConfig {
            vocab_size: fields.count("vocab_size", default.vocab_size)?,
            hidden_size: fields.count("hidden_size", default.hidden_size)?,
            num_hidden_layers: fields.count("num_hidden_layers", default.num_hidden_layers)?,
            num_attention_heads: fields.count("num_attention_heads", default.num_attention_heads)?,
            intermediate_size: fields.count("intermediate_size", default.intermediate_size)?,
            hidden_act: fields.activation("hidden_act", default.hidden_act)?,
            hidden_dropout_prob: fields.number("hidden_dropout_prob", default.hidden_dropout_prob)?,
            attention_probs_dropout_prob: fields
                .number("attention_probs_dropout_prob", default.attention_probs_dropout_prob)?,
            max_position_embeddings: fields
                .count("max_position_embeddings", default.max_position_embeddings)?,
            type_vocab_size: fields.count("type_vocab_size", default.type_vocab_size)?,
            layer_norm_eps: fields.number("layer_norm_eps", default.layer_norm_eps)?,
            pad_token_id: fields.count("pad_token_id", default.pad_token_id)?,
        })
    }
}

/// The inputs of a BERT.
#[derive(Clone, Copy, Debug)]
pub struct BertInputs<'a> {
    /// Tokens, `int64 [batch, length]`.
    pub input_ids: &'a Tensor,
    /// 1 or true for a token, 0 or false for padding: `[batch, length]`. With `None`, nothing is padding.
    pub attention_mask: Option<&'a Tensor>,
    /// The type of each token, `int64 [batch, length]`. With `None`, all are 0.
    pub token_type_ids: Option<&'a Tensor>,
}

impl<'a> From<&'a Tensor> for BertInputs<'a> {
    fn from(input_ids: &'a Tensor) -> BertInputs<'a> {
        BertInputs { input_ids, attention_mask: None, token_type_ids: None }
    }
}
