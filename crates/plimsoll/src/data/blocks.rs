//! Blocks of consecutive tokens and their successors: the training samples of a language model.
//!
//! Sample i is `x`, the tokens `[i * stride, i * stride + context)`, and `y`, the same shifted by one: the model predicts
//! each token's successor. With stride 1 there is a sample at each position, to be drawn at random
//! ([`RandomSampler::with_replacement`](super::RandomSampler::with_replacement)); with stride `context` the blocks do not
//! overlap, for one pass over all tokens.

use plimsoll_tensor::DType;

use super::dataset::check_index;
use super::error::TextError;
use super::{DataError, Dataset, Field, Sample, Tokens};

/// Blocks of `context` tokens; the fields are `x` and `y`, i64 of shape `[context]`.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{Blocks, DataLoader, Tokens};
/// let blocks = Blocks::new(Tokens::new((0..10).collect()), 3)?;
/// assert_eq!((blocks.positions(), blocks.clone().sequential().positions()), (7, 3));
/// let batch = DataLoader::new(Arc::new(blocks.sequential()), 3)?.epoch(0).next().transpose()?;
/// let batch = batch.unwrap();
/// assert_eq!(batch.array("x")?.as_slice(), Some(&[0i64, 1, 2, 3, 4, 5, 6, 7, 8][..]));
/// assert_eq!(batch.array("y")?.as_slice(), Some(&[1i64, 2, 3, 4, 5, 6, 7, 8, 9][..]));
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Blocks {
    tokens: Tokens,
    context: usize,
    stride: usize,
}

impl Blocks {
    /// The blocks at all positions.
    ///
    /// # Errors
    /// If there are `context` tokens or fewer, or `context` is 0.
    pub fn new(tokens: Tokens, context: usize) -> Result<Self, DataError> {
        if context == 0 {
            return Err(TextError::Context.into());
        }
        if tokens.len() <= context {
            return Err(TextError::TooShort { length: tokens.len(), context }.into());
        }
        Ok(Self { tokens, context, stride: 1 })
    }

    /// Consecutive blocks without overlap. Tokens that do not fill a block are left out.
    #[must_use]
    pub fn sequential(self) -> Self {
        Self { stride: self.context, ..self }
    }

    /// The number of samples. Like [`Dataset::len`], without the trait.
    #[must_use]
    pub fn positions(&self) -> usize {
        (self.tokens.len() - self.context - 1) / self.stride + 1
    }

    /// Tokens in a block.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }
}

impl Dataset for Blocks {
    fn len(&self) -> usize {
        self.positions()
    }

    fn fields(&self) -> Vec<Field> {
        let field = |name| Field { name, dtype: DType::I64, shape: vec![self.context] };
        vec![field("x"), field("y")]
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.positions())?;
        let start = index * self.stride;
        self.tokens.read(start, out.slot("x")?)?;
        self.tokens.read(start + 1, out.slot("y")?)
    }

    fn resident_bytes(&self) -> u64 {
        self.tokens.resident_bytes()
    }
}
