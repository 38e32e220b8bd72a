//! A sequence of token numbers: in memory, or in a file that stays on disk.
//!
//! A token file has the format that nanoGPT's `prepare.py` writes (`train.bin`): only numbers of two or four bytes, little
//! endian. It may be larger than memory.
//!
//! Note [Read at a position]: the file is read at given offsets (`pread`), not mapped. Either way its pages are in the system's
//! page cache, and the process keeps no copy. But if another process truncates a mapped file, the program ends with SIGBUS, and
//! mapping needs unsafe code. A failed read is an error that names the file.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DataError;
use super::error::TextError;

/// A sequence of token numbers, cheap to clone.
///
/// ```
/// # use plimsoll::data::Tokens;
/// let tokens = Tokens::new(vec![7, 1, 50_256]);
/// let mut last = [0; 2];
/// tokens.read(1, &mut last)?;
/// assert_eq!(last, [1, 50_256]);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokens {
    all: Arc<Store>,
    range: Range<usize>,
    /// The vocabulary size; tokens must be below it.
    vocabulary: Option<usize>,
}

/// The size of a number in a token file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// Two bytes, as nanoGPT's files for GPT-2's 50,257 tokens.
    U16,
    /// Four bytes, for larger vocabularies.
    U32,
}

impl TokenWidth {
    /// Bytes of a token.
    const fn bytes(self) -> usize {
        match self {
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        }
    }
}

enum Store {
    Bytes(Vec<u8>),
    Words(Vec<u32>),
    File { path: PathBuf, file: File, width: TokenWidth },
}

impl Tokens {
    /// Tokens in memory.
    #[must_use]
    pub fn new(tokens: Vec<u32>) -> Self {
        Self { range: 0..tokens.len(), all: Arc::new(Store::Words(tokens)), vocabulary: None }
    }

    /// Tokens below 256 in memory, a byte each.
    pub(super) fn of_bytes(tokens: Vec<u8>) -> Self {
        Self { range: 0..tokens.len(), all: Arc::new(Store::Bytes(tokens)), vocabulary: None }
    }

    /// Opens a token file. Tokens are read from it on demand.
    ///
    /// ```no_run
    /// # use plimsoll::data::{Blocks, TokenWidth, Tokens};
    /// let tokens = Tokens::open("data/openwebtext/train.bin".as_ref(), TokenWidth::U16)?.vocabulary(50_257);
    /// let blocks = Blocks::new(tokens, 1024)?;
    /// # Ok::<(), plimsoll::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be opened, is empty, or its length is not a multiple of `width`.
    pub fn open(path: &Path, width: TokenWidth) -> Result<Self, DataError> {
        let failed = |source| DataError::Io { path: path.to_owned(), doing: "open", source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let path = path.to_owned();
        if metadata.is_dir() {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        let (bytes, each) = (metadata.len(), width.bytes());
        if bytes == 0 {
            return Err(TextError::Empty { path }.into());
        }
        if bytes % each as u64 != 0 {
            return Err(TextError::PartialToken { path, bytes, width: each }.into());
        }
        let len = usize::try_from(bytes / each as u64).unwrap_or(usize::MAX);
        Ok(Self { range: 0..len, all: Arc::new(Store::File { path, file, width }), vocabulary: None })
    }

    /// Makes reading a token that is not below `symbols` an error. This detects a file of another tokenizer or width before the
    /// model reads past its embedding.
    #[must_use]
    pub fn vocabulary(mut self, symbols: usize) -> Self {
        self.vocabulary = Some(symbols);
        self
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A part of these tokens, without a copy.
    ///
    /// # Errors
    /// If the range is not inside the sequence.
    pub fn range(&self, part: Range<usize>) -> Result<Self, DataError> {
        if part.start > part.end || part.end > self.len() {
            return Err(DataError::BadSubset { start: part.start, end: part.end, len: self.len() });
        }
        let range = self.range.start + part.start..self.range.start + part.end;
        Ok(Self { all: Arc::clone(&self.all), range, vocabulary: self.vocabulary })
    }

    /// Copies tokens into `out`, starting at position `start`.
    ///
    /// # Errors
    /// If there are too few tokens to fill `out`, the file cannot be read, or a token is outside the vocabulary.
    pub fn read(&self, start: usize, out: &mut [i64]) -> Result<(), DataError> {
        let end = start.checked_add(out.len()).filter(|&end| end <= self.len());
        let Some(end) = end else {
            return Err(DataError::OutOfRange { index: start.saturating_add(out.len()), len: self.len() });
        };
        let (start, end) = (self.range.start + start, self.range.start + end);
        match &*self.all {
            Store::Bytes(tokens) => fill(out, tokens[start..end].iter().map(|&token| i64::from(token))),
            Store::Words(tokens) => fill(out, tokens[start..end].iter().map(|&token| i64::from(token))),
            Store::File { path, file, width } => read_file(path, file, *width, start, out)?,
        }
        self.check(start, out)
    }

    fn check(&self, start: usize, tokens: &[i64]) -> Result<(), DataError> {
        let Some(symbols) = self.vocabulary else { return Ok(()) };
        match tokens.iter().position(|&token| token >= symbols as i64) {
            None => Ok(()),
            Some(at) => {
                let (token, at) = (tokens[at], (start + at) as u64);
                Err(TextError::NoToken { token, at, symbols }.into())
            }
        }
    }

    /// Host bytes of the tokens in memory; 0 for a file.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        match &*self.all {
            Store::Bytes(tokens) => tokens.len() as u64,
            Store::Words(tokens) => 4 * tokens.len() as u64,
            Store::File { .. } => 0,
        }
    }
}

fn fill(out: &mut [i64], tokens: impl Iterator<Item = i64>) {
    for (to, token) in out.iter_mut().zip(tokens) {
        *to = token;
    }
}

/// Note [Read at a position].
fn read_file(
    path: &Path,
    file: &File,
    width: TokenWidth,
    start: usize,
    out: &mut [i64],
) -> Result<(), DataError> {
    let mut buffer = [0; 4096];
    let each = width.bytes();
    let mut position = start as u64 * each as u64;
    for part in out.chunks_mut(buffer.len() / each) {
        let bytes = &mut buffer[..part.len() * each];
        file.read_exact_at(bytes, position).map_err(|source| DataError::Io {
            path: path.to_owned(),
            doing: "read",
            source,
        })?;
        position += bytes.len() as u64;
        match width {
            TokenWidth::U16 => {
                fill(part, bytes.chunks_exact(2).map(|two| i64::from(u16::from_le_bytes([two[0], two[1]]))));
            }
            TokenWidth::U32 => {
                let four = |four: &[u8]| i64::from(u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
                fill(part, bytes.chunks_exact(4).map(four));
            }
        }
    }
    Ok(())
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Bytes(tokens) => write!(f, "{} tokens in memory", tokens.len()),
            Store::Words(tokens) => write!(f, "{} tokens in memory", tokens.len()),
            Store::File { path, width, .. } => write!(f, "{} ({width:?})", path.display()),
        }
    }
}
