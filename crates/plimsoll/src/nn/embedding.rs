//! Embeddings: tables whose rows are looked up by index.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{BagMode, Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Looks up rows of a table: indices `int64 […]` give `[…, size]`. Like `torch.nn.Embedding`.
///
/// ```
/// use plimsoll::nn::{Embedding, Module, Scope};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let embedding = Embedding::new(&Scope::new(&device, 1), 100, 8)?;
/// let rows = embedding.forward(&Tensor::from_slice(&[3i64, 99], &[2], &device)?)?;
/// assert_eq!(rows.shape(), [2, 8]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    label: LabelId,
    weight: Parameter,
    padding_idx: Option<isize>,
}

impl Embedding {
    /// `count` rows of `size` numbers, drawn from the standard normal distribution as PyTorch's are.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, count: usize, size: usize) -> Result<Embedding> {
        Embedding::with_init(scope, count, size, Init::Normal(1.0))
    }

    /// The same layer with other initial values.
    ///
    /// # Errors
    /// The same errors as [`Embedding::new`].
    pub fn with_init(scope: &Scope, count: usize, size: usize, init: Init) -> Result<Embedding> {
        let weight = scope.parameter("weight", &[count, size], init)?;
        Ok(Embedding { label: scope.label(), weight, padding_idx: None })
    }

    /// Returns the layer with a row that gets no gradient; a negative `row` counts from the end.
    pub fn padding_idx(mut self, row: isize) -> Embedding {
        self.padding_idx = Some(row);
        self
    }

    /// The table, `[count, size]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }
}

impl Module for Embedding {
    members!(weight);

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.embedding(&self.weight, self.padding_idx)
    }
}

/// Reduces bags of rows of a table to their mean, sum or maximum. Like `torch.nn.EmbeddingBag`.
///
/// ```
/// use plimsoll::nn::{EmbeddingBag, Scope};
/// use plimsoll::{BagMode, Device, Tensor};
/// let device = Device::cpu();
/// let bag = EmbeddingBag::new(&Scope::new(&device, 1), 10, 3, BagMode::Mean)?;
/// let words = Tensor::from_slice(&[1i64, 2, 4, 5], &[4], &device)?;
/// let starts = Tensor::from_slice(&[0i64, 3], &[2], &device)?;
/// assert_eq!(bag.forward(&words, &starts, None)?.shape(), [2, 3]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EmbeddingBag {
    label: LabelId,
    weight: Parameter,
    mode: BagMode,
}

impl EmbeddingBag {
    /// `count` rows of `size` numbers, drawn from the standard normal distribution as PyTorch's are.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, count: usize, size: usize, mode: BagMode) -> Result<EmbeddingBag> {
        let weight = scope.parameter("weight", &[count, size], Init::Normal(1.0))?;
        Ok(EmbeddingBag { label: scope.label(), weight, mode })
    }

    /// Returns one row for each bag. A bag is a row of a matrix of indices, or the part of a vector of indices between two
    /// `offsets`. Like `torch.nn.EmbeddingBag.forward`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::embedding_bag`].
    #[track_caller]
    pub fn forward<'a>(
        &self,
        indices: &Tensor,
        offsets: impl Into<Option<&'a Tensor>>,
        per_sample_weights: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        indices.embedding_bag(&self.weight, offsets, self.mode, per_sample_weights)
    }
}

impl Module for EmbeddingBag {
    members!(weight);

    /// Each row of indices is a bag.
    #[track_caller]
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        self.forward(indices, None, None)
    }
}
