//! GPT-2: the names, shapes and initial values of `transformers`' `GPT2LMHeadModel`.

mod conv1d;

use std::cell::Cell;

use plimsoll_tensor::checkpoint::{Checkpointer, checkpoint, recompute_output};
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Activation, AttentionOptions, Error, Result, Tensor};

use self::conv1d::Conv1D;
use super::config_json::{Fields, parsed};
use crate::members;
use crate::nn::{
    Cut, Dropout, Embedding, Init, LayerNorm, Linear, Module, ModuleList, ResidualStream, Scope, Slot,
    Sublayers, TensorParallel, VocabParallelEmbedding, gathered, vocab_parallel_cross_entropy,
};

/// The configuration of a GPT-2 model.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt2Config {
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum number of tokens in a sequence.
    pub n_positions: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Number of blocks.
    pub n_layer: usize,
    /// Attention heads; must divide the width.
    pub n_head: usize,
    /// Hidden width of the MLP; `None` for four times `n_embd`.
    pub n_inner: Option<usize>,
    /// Epsilon added to the variance in layer normalization.
    pub layer_norm_epsilon: f64,
    /// Activation function of the MLP.
    pub activation_function: Activation,
    /// Whether attention scores are divided by the square root of the head width.
    pub scale_attn_weights: bool,
    /// Whether attention scores are also divided by the block's number, counted from 1.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the output layer shares the token embedding's weight.
    pub tie_word_embeddings: bool,
    /// Dropout probability of embeddings, attention weights and the outputs added to the residual stream.
    pub dropout: f64,
    /// Whether each block is checkpointed: its activations are recomputed in the backward pass.
    pub gradient_checkpointing: bool,
    /// The number of blocks, from the first on, whose MLP recomputes its first matrix product in the backward pass. Each saves a
    /// tensor four times as wide as the residual stream, at the cost of one more product.
    /// [`layers_to_recompute`](super::layers_to_recompute) finds the number of blocks needed for a memory limit.
    pub recompute_mlp: usize,
}

impl Gpt2Config {
    fn sized(n_layer: usize, n_head: usize, n_embd: usize) -> Gpt2Config {
        Gpt2Config {
            vocab_size: 50257,
            n_positions: 1024,
            n_embd,
            n_layer,
            n_head,
            n_inner: None,
            layer_norm_epsilon: 1e-5,
            activation_function: Activation::GeluTanh,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            tie_word_embeddings: true,
            dropout: 0.1,
            gradient_checkpointing: false,
            recompute_mlp: 0,
        }
    }

    /// `gpt2`: 124 million parameters.
    pub fn small() -> Gpt2Config {
        Gpt2Config::sized(12, 12, 768)
    }

    /// `gpt2-medium`: 355 million parameters.
    pub fn medium() -> Gpt2Config {
        Gpt2Config::sized(24, 16, 1024)
    }

    /// `gpt2-large`: 774 million parameters.
    pub fn large() -> Gpt2Config {
        Gpt2Config::sized(36, 20, 1280)
    }

    /// `gpt2-xl`: 1,558 million parameters.
    pub fn xl() -> Gpt2Config {
        Gpt2Config::sized(48, 25, 1600)
    }

    /// Reads a `config.json` file from `transformers` with model type `gpt2`.
    ///
    /// ```
    /// use plimsoll::models::Gpt2Config;
    /// let config = Gpt2Config::from_json(r#"{"model_type": "gpt2", "n_layer": 6, "activation_function": "relu"}"#)?;
    /// assert_eq!((config.n_layer, config.n_embd), (6, 768));
    /// let error = Gpt2Config::from_json(r#"{"add_cross_attention": true}"#).unwrap_err().to_string();
    /// assert_eq!(error, "gpt2: config.json: `add_cross_attention` is true; needs false: no other value is supported");
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the JSON is invalid, the model type is different, or a value has the wrong type or is not supported by this
    /// model.
    pub fn from_json(text: &str) -> Result<Gpt2Config> {
        let value = parsed("gpt2", text)?;
        let fields = Fields::of("gpt2", &["gpt2"], &value)?;
        fields.only("add_cross_attention", false)?;
        let default = Gpt2Config::small();
        Ok(Gpt2Config {
            vocab_size: fields.count("vocab_size", default.vocab_size)?,
            n_positions: fields.count("n_positions", default.n_positions)?,
            n_embd: fields.count("n_embd", default.n_embd)?,
            n_layer: fields.count("n_layer", default.n_layer)?,
            n_head: fields.count("n_head", default.n_head)?,
            n_inner: fields.count_if_given("n_inner")?,
            layer_norm_epsilon: fields.number("layer_norm_epsilon", default.layer_norm_epsilon)?,
            activation_function: fields.activation("activation_function", default.activation_function)?,
            scale_attn_weights: fields.flag("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: fields.flag("scale_attn_by_inverse_layer_idx", false)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", true)?,
            dropout: fields.same(&["resid_pdrop", "embd_pdrop", "attn_pdrop"], default.dropout)?,
            ..default
        })
    }
}

/// A GPT-2 model with its language-modelling head. Blocks, their `attn` and `mlp`, and the products inside are in slots
/// ([`Slot`]): they can have hooks, and other layers can take their place, except with [`Scope::tensor_parallel`].
///
/// ```
/// use plimsoll::models::{Gpt2, Gpt2Config};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig};
/// // 124 million parameters, on a device that has no memory to fill.
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = Gpt2::new(&Scope::new(&gpu, 1), Gpt2Config::small())?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 124_439_808);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct Gpt2 {
    config: Gpt2Config,
    transformer: Transformer,
    lm_head: Linear,
    region: Option<TensorParallel>,
    checkpointer: Option<Checkpointer>,
}

#[derive(Debug)]
struct Transformer {
    label: LabelId,
    wte: VocabParallelEmbedding,
    wpe: Embedding,
    drop: Dropout,
    h: ModuleList<Slot<Block>>,
    ln_f: LayerNorm,
}

impl Module for Transformer {
    members!(wte, wpe, drop, h, ln_f);
}

impl Gpt2 {
    /// A new model with GPT-2's initial values.
    ///
    /// # Errors
    /// If the width is not a multiple of the number of heads; if, with [`Scope::tensor_parallel`], the number of heads
    /// is not a multiple of the number of ranks; if the path is already in use ([`Scope::parameter`]); or if memory
    /// runs out.
    pub fn new(scope: &Scope, config: Gpt2Config) -> Result<Gpt2> {
        if config.n_head == 0 || !config.n_embd.is_multiple_of(config.n_head) {
            let message = format!("a width of {} is not divisible by {} heads", config.n_embd, config.n_head);
            return Err(Error::Argument { op: "gpt2", message });
        }
        let inner = scope.at("transformer");
        let init = Init::Normal(0.02);
        let number = Cell::new(1);
        let transformer = Transformer {
            label: inner.label(),
            wte: VocabParallelEmbedding::with_init(&inner.at("wte"), config.vocab_size, config.n_embd, init)?,
            wpe: Embedding::with_init(&inner.at("wpe"), config.n_positions, config.n_embd, init)?,
            drop: Dropout::new(&inner.at("drop"), config.dropout)?,
            h: ModuleList::new(&inner.at("h"), config.n_layer, |scope| {
                Ok(Block::new(scope, &config, number.replace(number.get() + 1))?.into())
            })?,
            ln_f: norm(&inner.at("ln_f"), &config)?,
        };
        let head = scope.at("lm_head");
        let weight = match config.tie_word_embeddings {
            true => transformer.wte.weight().clone(),
            false => head.part("weight", &[config.vocab_size, config.n_embd], Cut::Uneven(0), init)?,
        };
        let region = scope.region();
        Ok(Gpt2 { lm_head: Linear::of(&head, weight, None), config, transformer, region, checkpointer: None })
    }

    /// The model's configuration.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// From now on, the blocks are checkpointed so that the tensors they keep for the backward pass fit within a budget;
    /// with `None`, they are checkpointed as the configuration says. The first batch of each shape runs through the
    /// blocks once more, to measure them. `Checkpointer::new(budget).with_offload(bytes)` may also offload them.
    ///
    /// ```
    /// use plimsoll::checkpoint::Budget;
    /// use plimsoll::models::{Gpt2, Gpt2Config};
    /// use plimsoll::nn::Scope;
    /// use plimsoll::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(80 << 30));
    /// let mut model = Gpt2::new(&Scope::new(&device, 1), Gpt2Config::small())?;
    /// model.checkpoint_within(Budget::Bytes(300 << 20));
    /// let tokens = Tensor::from_slice(&[7i64; 4 * 512], &[4, 512], &device)?;
    /// model.loss(&tokens, &tokens)?.backward()?;
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn checkpoint_within(&mut self, budget: impl Into<Option<Checkpointer>>) {
        self.checkpointer = budget.into();
    }

    /// The last hidden states of tokens `int64 [batch, length]`: `[batch, length, n_embd]`; with
    /// [`Scope::tensor_parallel`], only for this rank's part of `length`.
    ///
    /// # Errors
    /// If there are more tokens than positions, a token is not in the vocabulary, or memory runs out.
    #[track_caller]
    pub fn hidden(&self, tokens: &Tensor) -> Result<Tensor> {
        let _entry = plimsoll_tensor::caller::Entry::here();
        let &[_, length] = tokens.shape() else {
            let message = format!("tokens {:?}: needs [batch, length]", tokens.shape());
            return Err(Error::Shape { op: "gpt2", message });
        };
        if length > self.config.n_positions {
            let message = format!(
                "a sequence has {length} tokens, but the model has {} positions",
                self.config.n_positions
            );
            return Err(Error::Shape { op: "gpt2", message });
        }
        let inner = &self.transformer;
        let positions = Tensor::arange(length, tokens.device())?;
        let positions = match &self.region {
            None => positions,
            Some(region) => region.own_rows(&positions)?,
        };
        let (tokens, positions) = (inner.wte.forward(tokens)?, inner.wpe.forward(&positions)?);
        let mut x = {
            let _owner = Span::layer(inner.label);
            (&tokens + &positions)?
        };
        drop((tokens, positions));
        x = inner.drop.forward(&x)?;
        if let Some(checkpointer) = &self.checkpointer {
            let mut sublayers = Sublayers::new(inner.label);
            for block in inner.h.iter() {
                let Some(own) = block.plain() else {
                    let block = block.clone();
                    sublayers.push(move |stream| stream.replace(|x| block.forward(x)));
                    continue;
                };
                let (attends, feeds) = (own.clone(), own.clone());
                sublayers.push(move |stream| attends.add_attention_to(stream));
                sublayers.push(move |stream| feeds.add_mlp_to(stream, false));
            }
            x = checkpointer.forward_sequence(&sublayers.shared(), &x)?;
            return inner.ln_f.forward(&x);
        }
        if self.config.gradient_checkpointing {
            for block in inner.h.iter() {
                let block = block.clone();
                x = checkpoint(move |x| block.forward(&x[0]), &[&x])?;
            }
            return inner.ln_f.forward(&x);
        }
        let mut stream = ResidualStream::new(x, inner.label);
        for (i, block) in inner.h.iter().enumerate() {
            match block.plain() {
                Some(block) => block.add_to(&mut stream, i < self.config.recompute_mlp)?,
                None => stream.replace(|x| block.forward(x))?,
            }
        }
        stream.finish(&inner.ln_f)
    }

    /// The mean cross entropy of predicting `targets` (`int64 [batch, length]`; -100 is ignored), without all logits at once.
    ///
    /// # Errors
    /// The same errors as [`Gpt2::hidden`], or if the targets have a different shape or are outside the vocabulary.
    #[track_caller]
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let hidden = self.hidden(tokens)?;
        let _owner = Span::layer(self.lm_head.label());
        let (region, count) = (self.region.as_ref(), self.config.vocab_size);
        vocab_parallel_cross_entropy(region, &hidden, self.lm_head.weight(), count, targets)
    }
}

impl Module for Gpt2 {
    members!(transformer, lm_head);

    /// The logits of tokens `int64 [batch, length]`: `[batch, length, vocab_size]`. With [`Scope::tensor_parallel`],
    /// all ranks must call it with the same tokens and inside [`no_grad`](plimsoll_tensor::no_grad).
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let Some(region) = &self.region else { return self.lm_head.forward(&self.hidden(tokens)?) };
        let _owner = Span::layer(self.lm_head.label());
        let output = (&**self.lm_head.weight(), self.config.vocab_size);
        region.logits("gpt2", (tokens, |tokens| self.hidden(tokens)), output)
    }
}

fn norm(scope: &Scope, config: &Gpt2Config) -> Result<LayerNorm> {
    Ok(LayerNorm::new(scope, config.n_embd)?.eps(config.layer_norm_epsilon))
}

/// One block: attention and an MLP. Each reads the normalized residual stream, and its output is added to the stream. Clones
/// share parameters.
#[derive(Clone, Debug)]
struct Block {
    label: LabelId,
    ln_1: LayerNorm,
    attn: Slot<Attention>,
    ln_2: LayerNorm,
    mlp: Slot<Mlp>,
}

impl Block {
    /// Makes the block with this number, counted from 1.
    fn new(scope: &Scope, config: &Gpt2Config, number: usize) -> Result<Block> {
        Ok(Block {
            label: scope.label(),
            ln_1: norm(&scope.at("ln_1"), config)?,
            attn: Attention::new(&scope.at("attn"), config, number)?.into(),
            ln_2: norm(&scope.at("ln_2"), config)?,
            mlp: Mlp::new(&scope.at("mlp"), config)?.into(),
        })
    }

    fn add_to(&self, stream: &mut ResidualStream, recompute_mlp: bool) -> Result<()> {
        self.add_attention_to(stream)?;
        self.add_mlp_to(stream, recompute_mlp)
    }

    fn add_attention_to(&self, stream: &mut ResidualStream) -> Result<()> {
        let x = stream.normalized(&self.ln_1)?;
        match self.attn.plain() {
            Some(attn) => stream.add_dropped(attn.forward_of(x)?, &attn.resid_dropout),
            None => stream.add(self.attn.forward(&x)?),
        }
    }

    fn add_mlp_to(&self, stream: &mut ResidualStream, recompute_mlp: bool) -> Result<()> {
        let x = stream.normalized(&self.ln_2)?;
        match self.mlp.plain() {
            Some(mlp) => stream.add_dropped(mlp.forward_of(x, recompute_mlp)?, &mlp.dropout),
            None => stream.add(self.mlp.forward(&x)?),
        }
    }
}

impl Module for Block {
    members!(ln_1, attn, ln_2, mlp);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut stream = ResidualStream::new(x.clone(), self.label);
        self.add_to(&mut stream, false)?;
        stream.into_sum()
    }
}

/// The standard deviation of the initial weights of a block's last product: the more blocks there are, the smaller it is.
fn residual_std(config: &Gpt2Config) -> f64 {
    0.02 / (2.0 * config.n_layer as f64).sqrt()
}

#[derive(Clone, Debug)]
struct Attention {
    label: LabelId,
    heads: usize,
    scale: f64,
    dropout: f64,
    c_attn: Slot<Conv1D>,
    c_proj: Slot<Conv1D>,
    resid_dropout: Dropout,
    region: Option<TensorParallel>,
}

impl Attention {
    fn new(scope: &Scope, config: &Gpt2Config, number: usize) -> Result<Attention> {
        let width = config.n_embd;
        let root = ((width / config.n_head) as f64).sqrt();
        let scale = if config.scale_attn_weights { 1.0 / root } else { 1.0 };
        let by = if config.scale_attn_by_inverse_layer_idx { number } else { 1 };
        let region = scope.region();
        let heads = match &region {
            None => config.n_head,
            Some(region) => region.share("attention heads", config.n_head)?,
        };
        Ok(Attention {
            label: scope.label(),
            region,
            heads,
            scale: scale / by as f64,
            dropout: config.dropout,
            c_attn: Conv1D::columns(&scope.at("c_attn"), width, 3 * width, 3)?.into(),
            c_proj: Conv1D::rows(&scope.at("c_proj"), width, width, residual_std(config))?.into(),
            resid_dropout: Dropout::new(&scope.at("resid_dropout"), config.dropout)?,
        })
    }

    /// Takes the normalized stream by value, so that it is dropped as soon as it has been read.
    fn forward_of(&self, x: Tensor) -> Result<Tensor> {
        let x = gathered(self.region.as_ref(), self.label, x)?;
        let qkv = self.c_attn.forward(&x)?;
        drop(x);
        let mixed = {
            let _owner = Span::layer(self.label);
            let dropout_p = if self.resid_dropout.is_training() { self.dropout } else { 0.0 };
            let scale = Some(self.scale);
            let options =
                AttentionOptions { is_causal: true, dropout_p, scale, ..AttentionOptions::default() };
            qkv.packed_attention(self.heads, self.heads, options)?
        };
        drop(qkv);
        let Some(region) = &self.region else { return self.c_proj.forward(&mixed) };
        let c_proj = self.c_proj.want_plain("gpt2")?;
        let _owner = Span::layer(c_proj.label);
        region.scatter(&mixed.linear_in_out(&c_proj.weight, None)?)?.add(&c_proj.bias)
    }
}

impl Module for Attention {
    members!(c_attn, c_proj, resid_dropout);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.resid_dropout.forward(&self.forward_of(x.clone())?)
    }
}

#[derive(Clone, Debug)]
struct Mlp {
    label: LabelId,
    c_fc: Slot<Conv1D>,
    activation: Activation,
    c_proj: Slot<Conv1D>,
    dropout: Dropout,
    region: Option<TensorParallel>,
}

impl Mlp {
    fn new(scope: &Scope, config: &Gpt2Config) -> Result<Mlp> {
        let (width, inner) = (config.n_embd, config.n_inner.unwrap_or(4 * config.n_embd));
        Ok(Mlp {
            label: scope.label(),
            region: scope.region(),
            c_fc: Conv1D::columns(&scope.at("c_fc"), width, inner, 1)?.into(),
            activation: config.activation_function,
            c_proj: Conv1D::rows(&scope.at("c_proj"), inner, width, residual_std(config))?.into(),
            dropout: Dropout::new(&scope.at("dropout"), config.dropout)?,
        })
    }

    /// Takes the normalized stream by value, so that it is dropped as soon as it has been read.
    fn forward_of(&self, x: Tensor, recompute: bool) -> Result<Tensor> {
        let x = gathered(self.region.as_ref(), self.label, x)?;
        let up = match recompute {
            true => {
                let c_fc = self.c_fc.clone();
                recompute_output(move |x| c_fc.forward(&x[0]), &[&x])?
            }
            false => self.c_fc.forward(&x)?,
        };
        drop(x);
        let c_proj = match (self.c_proj.plain(), &self.region) {
            (Some(c_proj), _) => c_proj,
            (None, Some(_)) => self.c_proj.want_plain("gpt2")?,
            (None, None) => return self.c_proj.forward(&self.activation.of(&up)?),
        };
        let _owner = Span::layer(c_proj.label);
        let weight = c_proj.weight.t()?;
        let Some(region) = &self.region else {
            return up.activation_linear(self.activation, &weight, &c_proj.bias);
        };
        region.scatter(&up.activation_linear(self.activation, &weight, None)?)?.add(&c_proj.bias)
    }
}

impl Module for Mlp {
    members!(c_fc, c_proj, dropout);

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.dropout.forward(&self.forward_of(x.clone(), false)?)
    }
}
