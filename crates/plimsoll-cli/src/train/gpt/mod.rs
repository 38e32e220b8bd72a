//! `plimsoll train gpt`: a GPT-2 on the characters of a text, as in nanoGPT's `shakespeare_char`. `published.rs` has the sizes of
//! the published models, `model.rs` is the network in training, and `sample.rs` generates text.

mod model;
mod published;
mod sample;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use plimsoll::data::{DataError, DataLoader, Dataset, RandomSampler, Subset, Text, TextError, TextSplit};
use plimsoll::models::Gpt2Config;
use plimsoll::nn::Scope;
use plimsoll::optim::{AdamWOptions, Optimizer};
use plimsoll::{Result, Tensor};
use serde_json::{Map, Value, json};

use self::model::LanguageModel;
use self::published::Published;
use self::sample::Sampling;
use super::job::{Job, Length};
use super::optimizer::{LanguageOptimizer, learning_rate};
use super::settings::Settings;
use super::task::{CHECKSUM_START, Identity, Metric, Network, Task, Unit, checksum};
use super::techniques::Techniques;
use crate::exit::{Exit, Failure};

/// Steps between two evaluations on the validation data. For this job, that is an epoch.
const ROUND: u64 = 250;
/// The number of blocks of the validation data that are evaluated.
const VALIDATED: usize = 512;
/// Steps of learning-rate warm-up.
const WARM_UP: f64 = 100.0;
/// Characters of the generated training text.
const MADE: usize = 500_000;
/// The context length, unless an option or a published model says another.
const CONTEXT: usize = 64;

#[derive(Args)]
pub(crate) struct GptArgs {
    /// Text file, UTF-8 [default: generated English sentences]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// What one token stands for
    #[arg(long, value_enum, default_value_t = Symbols::Characters)]
    tokens: Symbols,
    /// A published model, by name: its number of blocks, heads, width, context length and vocabulary
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["layers", "heads", "width"], help_heading = "Model")]
    model: Option<Published>,
    /// Number of blocks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000),
          help_heading = "Model")]
    layers: u16,
    /// Attention heads of each block; --width must be a multiple of this
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..),
          help_heading = "Model")]
    heads: u16,
    /// Width of the residual stream
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000_000),
          help_heading = "Model")]
    width: u32,
    /// Context length in tokens [default: 64, or that of --model]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Model")]
    context: Option<u32>,
    /// Dropout probability in training
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability, help_heading = "Model")]
    dropout: f64,
    /// Activation checkpointing: recompute each block's activations in the backward pass, to use less memory
    #[arg(long, conflicts_with_all = ["activations", "fit"], help_heading = "Model")]
    checkpoint: bool,
    /// Steps to train
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Sequences per step, in total over all ranks
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch_size: u32,
    /// The optimizer
    #[arg(long, value_enum, default_value_t = LanguageOptimizer::Adamw)]
    optimizer: LanguageOptimizer,
    /// The learning rate at the end of its 100 warmup steps; it then decays in proportion to 1/sqrt(step)
    #[arg(long, value_name = "RATE", default_value_t = 3e-3, value_parser = learning_rate)]
    lr: f64,
    /// Scale the gradients of a step so that their norm is at most this; 0 leaves them as they are
    #[arg(long, value_name = "NORM", default_value_t = 1.0, value_parser = norm)]
    clip: f64,
    /// Characters to generate at the end; 0 generates none
    #[arg(long, value_name = "N", default_value_t = 400, help_heading = "Sample")]
    sample: u32,
    /// The prompt of the sample [default: a line break]
    #[arg(long, value_name = "TEXT", help_heading = "Sample")]
    prompt: Option<String>,
    /// Sampling temperature: 0 always picks the likeliest token, 1 samples from the model's own probabilities
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature, help_heading = "Sample")]
    temperature: f64,
    #[command(flatten)]
    pub(super) settings: Settings,
}

/// The text that a token represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Symbols {
    /// A character: the vocabulary contains the distinct characters of the text
    Characters,
    /// A byte: works with any file; the vocabulary has 256 entries
    Bytes,
}

fn probability(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..1.0).contains(&p) => Ok(p),
        _ => Err("a share must be at least 0 and less than 1".to_owned()),
    }
}

fn norm(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(norm) if norm.is_finite() && norm >= 0.0 => Ok(norm),
        _ => Err("a norm must be 0 or more".to_owned()),
    }
}

fn temperature(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(t) if (0.0..=100.0).contains(&t) => Ok(t),
        _ => Err("a temperature must be from 0 to 100".to_owned()),
    }
}

/// A text, and the settings for training on it.
struct Gpt {
    name: String,
    symbols: Symbols,
    clip: f64,
    text: Text,
    parts: TextSplit,
    config: Gpt2Config,
    /// Whether --model set the sizes.
    is_published: bool,
    sampling: Sampling,
    describe: Map<String, Value>,
}

impl GptArgs {
    /// The job without and with `--checkpoint`.
    pub(super) fn variants(&self) -> std::result::Result<Vec<(Option<&'static str>, Job)>, Failure> {
        Ok(vec![(None, self.job_with(false)?), (Some("--checkpoint"), self.job_with(true)?)])
    }

    /// The options that the number of ranks that share layers must divide.
    pub(super) fn shared(&self) -> [(&'static str, usize); 2] {
        let Gpt2Config { n_head, n_positions, .. } = self.config();
        [("--heads", n_head), ("--context", n_positions)]
    }

    /// The configuration of the model, whose vocabulary is a published one until the text is read.
    fn config(&self) -> Gpt2Config {
        let own = || Gpt2Config {
            n_embd: self.width as usize,
            n_layer: self.layers.into(),
            n_head: self.heads.into(),
            n_positions: CONTEXT,
            ..Gpt2Config::small()
        };
        let model = self.model.map_or_else(own, Published::config);
        let n_positions = self.context.map_or(model.n_positions, |context| context as usize);
        Gpt2Config { n_positions, dropout: self.dropout, ..model }
    }

    /// Builds the job.
    pub(super) fn job(&self) -> std::result::Result<Job, Failure> {
        self.job_with(self.checkpoint)
    }

    fn job_with(&self, checkpoint: bool) -> std::result::Result<Job, Failure> {
        let mut config = self.config();
        let (width, heads) = (config.n_embd, config.n_head);
        if !width.is_multiple_of(heads) {
            let message = format!("--width {width} is not a multiple of --heads {heads}: change one of them");
            return Err(Failure::new(Exit::Usage, message));
        }
        if self.optimizer == LanguageOptimizer::Adamw8bit {
            self.settings.wants_whole_parameters("--optimizer adamw8bit")?;
        }
        let text = self.text()?;
        let parts = text.split(config.n_positions)?;
        let vocabulary = text.vocabulary().clone();
        config.vocab_size = self.vocab_size(&config, vocabulary.len())?;
        self.settings.parallel.shares_vocabulary(config.vocab_size)?;
        config.gradient_checkpointing = checkpoint;
        let sampling =
            Sampling::new(vocabulary, self.prompt.as_deref(), self.sample as usize, self.temperature)
                .map_err(|why| Failure::new(Exit::Usage, format!("--prompt: {why}")))?;
        let (name, symbols) = (self.data_name(), self.tokens);
        let describe = self.describe(&text, &parts, &config);
        let (clip, is_published) = (self.clip, self.model.is_some());
        let task = Gpt { name, symbols, clip, text, parts, config, is_published, sampling, describe };
        let epochs = self.steps.div_ceil(ROUND);
        let length = Length { epochs: Some(epochs), default_epochs: epochs, steps: Some(self.steps) };
        let mut job = self.settings.job(Box::new(task), length, self.batch_size as usize, self.lr);
        job.techniques.adamw_8bit = self.optimizer == LanguageOptimizer::Adamw8bit;
        Ok(job)
    }

    /// The size of the vocabulary for a text with `own` different tokens: `own`, unless a published model has more.
    fn vocab_size(&self, model: &Gpt2Config, own: usize) -> std::result::Result<usize, Failure> {
        let size = if self.model.is_some() { model.vocab_size } else { own };
        if size < own {
            let message =
                format!("the text has {own} different characters, but the model {size}: use --tokens bytes");
            return Err(Failure::new(Exit::Usage, message));
        }
        Ok(size)
    }

    fn text(&self) -> std::result::Result<Text, Failure> {
        let read = match (&self.data, self.tokens) {
            (Some(path), Symbols::Characters) => Text::read(path),
            (Some(path), Symbols::Bytes) => Text::read_bytes(path),
            (None, _) => Text::sentences(self.settings.seed, MADE),
        };
        read.map_err(|why| match why {
            DataError::Text(TextError::NotUtf8 { .. }) => {
                Failure::new(Exit::Unreadable, format!("{why} with `--tokens bytes`"))
            }
            other => other.into(),
        })
    }

    fn data_name(&self) -> String {
        self.data.as_ref().map_or("generated sentences".to_owned(), |path| path.display().to_string())
    }

    fn describe(&self, text: &Text, parts: &TextSplit, config: &Gpt2Config) -> Map<String, Value> {
        let fields = json!({
            "data": self.data_name(),
            "train_tokens": parts.train.positions() + parts.train.context(),
            "tokens": text.tokens().len(),
            "vocabulary": config.vocab_size,
            "layers": config.n_layer,
            "heads": config.n_head,
            "width": config.n_embd,
            "context": config.n_positions,
            "dropout": self.dropout,
            "checkpoint": self.checkpoint,
            "batch_size": self.batch_size,
            "clip": self.clip,
            "lr": self.lr,
            "seed": self.settings.seed,
        });
        fields.as_object().cloned().unwrap_or_default()
    }
}

impl Symbols {
    fn plural(self) -> &'static str {
        match self {
            Symbols::Characters => "characters",
            Symbols::Bytes => "bytes",
        }
    }
}

impl Task for Gpt {
    fn name(&self) -> &'static str {
        "gpt"
    }

    fn announcement(&self) -> String {
        let Gpt2Config { n_layer, n_head, n_embd, n_positions, vocab_size, .. } = self.config;
        let (all, symbols) = (self.text.tokens().len(), self.symbols.plural());
        format!(
            "{all} {symbols} of {}: vocabulary {vocab_size}, layers {n_layer}, heads {n_head}, width {n_embd}, context \
             {n_positions}",
            self.name
        )
    }

    fn training(&self, batch_size: usize, seed: u64) -> std::result::Result<DataLoader, DataError> {
        let blocks = self.parts.train.clone();
        let draws = (ROUND as usize).saturating_mul(batch_size);
        let sampler = RandomSampler::new(blocks.positions(), seed).with_replacement(draws);
        Ok(DataLoader::new(Arc::new(blocks), batch_size)?.seed(seed).sampler(sampler))
    }

    fn testing(&self, batch_size: usize) -> std::result::Result<DataLoader, DataError> {
        let blocks = self.parts.validation.clone().sequential();
        let some = 0..blocks.len().min(VALIDATED);
        DataLoader::new(Arc::new(Subset::new(Arc::new(blocks), some)?), batch_size)
    }

    fn data_set_bytes(&self) -> u64 {
        self.text.tokens().resident_bytes()
    }

    fn network(&self, scope: &Scope) -> Result<Box<dyn Network>> {
        Ok(Box::new(LanguageModel::new(scope, self.config.clone(), self.sampling.clone())?))
    }

    fn optimizer(
        &self,
        parameters: Vec<Tensor>,
        lr: f64,
        techniques: &Techniques,
    ) -> Result<Box<dyn Optimizer>> {
        techniques.adamw(parameters, AdamWOptions { lr, ..AdamWOptions::default() })
    }

    fn has_adamw(&self) -> bool {
        true
    }

    /// The schedule of "Attention Is All You Need". It does not depend on the number of steps, so a run can be
    /// extended.
    fn schedule(&self, step: u64, _: u64) -> f64 {
        let step = step as f64 + 1.0;
        (step / WARM_UP).min((WARM_UP / step).sqrt())
    }

    fn clip(&self) -> Option<f64> {
        (self.clip > 0.0).then_some(self.clip)
    }

    fn unit(&self) -> Unit {
        Unit { plural: "tokens", per_sample: self.config.n_positions as u64 }
    }

    fn metric(&self) -> Metric {
        Metric::Loss
    }

    fn describe(&self) -> Map<String, Value> {
        self.describe.clone()
    }

    fn identity(&self) -> std::result::Result<Identity, DataError> {
        let config = &self.config;
        let options = json!({
            "--tokens": self.symbols.plural(),
            "--layers": config.n_layer,
            "--heads": config.n_head,
            "--width": config.n_embd,
            "--context": config.n_positions,
            "--dropout": config.dropout,
        });
        let mut options = options.as_object().cloned().unwrap_or_default();
        if self.is_published {
            options.insert("--model".to_owned(), format!("vocabulary {}", config.vocab_size).into());
        }
        let symbols = self.text.vocabulary().symbols().unwrap_or_default();
        let mut data = checksum(CHECKSUM_START, symbols.into_bytes());
        let tokens = self.text.tokens();
        let mut some = vec![0; 4096];
        for start in (0..tokens.len()).step_by(some.len()) {
            let some = &mut some[..(tokens.len() - start).min(4096)];
            tokens.read(start, some)?;
            data = checksum(data, some.iter().flat_map(|token| (*token as u32).to_le_bytes()));
        }
        Ok(Identity { options, data })
    }

    fn has_blocks(&self) -> bool {
        true
    }

    /// The files that `transformers` needs to load the weights, and a file with the character of each token.
    fn companions(&self) -> Vec<(&'static str, String)> {
        let Gpt2Config { vocab_size, n_positions, n_embd, n_layer, n_head, dropout, .. } = self.config;
        let config = json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "vocab_size": vocab_size,
            "n_positions": n_positions,
            "n_embd": n_embd,
            "n_layer": n_layer,
            "n_head": n_head,
            "embd_pdrop": dropout,
            "attn_pdrop": dropout,
            "resid_pdrop": dropout,
            "tie_word_embeddings": true,
            "bos_token_id": null,
            "eos_token_id": null,
        });
        let vocabulary = match self.text.vocabulary().symbols() {
            Some(symbols) => json!({ "characters": symbols.chars().map(String::from).collect::<Vec<_>>() }),
            None => json!({ "bytes": 256 }),
        };
        vec![("config.json", format!("{config:#}\n")), ("vocabulary.json", format!("{vocabulary}\n"))]
    }

    fn smaller(&self) -> &'static str {
        match self.config.gradient_checkpointing && !self.is_published {
            true => "a smaller --batch-size, --context or --width",
            false => "a smaller --batch-size or --context",
        }
    }
}
