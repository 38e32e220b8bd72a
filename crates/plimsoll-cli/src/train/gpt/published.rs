//! `--model`: the published GPT-2 models, by name.

use clap::ValueEnum;
use plimsoll::models::Gpt2Config;

/// A published GPT-2, as on [Hugging Face](https://huggingface.co/openai-community/gpt2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Published {
    /// 124 million parameters: 12 blocks of width 768
    Gpt2,
    /// 355 million parameters: 24 blocks of width 1024
    Gpt2Medium,
    /// 774 million parameters: 36 blocks of width 1280
    Gpt2Large,
    /// 1,558 million parameters: 48 blocks of width 1600
    Gpt2Xl,
}

impl Published {
    /// Its configuration. Of its vocabulary, a text's own tokens are the first ones.
    pub(super) fn config(self) -> Gpt2Config {
        match self {
            Published::Gpt2 => Gpt2Config::small(),
            Published::Gpt2Medium => Gpt2Config::medium(),
            Published::Gpt2Large => Gpt2Config::large(),
            Published::Gpt2Xl => Gpt2Config::xl(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_published_numbers_of_parameters() {
        let parameters = |model: Published| {
            let Gpt2Config { n_layer, n_embd, n_positions, vocab_size, .. } = model.config();
            let block = 12 * n_embd * n_embd + 13 * n_embd;
            (vocab_size + n_positions) * n_embd + n_layer * block + 2 * n_embd
        };
        let found = Published::value_variants().iter().map(|model| parameters(*model));
        assert_eq!(found.collect::<Vec<_>>(), [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]);
    }
}
