//! Errors of texts and token files.

use std::path::PathBuf;

/// Why a text cannot be read or divided into blocks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// An empty file.
    #[error("{} is empty; give a file with text in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },

    /// An empty text.
    #[error("the text is empty; give at least one character")]
    NoText,

    /// A text file in another encoding.
    #[error(
        "{} is not UTF-8: byte {byte:#04x} at offset {at}; convert it to UTF-8, or read it byte by byte",
        path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        at: usize,
        /// That byte.
        byte: u8,
    },

    /// Fewer tokens than a block and its last successor need.
    #[error(
        "{length} tokens are too few for a context of {context}: {} are needed; use a longer text or a shorter context",
        context.saturating_add(1)
    )]
    TooShort {
        /// The number of tokens.
        length: usize,
        /// Tokens in a block.
        context: usize,
    },

    /// A part of a split has fewer tokens than a block and its last successor need.
    #[error(
        "a text of {all} tokens is too short for a context of {context}: its {part} part has {length}, {} are \
         needed; use a longer text or a shorter context",
        context.saturating_add(1)
    )]
    PartTooShort {
        /// Tokens in the text.
        all: usize,
        /// The part: `training` (nine tenths) or `validation` (one tenth).
        part: &'static str,
        /// Tokens in the part.
        length: usize,
        /// Tokens in a block.
        context: usize,
    },

    /// The block size is 0.
    #[error("the context is 0 tokens; give at least 1")]
    Context,

    /// A character outside the vocabulary.
    #[error(
        "character {at} is {character:?}, which is not among the {symbols} characters of the vocabulary; use only \
         characters of the training text"
    )]
    Unknown {
        /// The character.
        character: char,
        /// Its position, from 0.
        at: usize,
        /// Size of the vocabulary.
        symbols: usize,
    },

    /// A token outside the vocabulary.
    #[error(
        "token {at} is {token}, but the vocabulary has {symbols} tokens; is it from another tokenizer, or does \
         the file have another token width?"
    )]
    NoToken {
        /// The token.
        token: i64,
        /// Its position, from 0.
        at: u64,
        /// Size of the vocabulary.
        symbols: usize,
    },

    /// A token file that ends within a token.
    #[error(
        "{} has {bytes} bytes, which is not a multiple of {width}, the size of a token; is it cut short, or \
         does it have another token width?",
        path.display()
    )]
    PartialToken {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
        /// Bytes of a token.
        width: usize,
    },

    /// A file that is not a tokenizer.
    #[error(
        "{} is not a tokenizer: {message}; give a tokenizer.json of the `tokenizers` library, as \
         `tokenizer.save_pretrained` writes it",
        path.display()
    )]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// The problem with the file.
        message: String,
    },

    /// A text that a tokenizer cannot encode.
    #[error("the tokenizer {} cannot encode this text: {message}", path.display())]
    NotEncoded {
        /// The tokenizer's file.
        path: PathBuf,
        /// The reason why the text cannot be encoded.
        message: String,
    },
}
