//! The sizes in a `config.json` of `transformers`: [`Gpt2Config::from_json`], [`LlamaConfig::from_json`],
//! [`BertConfig::from_json`].
//!
//! A state dict has names and shapes only: an activation or a scale that is not the model's would give other numbers without a
//! word. So what a configuration asks for and the model has not is an error here, with its name.

use plimsoll_tensor::{Activation, Error, Result};
use serde_json::{Map, Value};

use super::{BertConfig, Gpt2Config, LlamaConfig, RopeScaling, Yarn};

/// A configuration's fields, with the defaults of `transformers` for those that are not there.
struct Fields<'a> {
    model: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Those of a configuration for one of these kinds of models.
    fn of(model: &'static str, kinds: &[&str], value: &'a Value) -> Result<Fields<'a>> {
        let Some(map) = value.as_object() else {
            return Err(error(model, "config.json: needs an object `{…}`"));
        };
        let fields = Fields { model, map };
        match fields.text("model_type")? {
            Some(kind) if !kinds.contains(&kind) => {
                let of =
                    format!("config.json is of model_type `{kind}`; this model reads {}", kinds.join(", "));
                Err(error(model, of))
            }
            _ => Ok(fields),
        }
    }

    /// A field that is there, and is not null.
    fn given(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn wrong<T>(&self, name: &str, needs: &str) -> Result<T> {
        let found = self.map.get(name).map_or("is not given".to_owned(), |value| format!("is {value}"));
        Err(error(self.model, format!("config.json: `{name}` {found}; needs {needs}")))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let text = |value: &'a Value| value.as_str().map_or_else(|| self.wrong(name, "a text"), Ok);
        self.given(name).map(text).transpose()
    }

    fn count_if_given(&self, name: &str) -> Result<Option<usize>> {
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        self.given(name)
            .map(|value| count(value).map_or_else(|| self.wrong(name, "a whole number"), Ok))
            .transpose()
    }

    fn count(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.count_if_given(name)?.unwrap_or(default))
    }

    fn number_if_given(&self, name: &str) -> Result<Option<f64>> {
        self.given(name)
            .map(|value| value.as_f64().map_or_else(|| self.wrong(name, "a number"), Ok))
            .transpose()
    }

    fn number(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number_if_given(name)?.unwrap_or(default))
    }

    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let numbers = self.given(name).and_then(Value::as_array);
        let numbers = numbers.and_then(|numbers| numbers.iter().map(Value::as_f64).collect());
        numbers.map_or_else(|| self.wrong(name, "a list of numbers"), Ok)
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        let flag = |value: &Value| value.as_bool().map_or_else(|| self.wrong(name, "true or false"), Ok);
        self.given(name).map_or(Ok(default), flag)
    }

    fn activation(&self, name: &str, default: Activation) -> Result<Activation> {
        Ok(match self.text(name)? {
            None => default,
            Some("relu") => Activation::Relu,
            Some("gelu" | "gelu_python") => Activation::Gelu,
            Some("gelu_new" | "gelu_fast" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("silu" | "swish") => Activation::Silu,
            Some(_) => return self.wrong(name, "relu, gelu, gelu_new or silu: this model has no other"),
        })
    }

    /// A field that this model has one value for.
    fn only(&self, name: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        match self.given(name) {
            // A number may be written with a fraction or without.
            Some(given) if *given != value && given.as_f64().is_none_or(|it| value.as_f64() != Some(it)) => {
                self.wrong(name, &format!("{value}: this model has nothing else"))
            }
            _ => Ok(()),
        }
    }

    /// A number that this model has one of for several fields.
    fn same(&self, names: &[&str], default: f64) -> Result<f64> {
        let first = self.number(names[0], default)?;
        for name in &names[1..] {
            if self.number(name, default)? != first {
                return self
                    .wrong(name, &format!("{first}, as `{}`: this model has one number for both", names[0]));
            }
        }
        Ok(first)
    }
}

fn error(op: &'static str, message: impl Into<String>) -> Error {
    Error::Argument { op, message: message.into() }
}

fn parsed(model: &'static str, text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|why| error(model, format!("config.json: {why}")))
}

impl Gpt2Config {
    /// The sizes in a `config.json` of `transformers`, of model type `gpt2`.
    ///
    /// ```
    /// use plimsoll::models::Gpt2Config;
    /// let config = Gpt2Config::from_json(r#"{"model_type": "gpt2", "n_layer": 6, "activation_function": "relu"}"#)?;
    /// assert_eq!((config.n_layer, config.n_embd), (6, 768));
    /// let error = Gpt2Config::from_json(r#"{"add_cross_attention": true}"#).unwrap_err().to_string();
    /// assert_eq!(error, "gpt2: config.json: `add_cross_attention` is true; needs false: this model has nothing else");
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// No JSON; another kind of model; a value that is not of its type, or that this model does not support.
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

impl LlamaConfig {
    /// The sizes in a `config.json` of `transformers`, of model type `llama`, or `mistral` or `qwen2` without a sliding window.
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
    /// As [`Gpt2Config::from_json`].
    pub fn from_json(text: &str) -> Result<LlamaConfig> {
        let value = parsed("llama", text)?;
        let fields = Fields::of("llama", &["llama", "mistral", "qwen2"], &value)?;
        let kind = fields.text("model_type")?.unwrap_or("llama");
        let is_windowed = match kind {
            "mistral" => fields.map.get("sliding_window") != Some(&Value::Null),
            _ => fields.flag("use_sliding_window", false)?,
        };
        if is_windowed {
            let needs = "null: attention within a window is not here; sequences no longer than the window are the same without it";
            return fields.wrong("sliding_window", needs);
        }
        fields.only("hidden_act", "silu")?;
        fields.only("attention_dropout", 0.0)?;
        // `transformers` has other sizes by default for each kind; published files give all of them.
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
            rope_scaling: rope.map(|rope| scaling(&rope, &fields)).transpose()?.flatten(),
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

/// The fields of `rope_parameters`, or of `rope_scaling` in older files, whose lengths may be beside them.
fn scaling(rope: &Fields<'_>, outer: &Fields<'_>) -> Result<Option<RopeScaling>> {
    let kind = match rope.text("rope_type")? {
        Some(kind) => kind,
        None => rope.text("type")?.unwrap_or("default"),
    };
    let length = |name: &str| Ok(rope.count_if_given(name)?.or(outer.count_if_given(name)?));
    let longest = length("max_position_embeddings")?.unwrap_or(2048);
    let original = length("original_max_position_embeddings")?.unwrap_or(longest);
    let factor = rope.number("factor", 1.0)?;
    Ok(Some(match kind {
        "default" => return Ok(None),
        "linear" => RopeScaling::Linear { factor },
        "dynamic" => RopeScaling::Dynamic { factor, max_position_embeddings: longest },
        "llama3" => RopeScaling::Llama3 {
            factor,
            low_freq_factor: rope.number("low_freq_factor", 1.0)?,
            high_freq_factor: rope.number("high_freq_factor", 4.0)?,
            original_max_position_embeddings: original,
        },
        "yarn" => {
            let default = Yarn::default();
            RopeScaling::Yarn(Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor: rope.number_if_given("attention_factor")?,
                mscale: rope.number_if_given("mscale")?,
                mscale_all_dim: rope.number_if_given("mscale_all_dim")?,
                beta_fast: rope.number("beta_fast", default.beta_fast)?,
                beta_slow: rope.number("beta_slow", default.beta_slow)?,
                truncate: rope.flag("truncate", default.truncate)?,
            })
        }
        "longrope" => RopeScaling::LongRope {
            factor: rope.number("factor", longest as f64 / original as f64)?,
            short_factor: rope.numbers("short_factor")?,
            long_factor: rope.numbers("long_factor")?,
            attention_factor: rope.number_if_given("attention_factor")?,
            original_max_position_embeddings: original,
        },
        _ => {
            let name = if rope.given("rope_type").is_some() { "rope_type" } else { "type" };
            return rope.wrong(name, "default, linear, dynamic, llama3, yarn or longrope");
        }
    }))
}

impl BertConfig {
    /// The sizes in a `config.json` of `transformers`, of model type `bert`.
    ///
    /// # Errors
    /// As [`Gpt2Config::from_json`].
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
