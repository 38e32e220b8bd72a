//! Llama: the names, shapes and initial values of `transformers`' `LlamaForCausalLM`.

mod mlp;

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::checkpoint::{Checkpointer, checkpoint};
use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{AttentionOptions, Error, Result, Rotary, Tensor};

use self::mlp::{Mlp, columns, of_gathered, rows};
use super::config_json::{Fields, parsed};
use super::rope::RopeScaling;
use super::rotary_tables::Tables;
use crate::members;
use crate::nn::{
    ColumnParallelLinear, Cut, Init, Linear, Module, ModuleList, ResidualStream, RmsNorm, RowParallelLinear,
    Scope, Slot, Sublayers, TensorParallel, VocabParallelEmbedding, gathered, vocab_parallel_cross_entropy,
};

/// The configuration of a Llama model.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaConfig {
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Hidden width of the MLP.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads; must divide the width.
    pub num_attention_heads: usize,
    /// Key and value heads, which query heads share; must divide the number of query heads.
    pub num_key_value_heads: usize,
    /// Base of the rotary position embedding.
    pub rope_theta: f64,
    /// How the rotary position embedding is scaled for sequences longer than those in pretraining.
    pub rope_scaling: Option<RopeScaling>,
    /// Epsilon added to the mean square in RMS normalization.
    pub rms_norm_eps: f64,
    /// Width of a head; `None` for the width divided by the number of query heads.
    pub head_dim: Option<usize>,
    /// Whether the attention projections have biases.
    pub attention_bias: bool,
    /// Whether the query, key and value projections have biases even if the output projection has none, as in Qwen2.
    pub qkv_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Whether the output layer shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// Whether each block is checkpointed: its activations are recomputed in the backward pass.
    pub gradient_checkpointing: bool,
    /// The number of blocks, from the first on, whose MLP recomputes its first two products in the backward pass instead of
    /// keeping them. [`layers_to_recompute`](super::layers_to_recompute) finds the number of blocks needed for a memory
    /// limit.
    pub recompute_mlp: usize,
}

impl Default for LlamaConfig {
    /// The defaults of `transformers`' `LlamaConfig()`: Llama-2 with 7 billion parameters.
    fn default() -> LlamaConfig {
        LlamaConfig {
            vocab_size: 32_000,
            hidden_size: 4096,
            intermediate_size: 11_008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            rope_theta: 10_000.0,
            rope_scaling: None,
            rms_norm_eps: 1e-6,
            head_dim: None,
            attention_bias: false,
            qkv_bias: false,
            mlp_bias: false,
            tie_word_embeddings: false,
            gradient_checkpointing: false,
            recompute_mlp: 0,
        }
    }
}

impl LlamaConfig {
    /// A Llama-style model with 350 million parameters and grouped-query attention: 24 blocks of width 1024.
    pub fn llama_350m() -> LlamaConfig {
        LlamaConfig {
            hidden_size: 1024,
            intermediate_size: 2816,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            num_key_value_heads: 8,
            ..LlamaConfig::default()
        }
    }

    fn head_width(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Reads a `config.json` file from `transformers` with model type `llama`, or with `mistral` or `qwen2` if there is
    /// no sliding window.
    ///
    /// ```
    /// use plimsoll::models::LlamaConfig;
    /// let config = LlamaConfig::from_json(r#"{"model_type": "qwen2", "num_key_value_heads": 4}"#)?;
    /// assert!(config.qkv_bias && !config.attention_bias);
    /// let error = LlamaConfig::from_json(r#"{"model_type": "mistral", "sliding_window": 4096}"#).unwrap_err().to_string();
    /// assert!(error.starts_with("llama: config.json: `sliding_window` is 4096; needs null"), "{error}");
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Gpt2Config::from_json`](super::Gpt2Config::from_json).
    pub fn from_json(text: &str) -> Result<LlamaConfig> {
        let value = parsed("llama", text)?;
        let fields = Fields::of("llama", &["llama", "mistral", "qwen2"], &value)?;
        let kind = fields.text("model_type")?.unwrap_or("llama");
        let is_windowed = match kind {
            "mistral" => !fields.is_null("sliding_window"),
            _ => fields.flag("use_sliding_window", false)?,
        };
        if is_windowed {
            let needs = "null: sliding-window attention is not supported; sequences up to the window's length do not need it";
            return fields.wrong("sliding_window", needs);
        }
        fields.only("hidden_act", "silu")?;
        fields.only("attention_dropout", 0.0)?;
        // In `transformers` the default sizes differ by model type, but published files give all sizes.
        let default = LlamaConfig::default();
        let heads = fields.count("num_attention_heads", default.num_attention_heads)?;
        let rope = fields.given("rope_parameters").or(fields.given("rope_scaling"));
        let rope = rope.map(|value| Fields::of("llama", &[], value)).transpose()?;
        let theta = rope.as_ref().map(|rope| rope.number_if_given("rope_theta")).transpose()?.flatten();
        Ok(LlamaConfig {
            vocab_size: fields.count("vocab_size", default.vocab_size)?,
            hidden_size: fields.count("hidden_size", default.hidden_size)?,
            intermediate_size: fields.count("intermediate_size", default.intermediate_size)?,
            num_hidden_layers: fields.count("num_hidden_layers", default.num_hidden_layers)?,
            num_attention_heads: heads,
            num_key_value_heads: fields.count("num_key_value_heads", heads)?,
            rope_theta: theta.map_or_else(|| fields.number("rope_theta", default.rope_theta), Ok)?,
            rope_scaling: rope.map(|rope| RopeScaling::of_fields(&rope, &fields)).transpose()?.flatten(),
            rms_norm_eps: fields.number("rms_norm_eps", default.rms_norm_eps)?,
            head_dim: fields.count_if_given("head_dim")?,
            attention_bias: fields.flag("attention_bias", false)?,
            qkv_bias: kind == "qwen2",
            mlp_bias: fields.flag("mlp_bias", false)?,
            tie_word_embeddings: fields.flag("tie_word_embeddings", false)?,
            ..default
        })
    }
}

/// A Llama model with its language-modelling head. Each `mlp` and the products of attention and MLP are in slots
/// ([`Slot`]): they can have hooks, and other layers can take their place, except with [`Scope::tensor_parallel`].
///
/// ```
/// use plimsoll::models::{Llama, LlamaConfig};
/// use plimsoll::nn::{Module, Scope};
/// use plimsoll::{Device, SimConfig};
/// // Seven billion parameters, on a device that has no memory to fill.
/// let gpu = Device::sim(SimConfig::new(80 << 30));
/// let model = Llama::new(&Scope::new(&gpu, 1), LlamaConfig::default())?;
/// let count: usize = model.parameters().iter().map(|parameter| parameter.numel()).sum();
/// assert_eq!(count, 6_738_415_616);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct Llama {
    config: LlamaConfig,
    model: Inner,
    lm_head: Linear,
    tables: Tables,
    region: Option<TensorParallel>,
    checkpointer: Option<Checkpointer>,
}

#[derive(Debug)]
struct Inner {
    label: LabelId,
    embed_tokens: VocabParallelEmbedding,
    layers: ModuleList<Layer>,
    norm: RmsNorm,
}

impl Module for Inner {
    members!(embed_tokens, layers, norm);
}

impl Llama {
    /// A new model with Llama's initial values.
    ///
    /// # Errors
    /// If the numbers of heads (with [`Scope::tensor_parallel`], other sizes too) do not divide as required, the path
    /// is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, config: LlamaConfig) -> Result<Llama> {
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let divides = |a: usize, b: usize| a > 0 && b.is_multiple_of(a);
        let has_heads = heads > 0 && (config.head_dim.is_some() || divides(heads, config.hidden_size));
        if let Some(dim) = config.head_dim.filter(|&dim| dim == 0 || dim % 2 == 1) {
            let message = format!("head_dim is {dim}; it must be even and above 0");
            return Err(Error::Argument { op: "llama", message });
        }
        if let Some(scaling) = &config.rope_scaling {
            scaling.check(config.head_width())?;
        }
        if !has_heads || !divides(kv_heads, heads) {
            let width = match config.head_dim {
                None => "the width must be a multiple of the number of query heads, and that number",
                Some(_) => "the number of query heads must be",
            };
            let message = format!(
                "{heads} query heads and {kv_heads} key heads for a width of {}: {width} a multiple of the number of \
                 key heads; neither number may be 0",
                config.hidden_size
            );
            return Err(Error::Argument { op: "llama", message });
        }
        let inner = scope.at("model");
        let init = Init::Normal(0.02);
        let embed_tokens = VocabParallelEmbedding::with_init(
            &inner.at("embed_tokens"),
            config.vocab_size,
            config.hidden_size,
            init,
        )?;
        let layers = ModuleList::new(&inner.at("layers"), config.num_hidden_layers, |scope| {
            Layer::new(scope, &config)
        })?;
        let norm = RmsNorm::new(&inner.at("norm"), config.hidden_size)?.eps(config.rms_norm_eps);
        let head = scope.at("lm_head");
        let weight = match config.tie_word_embeddings {
            true => embed_tokens.weight().clone(),
            false => head.part("weight", &[config.vocab_size, config.hidden_size], Cut::Uneven(0), init)?,
        };
        let model = Inner { label: inner.label(), embed_tokens, layers, norm };
        let (theta, scaling) = (config.rope_theta, config.rope_scaling.clone());
        let tables = Tables::new(&inner.at("rotary_emb"), theta, config.head_width(), scaling);
        let region = scope.region();
        Ok(Llama {
            lm_head: Linear::of(&head, weight, None),
            config,
            model,
            tables,
            region,
            checkpointer: None,
        })
    }

    /// The model's configuration.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// From now on, the blocks are checkpointed so that what they keep for the backward pass fits within a budget; with
    /// `None`, they are checkpointed as the configuration says. The first batch of each shape runs through the blocks
    /// once more, to measure them. `Checkpointer::new(budget).with_offload(bytes)` may also offload what blocks keep.
    ///
    /// ```
    /// use plimsoll::checkpoint::Budget;
    /// use plimsoll::models::{Llama, LlamaConfig};
    /// use plimsoll::nn::Scope;
    /// use plimsoll::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(80 << 30));
    /// let mut model = Llama::new(&Scope::new(&device, 1), LlamaConfig::llama_350m())?;
    /// model.checkpoint_within(Budget::Bytes(300 << 20));
    /// let tokens = Tensor::from_slice(&[7i64; 4 * 512], &[4, 512], &device)?;
    /// model.loss(&tokens, &tokens)?.backward()?;
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn checkpoint_within(&mut self, budget: impl Into<Option<Checkpointer>>) {
        self.checkpointer = budget.into();
    }

    /// The last hidden states of tokens `int64 [batch, length]`: `[batch, length, hidden_size]`; with
    /// [`Scope::tensor_parallel`], only for this rank's part of `length`.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, or memory runs out.
    pub fn hidden(&self, tokens: &Tensor) -> Result<Tensor> {
        let &[_, length] = tokens.shape() else {
            let message = format!("tokens {:?}: needs [batch, length]", tokens.shape());
            return Err(Error::Shape { op: "llama", message });
        };
        let [cos, sin] = self.tables.of(length, tokens.device())?;
        let mut x = self.model.embed_tokens.forward(tokens)?;
        if let Some(checkpointer) = &self.checkpointer {
            let mut sublayers = Sublayers::new(self.model.label);
            for layer in self.model.layers.iter() {
                let (attends, feeds) = (layer.clone(), layer.clone());
                let (cos, sin) = (cos.clone(), sin.clone());
                sublayers.push(move |stream| attends.add_attention_to(stream, &cos, &sin));
                sublayers.push(move |stream| feeds.add_mlp_to(stream, false));
            }
            x = checkpointer.forward_sequence(&sublayers.shared(), &x)?;
            return self.model.norm.forward(&x);
        }
        if self.config.gradient_checkpointing {
            for layer in self.model.layers.iter() {
                let layer = layer.clone();
                x = checkpoint(move |ins| layer.forward_at(&ins[0], &ins[1], &ins[2]), &[&x, &cos, &sin])?;
            }
            return self.model.norm.forward(&x);
        }
        let mut stream = ResidualStream::new(x, self.model.label);
        for (i, layer) in self.model.layers.iter().enumerate() {
            layer.add_to(&mut stream, &cos, &sin, i < self.config.recompute_mlp)?;
        }
        stream.finish(&self.model.norm)
    }

    /// The mean cross entropy of predicting `targets` (`int64 [batch, length]`) from `tokens`; targets of -100 are ignored. The
    /// logits are never materialized in full.
    ///
    /// # Errors
    /// The same errors as [`Llama::hidden`], or if the targets have a different shape or are outside the vocabulary.
    #[track_caller]
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let hidden = self.hidden(tokens)?;
        let _owner = Span::layer(self.lm_head.label());
        let (region, count) = (self.region.as_ref(), self.config.vocab_size);
        vocab_parallel_cross_entropy(region, &hidden, self.lm_head.weight(), count, targets)
    }
}

impl Module for Llama {
    members!(model, lm_head);

    /// The logits of tokens `int64 [batch, length]`: `[batch, length, vocab_size]`. With [`Scope::tensor_parallel`],
    /// all ranks must call it with the same tokens and inside [`no_grad`](plimsoll_tensor::no_grad).
    #[track_caller]
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        let Some(region) = &self.region else { return self.lm_head.forward(&self.hidden(tokens)?) };
        let _owner = Span::layer(self.lm_head.label());
        let output = (&**self.lm_head.weight(), self.config.vocab_size);
        region.logits("llama", (tokens, |tokens| self.hidden(tokens)), output)
    }
}

/// One block. Clones share parameters.
#[derive(Clone, Debug)]
struct Layer {
    label: LabelId,
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: Slot<Mlp>,
}

impl Layer {
    fn new(scope: &Scope, config: &LlamaConfig) -> Result<Layer> {
        let norm =
            |name: &str| Ok(RmsNorm::new(&scope.at(name), config.hidden_size)?.eps(config.rms_norm_eps));
        Ok(Layer {
            label: scope.label(),
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::new(&scope.at("self_attn"), config)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp::new(&scope.at("mlp"), [config.hidden_size, config.intermediate_size], config.mlp_bias)?
                .into(),
        })
    }

    fn forward_at(&self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let mut stream = ResidualStream::new(x.clone(), self.label);
        self.add_to(&mut stream, cos, sin, false)?;
        stream.into_sum()
    }

    fn add_to(&self, stream: &mut ResidualStream, cos: &Tensor, sin: &Tensor, recompute: bool) -> Result<()> {
        self.add_attention_to(stream, cos, sin)?;
        self.add_mlp_to(stream, recompute)
    }

    fn add_attention_to(&self, stream: &mut ResidualStream, cos: &Tensor, sin: &Tensor) -> Result<()> {
        let mixed = self.self_attn.forward_of(stream.normalized(&self.input_layernorm)?, cos, sin)?;
        stream.add(mixed)
    }

    fn add_mlp_to(&self, stream: &mut ResidualStream, recompute: bool) -> Result<()> {
        let x = stream.normalized(&self.post_attention_layernorm)?;
        stream.add(match self.mlp.plain() {
            Some(mlp) => mlp.forward_of(x, recompute)?,
            None => self.mlp.forward(&x)?,
        })
    }
}

impl Module for Layer {
    members!(self_attn, mlp, input_layernorm, post_attention_layernorm);
}

#[derive(Clone, Debug)]
struct Attention {
    label: LabelId,
    heads: usize,
    kv_heads: usize,
    q_proj: Slot<ColumnParallelLinear>,
    k_proj: Slot<ColumnParallelLinear>,
    v_proj: Slot<ColumnParallelLinear>,
    o_proj: Slot<RowParallelLinear>,
    region: Option<TensorParallel>,
}

impl Attention {
    fn new(scope: &Scope, config: &LlamaConfig) -> Result<Attention> {
        let (width, bias) = (config.hidden_size, config.attention_bias || config.qkv_bias);
        let [q_width, kv_width] =
            [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads * config.head_width());
        let region = scope.region();
        let share = |what: &str, count: usize| match &region {
            None => Ok(count),
            Some(region) => region.share(what, count),
        };
        Ok(Attention {
            label: scope.label(),
            heads: share("attention heads", config.num_attention_heads)?,
            kv_heads: share("key heads", config.num_key_value_heads)?,
            q_proj: columns(&scope.at("q_proj"), width, q_width, bias)?,
            k_proj: columns(&scope.at("k_proj"), width, kv_width, bias)?,
            v_proj: columns(&scope.at("v_proj"), width, kv_width, bias)?,
            o_proj: rows(&scope.at("o_proj"), q_width, width, config.attention_bias)?,
            region,
        })
    }

    /// Takes the normalized stream by value, so that it is dropped as soon as it has been read.
    fn forward_of(&self, x: Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let x = gathered(self.region.as_ref(), self.label, x)?;
        let &[batch, length, _] = x.shape() else {
            let message = format!("{:?}: needs [batch, length, width]", x.shape());
            return Err(Error::Shape { op: "llama", message });
        };
        let heads = |x: &Tensor, heads: usize| {
            x.reshape(&[batch, length, heads, x.shape()[2] / heads])?.transpose(1, 2)
        };
        let turned = |x: &Tensor| {
            let _owner = Span::layer(self.label);
            x.apply_rotary(cos, sin, Rotary::Halves)
        };
        let project = |layer| of_gathered(layer, &x, self.region.as_ref());
        let q = turned(&heads(&project(&self.q_proj)?, self.heads)?)?;
        let k = turned(&heads(&project(&self.k_proj)?, self.kv_heads)?)?;
        let v = heads(&project(&self.v_proj)?, self.kv_heads)?;
        drop(x);
        let mixed = {
            let _owner = Span::layer(self.label);
            let options =
                AttentionOptions { is_causal: true, enable_gqa: true, ..AttentionOptions::default() };
            q.scaled_dot_product_attention(&k, &v, options)?.transpose(1, 2)?.flatten(2, 3)?
        };
        self.o_proj.forward(&mixed)
    }
}

impl Module for Attention {
    members!(q_proj, k_proj, v_proj, o_proj);
}
