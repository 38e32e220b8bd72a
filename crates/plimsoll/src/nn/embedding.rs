//! A table of rows, looked up by number.

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Result, Tensor};

use super::{Init, Module, Parameter, Scope};
use crate::members;

/// Rows of a table by their numbers: indices `int64 […]` give `[…, size]`. As `torch.nn.Embedding`.
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
    /// A path that is taken ([`Scope::parameter`]); out of memory.
    pub fn new(scope: &Scope, count: usize, size: usize) -> Result<Embedding> {
        Embedding::with_init(scope, count, size, Init::Normal(1.0))
    }

    /// The same with other start values.
    ///
    /// # Errors
    /// As [`Embedding::new`].
    pub fn with_init(scope: &Scope, count: usize, size: usize, init: Init) -> Result<Embedding> {
        let weight = scope.parameter("weight", &[count, size], init)?;
        Ok(Embedding { label: scope.label(), weight, padding_idx: None })
    }

    /// The same layer with a row that gets no gradient; counted from the end where negative.
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

    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        input.embedding(&self.weight, self.padding_idx)
    }
}
