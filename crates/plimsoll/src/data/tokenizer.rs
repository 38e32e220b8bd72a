//! Tokenizers of language models: the `tokenizer.json` that comes with a model of `transformers`.
//!
//! The library `tokenizers` reads the file and does the work (byte-level BPE, WordPiece, Unigram, with pre- and post-processing).
//! Nothing is downloaded. The result is [`Tokens`], as from any other text.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::TextError;
use super::panicked::message_of;
use super::{DataError, Tokens};

/// Whether to include special tokens such as `[CLS]` and `<|endoftext|>`, which are not part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Encoding adds the special tokens that the tokenizer puts around a text; decoding keeps them.
    With,
    /// Encoding adds no special tokens; decoding leaves them out.
    Without,
}

/// A tokenizer. Clones share it.
///
/// ```no_run
/// use plimsoll::data::{SpecialTokens, Text, Tokenizer};
/// let tokenizer = Tokenizer::open("gpt2/tokenizer.json".as_ref())?;
/// assert_eq!(tokenizer.encode("Hello world", SpecialTokens::Without)?, [15496, 995]);
/// assert_eq!(tokenizer.decode(&[15496, 995], SpecialTokens::Without)?, "Hello world");
/// // What a GPT-2 is trained on: blocks of 1,024 tokens of a text file.
/// let tokens = tokenizer.read("book.txt".as_ref())?;
/// let parts = Text::split_tokens(&tokens, 1024)?;
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: Arc<tokenizers::Tokenizer>,
}

impl Tokenizer {
    /// Opens a `tokenizer.json`. Its truncation and padding settings are ignored: texts are encoded at full length.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or is not a tokenizer.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let bytes = fs::read(path).map_err(|source| DataError::Io {
            path: path.to_owned(),
            doing: "read",
            source,
        })?;
        let wrong = |message: String| TextError::NotATokenizer { path: path.to_owned(), message };
        let mut inner = guarded(|| tokenizers::Tokenizer::from_bytes(&bytes)).map_err(wrong)?;
        inner.with_padding(None);
        guarded(|| inner.with_truncation(None).map(|_| ())).map_err(wrong)?;
        if inner.get_vocab_size(true) == 0 {
            return Err(wrong("its vocabulary is empty".to_owned()).into());
        }
        Ok(Self { path: path.to_owned(), inner: Arc::new(inner) })
    }

    /// The number of tokens, including added ones. A model's vocabulary size is at least this large.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether there are no tokens. A tokenizer always has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ID of a token, such as `<|endoftext|>`.
    #[must_use]
    pub fn token(&self, text: &str) -> Option<i64> {
        self.inner.token_to_id(text).map(i64::from)
    }

    /// The tokens of a text. Like `tokenizer.encode(text, add_special_tokens=…)`.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text and no unknown token.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<i64>, DataError> {
        Ok(self.ids(text, special)?.into_iter().map(i64::from).collect())
    }

    /// The text of tokens. Like `tokenizer.decode(tokens, skip_special_tokens=…)`.
    ///
    /// # Errors
    /// If a token is not in the vocabulary.
    pub fn decode(&self, tokens: &[i64], special: SpecialTokens) -> Result<String, DataError> {
        let known = |(at, &token): (usize, &i64)| {
            let id = u32::try_from(token).ok().filter(|&id| self.inner.id_to_token(id).is_some());
            id.ok_or(TextError::NoToken { token, at: at as u64, symbols: self.len() })
        };
        let ids = tokens.iter().enumerate().map(known).collect::<Result<Vec<u32>, TextError>>()?;
        let text = guarded(|| self.inner.decode(&ids, special == SpecialTokens::Without));
        Ok(text.map_err(|message| self.failed(message))?)
    }

    /// Reads a text file as tokens, without special tokens. The text is encoded at once, because tokens may depend on the text
    /// around them. This takes a few hundred bytes of memory for each token, so encode a large text in parts, into a file for
    /// [`Tokens::open`].
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or is not UTF-8; the errors of
    /// [`encode`](Self::encode).
    pub fn read(&self, path: &Path) -> Result<Tokens, DataError> {
        let bytes = super::text::contents(path)?;
        let text = super::text::utf8(path, &bytes)?;
        if text.is_empty() {
            return Err(TextError::Empty { path: path.to_owned() }.into());
        }
        Ok(Tokens::new(self.ids(text, SpecialTokens::Without)?).vocabulary(self.len()))
    }

    fn ids(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, DataError> {
        let encoding = guarded(|| self.inner.encode_fast(text, special == SpecialTokens::With));
        Ok(encoding.map_err(|message| self.failed(message))?.get_ids().to_vec())
    }

    fn failed(&self, message: String) -> TextError {
        TextError::NotEncoded { path: self.path.clone(), message }
    }
}

/// Calls the library; if it panics on a damaged file, that becomes an error.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(message_of(&*panic)),
    }
}
