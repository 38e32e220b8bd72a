//! Text for a character-level language model: the characters of a file, or generated sentences, as token numbers.
//!
//! As in nanoGPT's `shakespeare_char`, the vocabulary is the sorted set of the text's distinct characters
//! (`text/vocabulary.rs`), the first nine tenths of the text are for training, the last tenth is for validation. The model reads
//! blocks of consecutive tokens (`blocks.rs`). A text that is already tokenized is a [`Tokens`] file (`tokens.rs`).

mod grammar;
mod vocabulary;

use std::fs;
use std::path::Path;

pub use vocabulary::Vocabulary;

use super::error::TextError;
use super::{Blocks, DataError, Tokens};

/// A text and its vocabulary.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{DataLoader, RandomSampler, Text};
/// let text = Text::sentences(1, 10_000)?;
/// let parts = text.split(32)?;
/// // Eight blocks at random positions, twenty times, as nanoGPT's `get_batch`.
/// let sampler = RandomSampler::new(parts.train.positions(), 7).with_replacement(20 * 8);
/// let loader = DataLoader::new(Arc::new(parts.train), 8)?.sampler(sampler);
/// for batch in loader.epoch(0) {
///     let batch = batch?;
///     assert_eq!(batch.array("x")?.shape, [8, 32]);
///     assert_eq!(batch.array("y")?.shape, [8, 32]);
/// }
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Text {
    vocabulary: Vocabulary,
    tokens: Tokens,
}

/// The two parts of a text, as blocks.
#[derive(Clone, Debug)]
pub struct TextSplit {
    /// The first nine tenths.
    pub train: Blocks,
    /// The last tenth.
    pub validation: Blocks,
}

impl Text {
    /// Reads a text file. Each distinct character is a token.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or is not UTF-8 ([`read_bytes`](Self::read_bytes) reads any file).
    pub fn read(path: &Path) -> Result<Self, DataError> {
        let bytes = contents(path)?;
        let text = utf8(path, &bytes)?;
        Self::new(text).map_err(|_| TextError::Empty { path: path.to_owned() }.into())
    }

    /// Reads any file. Each byte is a token, so nothing is lost and the vocabulary always has 256 tokens.
    ///
    /// # Errors
    /// If the file cannot be read or is empty.
    pub fn read_bytes(path: &Path) -> Result<Self, DataError> {
        let bytes = contents(path)?;
        if bytes.is_empty() {
            return Err(TextError::Empty { path: path.to_owned() }.into());
        }
        Ok(Self { vocabulary: Vocabulary::bytes(), tokens: Tokens::of_bytes(bytes) })
    }

    /// A text in memory. Each distinct character is a token.
    ///
    /// # Errors
    /// If the text is empty.
    pub fn new(text: &str) -> Result<Self, DataError> {
        if text.is_empty() {
            return Err(TextError::NoText.into());
        }
        let vocabulary = Vocabulary::of(text);
        let tokens = vocabulary.tokens(text);
        Ok(Self { vocabulary, tokens })
    }

    /// Generates simple English sentences, for a run without a file: at least `characters` characters, up to the end of a
    /// sentence. The same seed always gives the same text.
    ///
    /// # Errors
    /// If `characters` is 0.
    pub fn sentences(seed: u64, characters: usize) -> Result<Self, DataError> {
        Self::new(&grammar::sentences(seed, characters))
    }

    /// The vocabulary. Its size is the model's vocabulary size; it encodes prompts and decodes samples.
    #[must_use]
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The tokens of the complete text.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Blocks of `context` tokens and their successors: the first nine tenths of the text for training, the last
    /// tenth for validation.
    ///
    /// # Errors
    /// If a part is too short for one block, or `context` is 0.
    pub fn split(&self, context: usize) -> Result<TextSplit, DataError> {
        Self::split_tokens(&self.tokens, context)
    }

    /// The same split of any tokens.
    ///
    /// # Errors
    /// The same errors as [`split`](Self::split).
    pub fn split_tokens(tokens: &Tokens, context: usize) -> Result<TextSplit, DataError> {
        let all = tokens.len();
        // nanoGPT's `int(n * 0.9)`, in integers.
        let train = all / 10 * 9 + all % 10 * 9 / 10;
        let part = |range: std::ops::Range<usize>, name| {
            let length = range.len();
            Blocks::new(tokens.range(range)?, context).map_err(|error| match error {
                DataError::Text(TextError::TooShort { .. }) => {
                    TextError::PartTooShort { all, part: name, length, context }.into()
                }
                other => other,
            })
        };
        Ok(TextSplit { train: part(0..train, "training")?, validation: part(train..all, "validation")? })
    }
}

pub(super) fn contents(path: &Path) -> Result<Vec<u8>, DataError> {
    fs::read(path).map_err(|source| DataError::Io { path: path.to_owned(), doing: "read", source })
}

/// The bytes of a file as a text.
pub(super) fn utf8<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, TextError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        TextError::NotUtf8 { path: path.to_owned(), at, byte: bytes[at] }
    })
}

#[cfg(test)]
#[path = "text/tests.rs"]
mod tests;
