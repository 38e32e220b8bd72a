//! BERT: the names, shapes and initial values of `transformers`' `BertModel` and `BertForMaskedLM`.

mod config;

pub use config::{BertConfig, BertInputs};

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{
    Activation, AttentionOptions, CrossEntropyOptions, DType, Error, Result, Tensor, autocast,
};

use crate::members;
use crate::nn::{Dropout, Embedding, Init, LayerNorm, Linear, Module, ModuleList, Parameter, Scope, Slot};

/// A BERT without a head. Its linear layers are in slots ([`Slot`]): they can have hooks, and other layers can take their place. Like
/// `transformers.BertModel`.
#[derive(Debug)]
pub struct Bert {
    config: BertConfig,
    embeddings: Embeddings,
    encoder: Encoder,
    pooler: Option<Pooler>,
}

impl Bert {
    /// A new model with BERT's initial values.
    ///
    /// # Errors
    /// If the width is not a multiple of the number of heads, the path is already in use ([`Scope::parameter`]), or
    /// memory runs out.
    pub fn new(scope: &Scope, config: BertConfig) -> Result<Bert> {
        let pooler = Pooler {
            dense: linear(&scope.at("pooler").at("dense"), config.hidden_size, config.hidden_size)?,
        };
        Ok(Bert { pooler: Some(pooler), ..Bert::without_pooler(scope, config)? })
    }

    /// A new model without the layer that [`Bert::pooled`] needs; `add_pooling_layer=False` in `transformers`.
    ///
    /// # Errors
    /// The same errors as [`Bert::new`].
    pub fn without_pooler(scope: &Scope, config: BertConfig) -> Result<Bert> {
        let (width, heads) = (config.hidden_size, config.num_attention_heads);
        if heads == 0 || !width.is_multiple_of(heads) {
            let message = format!("a width of {width} is not divisible by {heads} heads");
            return Err(Error::Argument { op: "bert", message });
        }
        let layers = scope.at("encoder").at("layer");
        Ok(Bert {
            embeddings: Embeddings::new(&scope.at("embeddings"), &config)?,
            encoder: Encoder {
                layer: ModuleList::new(&layers, config.num_hidden_layers, |scope| {
                    Layer::new(scope, &config)
                })?,
            },
            pooler: None,
            config,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// The last hidden states, `[batch, length, hidden_size]`.
    ///
    /// # Errors
    /// If the shapes do not match, there are more tokens than positions, a token or token type is invalid, or memory
    /// runs out.
    pub fn hidden<'a>(&self, inputs: impl Into<BertInputs<'a>>) -> Result<Tensor> {
        let inputs = inputs.into();
        let shape = inputs.input_ids.shape();
        let fail = |message: String| Err(Error::Shape { op: "bert", message });
        let &[batch, length] = shape else {
            return fail(format!("tokens {shape:?}: needs [batch, length]"));
        };
        let most = self.config.max_position_embeddings;
        if length > most {
            return fail(format!("a sequence has {length} tokens, but the model has {most} positions"));
        }
        for (name, other) in
            [("attention_mask", inputs.attention_mask), ("token_type_ids", inputs.token_type_ids)]
        {
            if let Some(other) = other.filter(|other| other.shape() != shape) {
                return fail(format!(
                    "{name} {:?} for tokens {shape:?}: needs the same shape",
                    other.shape()
                ));
            }
        }
        let keep = match inputs.attention_mask {
            Some(mask) if mask.dtype() == DType::Bool => Some(mask.reshape(&[batch, 1, 1, length])?),
            Some(mask) => Some(mask.ne_scalar(0i64)?.reshape(&[batch, 1, 1, length])?),
            None => None,
        };
        let x = self.embeddings.embed(&inputs)?;
        self.encoder.layer.iter().try_fold(x, |x, layer| layer.forward_masked(&x, keep.as_ref()))
    }

    /// The pooler's output for the first token's hidden state, `[batch, hidden_size]`.
    ///
    /// # Errors
    /// If the model has no pooler, or memory runs out.
    pub fn pooled(&self, hidden: &Tensor) -> Result<Tensor> {
        let Some(pooler) = &self.pooler else {
            let message = "this model was made without a pooler: make it with `Bert::new`".to_owned();
            return Err(Error::Argument { op: "bert", message });
        };
        pooler.dense.forward(&hidden.select(1, 0)?)?.tanh()
    }
}

impl Module for Bert {
    members!(embeddings, encoder, pooler);

    /// The last hidden states of tokens without padding.
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.hidden(tokens)
    }
}

/// A BERT that predicts masked tokens; its decoder is tied to the token embedding. Like `transformers.BertForMaskedLM`.
///
/// ```
/// use plimsoll::models::{BertConfig, BertForMaskedLm};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig};
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = BertForMaskedLm::new(&Scope::new(&gpu, 1), BertConfig::base())?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 109_514_298);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct BertForMaskedLm {
    bert: Bert,
    cls: Head,
}

#[derive(Debug)]
struct Head {
    predictions: Predictions,
}

impl Module for Head {
    members!(predictions);
}

#[derive(Debug)]
struct Predictions {
    bias: Parameter,
    transform: Transform,
    decoder: Slot<Linear>,
}

impl Module for Predictions {
    members!(bias, transform, decoder);
}

#[derive(Debug)]
struct Transform {
    dense: Slot<Linear>,
    activation: Activation,
    norm: LayerNorm,
}

impl Module for Transform {
    members!(dense, norm = "LayerNorm");

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.activation.of(&self.dense.forward(x)?)?)
    }
}

impl BertForMaskedLm {
    /// A new model with BERT's initial values.
    ///
    /// # Errors
    /// The same errors as [`Bert::new`].
    pub fn new(scope: &Scope, config: BertConfig) -> Result<BertForMaskedLm> {
        let (width, vocab, eps) = (config.hidden_size, config.vocab_size, config.layer_norm_eps);
        let activation = config.hidden_act;
        let bert = Bert::without_pooler(&scope.at("bert"), config)?;
        let predictions = scope.at("cls").at("predictions");
        let transform = predictions.at("transform");
        let bias = predictions.parameter("bias", &[vocab], Init::Zeros)?;
        let tied = bert.embeddings.word_embeddings.weight().clone();
        let predictions = Predictions {
            transform: Transform {
                dense: linear(&transform.at("dense"), width, width)?,
                activation,
                norm: LayerNorm::new(&transform.at("LayerNorm"), width)?.eps(eps),
            },
            decoder: Linear::of(&predictions.at("decoder"), tied, Some(bias.clone())).into(),
            bias,
        };
        Ok(BertForMaskedLm { bert, cls: Head { predictions } })
    }

    /// The model without its head.
    pub fn bert(&self) -> &Bert {
        &self.bert
    }

    /// The logits, `[batch, length, vocab_size]`.
    ///
    /// # Errors
    /// The same errors as [`Bert::hidden`].
    pub fn logits<'a>(&self, inputs: impl Into<BertInputs<'a>>) -> Result<Tensor> {
        let head = &self.cls.predictions;
        head.decoder.forward(&head.transform.forward(&self.bert.hidden(inputs)?)?)
    }

    /// The mean cross entropy of predicting `labels` (`int64 [batch, length]`); labels of -100 are ignored. The logits are never
    /// materialized in full.
    ///
    /// # Errors
    /// The same errors as [`Bert::hidden`], or if the labels have a different shape or are outside the vocabulary.
    #[track_caller]
    pub fn loss<'a>(&self, inputs: impl Into<BertInputs<'a>>, labels: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let head = &self.cls.predictions;
        let hidden = head.transform.forward(&self.bert.hidden(inputs)?)?;
        let Some(decoder) = head.decoder.plain() else {
            let logits = head.decoder.forward(&hidden)?.flatten(0, 1)?;
            return logits.cross_entropy(labels.flatten(0, -1)?);
        };
        let _owner = Span::layer(decoder.label());
        hidden.linear_cross_entropy(decoder.weight(), &head.bias, labels, CrossEntropyOptions::default())
    }
}

impl Module for BertForMaskedLm {
    members!(bert, cls);

    /// The logits of tokens without padding.
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        self.logits(tokens)
    }
}

fn linear(scope: &Scope, inputs: usize, outputs: usize) -> Result<Slot<Linear>> {
    let weight = scope.parameter("weight", &[outputs, inputs], Init::Normal(0.02))?;
    Ok(Linear::of(scope, weight, Some(scope.parameter("bias", &[outputs], Init::Zeros)?)).into())
}

#[derive(Debug)]
struct Pooler {
    dense: Slot<Linear>,
}

impl Module for Pooler {
    members!(dense);
}

#[derive(Debug)]
struct Embeddings {
    label: LabelId,
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    norm: LayerNorm,
    dropout: Dropout,
}

impl Embeddings {
    fn new(scope: &Scope, config: &BertConfig) -> Result<Embeddings> {
        let embedding = |name: &str, count: usize| {
            Embedding::with_init(&scope.at(name), count, config.hidden_size, Init::Normal(0.02))
        };
        Ok(Embeddings {
            label: scope.label(),
            word_embeddings: embedding("word_embeddings", config.vocab_size)?
                .padding_idx(config.pad_token_id as isize),
            position_embeddings: embedding("position_embeddings", config.max_position_embeddings)?,
            token_type_embeddings: embedding("token_type_embeddings", config.type_vocab_size)?,
            norm: LayerNorm::new(&scope.at("LayerNorm"), config.hidden_size)?.eps(config.layer_norm_eps),
            dropout: Dropout::new(&scope.at("dropout"), config.hidden_dropout_prob)?,
        })
    }

    fn embed(&self, inputs: &BertInputs<'_>) -> Result<Tensor> {
        let (ids, device) = (inputs.input_ids, inputs.input_ids.device());
        let words = self.word_embeddings.forward(ids)?;
        let kinds = match inputs.token_type_ids {
            Some(kinds) => self.token_type_embeddings.forward(kinds)?,
            None => self.token_type_embeddings.forward(&Tensor::full(&[1], 0.0, DType::I64, device)?)?,
        };
        let positions = self.position_embeddings.forward(&Tensor::arange(ids.shape()[1], device)?)?;
        let sum = {
            let _owner = Span::layer(self.label);
            words.add(&kinds)?.add(&positions)?
        };
        self.dropout.forward(&self.norm.forward(&sum)?)
    }
}

impl Module for Embeddings {
    members!(word_embeddings, position_embeddings, token_type_embeddings, norm = "LayerNorm", dropout);
}

#[derive(Debug)]
struct Encoder {
    layer: ModuleList<Layer>,
}

impl Module for Encoder {
    members!(layer);
}

#[derive(Debug)]
struct Layer {
    attention: Attention,
    intermediate: Intermediate,
    activation: Activation,
    output: Output,
}

impl Layer {
    fn new(scope: &Scope, config: &BertConfig) -> Result<Layer> {
        let (width, wide) = (config.hidden_size, config.intermediate_size);
        Ok(Layer {
            attention: Attention::new(&scope.at("attention"), config)?,
            intermediate: Intermediate { dense: linear(&scope.at("intermediate").at("dense"), width, wide)? },
            activation: config.hidden_act,
            output: Output::new(&scope.at("output"), wide, config)?,
        })
    }

    fn forward_masked(&self, x: &Tensor, keep: Option<&Tensor>) -> Result<Tensor> {
        let x = self.attention.forward_masked(x, keep)?;
        let up = self.intermediate.dense.forward(&x)?;
        let down = match self.output.dense.plain() {
            Some(dense) => {
                let _owner = Span::layer(dense.label());
                up.activation_linear(self.activation, dense.weight(), dense.bias().map(|bias| &**bias))?
            }
            None => self.output.dense.forward(&self.activation.of(&up)?)?,
        };
        drop(up);
        self.output.normalize(&down, &x)
    }
}

impl Module for Layer {
    members!(attention, intermediate, output);
}

#[derive(Debug)]
struct Intermediate {
    dense: Slot<Linear>,
}

impl Module for Intermediate {
    members!(dense);
}

/// A projection back to the residual stream, added to it; the sum is normalized.
#[derive(Debug)]
struct Output {
    dense: Slot<Linear>,
    norm: LayerNorm,
    dropout: Dropout,
}

impl Output {
    fn new(scope: &Scope, inputs: usize, config: &BertConfig) -> Result<Output> {
        Ok(Output {
            dense: linear(&scope.at("dense"), inputs, config.hidden_size)?,
            norm: LayerNorm::new(&scope.at("LayerNorm"), config.hidden_size)?.eps(config.layer_norm_eps),
            dropout: Dropout::new(&scope.at("dropout"), config.hidden_dropout_prob)?,
        })
    }

    fn normalize(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.dropout.forward_add(x, residual)?)
    }
}

impl Module for Output {
    members!(dense, norm = "LayerNorm", dropout);
}

#[derive(Debug)]
struct Attention {
    own: SelfAttention,
    output: Output,
}

impl Attention {
    fn new(scope: &Scope, config: &BertConfig) -> Result<Attention> {
        Ok(Attention {
            own: SelfAttention::new(&scope.at("self"), config)?,
            output: Output::new(&scope.at("output"), config.hidden_size, config)?,
        })
    }

    fn forward_masked(&self, x: &Tensor, keep: Option<&Tensor>) -> Result<Tensor> {
        let mixed = self.own.mix(x, keep)?;
        self.output.normalize(&self.output.dense.forward(&mixed)?, x)
    }
}

impl Module for Attention {
    members!(own = "self", output);
}

#[derive(Debug)]
struct SelfAttention {
    label: LabelId,
    heads: usize,
    query: Slot<Linear>,
    key: Slot<Linear>,
    value: Slot<Linear>,
    dropout_p: f64,
    dropout: Dropout,
}

impl SelfAttention {
    fn new(scope: &Scope, config: &BertConfig) -> Result<SelfAttention> {
        let width = config.hidden_size;
        let dropout_p = config.attention_probs_dropout_prob;
        Ok(SelfAttention {
            label: scope.label(),
            heads: config.num_attention_heads,
            query: linear(&scope.at("query"), width, width)?,
            key: linear(&scope.at("key"), width, width)?,
            value: linear(&scope.at("value"), width, width)?,
            dropout_p,
            dropout: Dropout::new(&scope.at("dropout"), dropout_p)?,
        })
    }

    fn mix(&self, x: &Tensor, keep: Option<&Tensor>) -> Result<Tensor> {
        let x = &autocast::lower(x)?;
        let heads = |x: Tensor| x.unflatten(2, &[self.heads, x.shape()[2] / self.heads])?.transpose(1, 2);
        let (q, k, v) = (self.query.forward(x)?, self.key.forward(x)?, self.value.forward(x)?);
        let _owner = Span::layer(self.label);
        let options = AttentionOptions {
            attn_mask: keep,
            dropout_p: if self.dropout.is_training() { self.dropout_p } else { 0.0 },
            ..AttentionOptions::default()
        };
        heads(q)?
            .scaled_dot_product_attention(&heads(k)?, &heads(v)?, options)?
            .transpose(1, 2)?
            .flatten(2, 3)
    }
}

impl Module for SelfAttention {
    members!(query, key, value, dropout);
}
