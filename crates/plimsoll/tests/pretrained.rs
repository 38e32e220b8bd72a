//! Weights of `transformers` with their `config.json`. Settings that a state dict does not show are read from the configuration
//! or rejected, and names in older files are mapped to the model's.

use plimsoll::models::{Bert, BertConfig, Gpt2, Gpt2Config, LlamaConfig, load_pretrained};
use plimsoll::nn::{Module, Scope};
use plimsoll::serialize::{StateDict, Strict};
use plimsoll::{Device, Tensor};

use crate::recorded_steps::transformers::{bert, filled, small_gpt2, tokens};

#[test]
fn a_config_that_asks_for_something_else_is_refused_with_its_name() {
    let gpt2 = |text: &str| Gpt2Config::from_json(text).unwrap_err().to_string();
    let llama = |text: &str| LlamaConfig::from_json(text).unwrap_err().to_string();
    let bert = |text: &str| BertConfig::from_json(text).unwrap_err().to_string();
    for (message, expected) in [
        (gpt2("{"), "gpt2: config.json: EOF while parsing an object at line 1 column 1"),
        (gpt2("[1]"), "gpt2: config.json: needs an object `{…}`"),
        (
            gpt2(r#"{"model_type": "bert"}"#),
            "gpt2: config.json is of model_type `bert`; this model reads gpt2",
        ),
        (gpt2(r#"{"n_layer": 1.5}"#), "gpt2: config.json: `n_layer` is 1.5; needs a whole number"),
        (gpt2(r#"{"n_head": -1}"#), "gpt2: config.json: `n_head` is -1; needs a whole number"),
        (
            gpt2(r#"{"activation_function": "tanh"}"#),
            "gpt2: config.json: `activation_function` is \"tanh\"; needs relu, gelu, gelu_new or silu: this model has no other",
        ),
        (
            gpt2(r#"{"attn_pdrop": 0.2}"#),
            "gpt2: config.json: `attn_pdrop` is 0.2; needs 0.1, the same value as `resid_pdrop`: this model uses one value for both fields",
        ),
        (
            llama(r#"{"model_type": "gemma"}"#),
            "llama: config.json is of model_type `gemma`; this model reads llama, mistral, qwen2",
        ),
        (
            llama(r#"{"hidden_act": "gelu"}"#),
            "llama: config.json: `hidden_act` is \"gelu\"; needs \"silu\": no other value is supported",
        ),
        (
            llama(r#"{"rope_scaling": {"type": "su"}}"#),
            "llama: config.json: `type` is \"su\"; needs default, linear, dynamic, llama3, yarn or longrope",
        ),
        (
            bert(r#"{"position_embedding_type": "relative_key"}"#),
            "bert: config.json: `position_embedding_type` is \"relative_key\"; needs \"absolute\": no other value is supported",
        ),
    ] {
        assert_eq!(message, expected);
    }
    let windowed = llama(r#"{"model_type": "mistral"}"#);
    assert!(
        windowed.starts_with("llama: config.json: `sliding_window` is not given; needs null"),
        "{windowed}"
    );
    assert_eq!(LlamaConfig::from_json("{}").unwrap(), LlamaConfig::default());
    let whole = LlamaConfig::from_json(r#"{"attention_dropout": 0, "rope_theta": 10000}"#);
    assert_eq!(whole.unwrap(), LlamaConfig::default(), "numbers without a fraction");
    assert_eq!(Gpt2Config::from_json("{}").unwrap(), Gpt2Config::small());
    assert_eq!(BertConfig::from_json("{}").unwrap(), BertConfig::base());
}

/// Renames tensors as in files on the Hugging Face Hub.
fn renamed(model: &dyn Module, rename: impl Fn(&str) -> Option<String>) -> StateDict {
    model.state_dict().iter().filter_map(|(name, tensor)| Some((rename(name)?, tensor.clone()))).collect()
}

#[test]
fn names_of_older_files_lead_to_the_models() {
    let device = Device::cpu();
    let ids = tokens(&device, 0);
    let published = Gpt2::new(&Scope::new(&device, 1), small_gpt2()).unwrap();
    filled(&published);
    let expected = published.forward(&ids).unwrap().to_vec::<f32>().unwrap();
    let mut file = renamed(&published, |name| name.strip_prefix("transformer.").map(str::to_owned));
    file.insert("h.0.attn.bias", Tensor::ones(&[1, 1, 16, 16], &device).unwrap());
    let model = Gpt2::new(&Scope::new(&device, 2), small_gpt2()).unwrap();
    let keys = load_pretrained(&model, &file).unwrap();
    assert!(keys.missing.is_empty() && keys.unexpected.is_empty(), "{keys}");
    assert_eq!(model.forward(&ids).unwrap().to_vec::<f32>().unwrap(), expected);
    file.insert("score.weight", Tensor::ones(&[2, 32], &device).unwrap());
    assert_eq!(load_pretrained(&model, &file).unwrap().unexpected, ["score.weight"]);
    let short = renamed(&published, |name| (!name.contains("h.1.ln_1")).then(|| name.to_owned()));
    let error = load_pretrained(&model, &short).unwrap_err().to_string();
    assert!(error.contains("missing: transformer.h.1.ln_1.weight, transformer.h.1.ln_1.bias"), "{error}");

    let published = bert(&Scope::new(&device, 1));
    filled(&published);
    let expected = published.bert().forward(&ids).unwrap().to_vec::<f32>().unwrap();
    let file = renamed(&published, |name| {
        Some(name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"))
    });
    // A model without a head loads the file of a model with one.
    let model = Bert::without_pooler(&Scope::new(&device, 2), published.bert().config().clone()).unwrap();
    let keys = load_pretrained(&model, &file).unwrap();
    assert!(
        keys.unexpected.iter().all(|name| name.starts_with("cls.")) && !keys.unexpected.is_empty(),
        "{keys}"
    );
    assert_eq!(model.forward(&ids).unwrap().to_vec::<f32>().unwrap(), expected);
    assert!(model.load_state_dict(&file, Strict::Yes).is_err());
}
