//! The tokens of a text: its distinct characters in order, or the 256 bytes.

use std::collections::BTreeSet;

use super::super::error::TextError;
use super::super::{DataError, Tokens};

/// Maps characters to tokens and back. As nanoGPT's `stoi` and `itos`.
///
/// ```
/// # use plimsoll::data::Vocabulary;
/// let vocabulary = Vocabulary::of("hello");
/// assert_eq!((vocabulary.len(), vocabulary.symbols()), (4, Some("ehlo".to_owned())));
/// assert_eq!(vocabulary.encode("hole")?, [1, 3, 2, 0]);
/// assert_eq!(vocabulary.decode(&[1, 3, 2, 0])?, "hole");
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary(Symbols);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Symbols {
    /// Distinct characters, ascending.
    Characters(Vec<char>),
    /// Token n is the byte n.
    Bytes,
}

impl Vocabulary {
    /// The distinct characters of a text, ascending. Called with the [`symbols`](Self::symbols) of a vocabulary, it returns the
    /// same vocabulary.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(Symbols::Characters(text.chars().collect::<BTreeSet<char>>().into_iter().collect()))
    }

    /// The 256 bytes.
    #[must_use]
    pub const fn bytes() -> Self {
        Self(Symbols::Bytes)
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Symbols::Characters(characters) => characters.len(),
            Symbols::Bytes => 256,
        }
    }

    /// Whether there are no tokens, which is true only for the vocabulary of an empty text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The characters in the order of their tokens, to be saved with a model; `None` if the tokens are bytes.
    #[must_use]
    pub fn symbols(&self) -> Option<String> {
        match &self.0 {
            Symbols::Characters(characters) => Some(characters.iter().collect()),
            Symbols::Bytes => None,
        }
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// If a character is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, DataError> {
        match &self.0 {
            Symbols::Bytes => Ok(text.bytes().map(i64::from).collect()),
            Symbols::Characters(characters) => {
                let token = |(at, character)| match characters.binary_search(&character) {
                    Ok(token) => Ok(token as i64),
                    Err(_) => Err(TextError::Unknown { character, at, symbols: characters.len() }.into()),
                };
                text.chars().enumerate().map(token).collect()
            }
        }
    }

    /// The text of these tokens. With a vocabulary of bytes, invalid UTF-8 becomes `�`; [`decode_bytes`](Self::decode_bytes)
    /// keeps the bytes.
    ///
    /// # Errors
    /// If a token is not in the vocabulary.
    pub fn decode(&self, tokens: &[i64]) -> Result<String, DataError> {
        Ok(String::from_utf8_lossy(&self.decode_bytes(tokens)?).into_owned())
    }

    /// The bytes of these tokens' text.
    ///
    /// # Errors
    /// If a token is not in the vocabulary.
    pub fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::with_capacity(tokens.len());
        for (at, &token) in tokens.iter().enumerate() {
            let known = usize::try_from(token).ok().filter(|&token| token < self.len());
            let token =
                known.ok_or_else(|| TextError::NoToken { token, at: at as u64, symbols: self.len() })?;
            match &self.0 {
                Symbols::Bytes => bytes.push(token as u8),
                Symbols::Characters(characters) => {
                    bytes.extend(characters[token].encode_utf8(&mut [0; 4]).bytes());
                }
            }
        }
        Ok(bytes)
    }

    /// The tokens of the text that this vocabulary was made from, stored as a byte each if they fit.
    pub(super) fn tokens(&self, text: &str) -> Tokens {
        let Symbols::Characters(characters) = &self.0 else { return Tokens::of_bytes(text.into()) };
        let token = |character| match characters.binary_search(&character) {
            Ok(token) => token,
            Err(_) => unreachable!("{character:?} is a character of the text"),
        };
        if characters.len() <= 256 {
            Tokens::of_bytes(text.chars().map(|character| token(character) as u8).collect())
        } else {
            Tokens::new(text.chars().map(|character| token(character) as u32).collect())
        }
    }
}
