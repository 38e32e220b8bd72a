//! Selects elements by position or by value, composed of other operations: `take`, `isin`, `masked_scatter`, `embedding_bag`.

use crate::caller::Entry;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout;
use crate::ops::want_values;
use crate::tensor::Tensor;

/// How [`Tensor::embedding_bag`] reduces the rows of a bag. Like PyTorch's `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// Their mean; zeros for an empty bag.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// The maximum of each column; zeros for an empty bag.
    Max,
}

impl Tensor {
    /// The elements at these positions of the flattened tensor; negative ones count from the end. Like `torch.take`.
    ///
    /// # Errors
    /// If positions are out of range, an index is not an integer tensor, or memory runs out.
    #[track_caller]
    pub fn take(&self, index: impl AsRef<Tensor>) -> Result<Tensor> {
        let _entry = Entry::here();
        let index = index.as_ref();
        self.reshape(&[-1])?.index(&[Some(index)])
    }

    /// Whether each element occurs in `values`: a `bool` tensor. Like `torch.isin`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn isin(&self, values: impl AsRef<Tensor>) -> Result<Tensor> {
        let _entry = Entry::here();
        let values = values.as_ref();
        let none = Tensor::full(self.shape(), 0.0, DType::Bool, self.device())?;
        if values.numel() == 0 || self.numel() == 0 {
            return Ok(none);
        }
        let (sorted, _) = values.detach().reshape(&[-1])?.sort(0, false)?;
        let last = sorted.numel() as f64 - 1.0;
        let place = sorted.searchsorted(self.detach(), false)?.clamp(0.0, last)?;
        sorted.take(&place)?.eq(self.detach())
    }

    /// Returns a copy with the elements of `source`, in order, where the mask is set; the mask is broadcast. Like
    /// `Tensor.masked_scatter`.
    ///
    /// # Errors
    /// If the mask is not `bool`, there are fewer elements than set positions, the dtypes differ, or memory runs out.
    #[track_caller]
    pub fn masked_scatter(&self, mask: impl AsRef<Tensor>, source: impl AsRef<Tensor>) -> Result<Tensor> {
        let (mask, source) = (mask.as_ref(), source.as_ref());
        const NAME: &str = "masked_scatter";
        crate::ops::want_dtype(NAME, mask.dtype(), DType::Bool)?;
        crate::ops::want_dtype(NAME, source.dtype(), self.dtype())?;
        let shape = layout::broadcast(NAME, self.shape(), mask.shape())?;
        let (x, mask) = (self.expand(&shape)?, mask.expand(&shape)?);
        if x.numel() == 0 {
            return x.copy();
        }
        if self.device().has_values() {
            let count = mask.count_nonzero()?.item::<i64>()? as usize;
            if count > source.numel() {
                let message =
                    format!("a source of {} elements for {count} places of the mask", source.numel());
                return Err(Error::shape(NAME, message));
            }
        }
        if source.numel() == 0 {
            return x.copy();
        }
        let last = source.numel() as f64 - 1.0;
        let number = mask.reshape(&[-1])?.cumsum(0)?.sub_scalar(1)?.clamp(0.0, last)?;
        let spread = source.reshape(&[-1])?.index_select(0, &number)?;
        mask.where_cond(&spread.reshape(shape.as_slice())?, &x)
    }

    /// Sums, averages or takes the maximum of rows of the table `weight` in bags: `[bags, width]`. These indices are a matrix
    /// with a bag in each row, or a vector in which each bag begins at one of `offsets`. `per_sample_weights` are factors of
    /// the rows in a sum. Like `torch.nn.functional.embedding_bag`.
    ///
    /// # Errors
    /// If a vector has no offsets, or a matrix has them; if offsets do not start at 0, or decrease; if there are
    /// weights in a mode other than the sum. Also errors of [`Tensor::embedding`].
    #[track_caller]
    pub fn embedding_bag<'a>(
        &self,
        weight: impl AsRef<Tensor>,
        offsets: impl Into<Option<&'a Tensor>>,
        mode: BagMode,
        per_sample_weights: impl Into<Option<&'a Tensor>>,
    ) -> Result<Tensor> {
        let _entry = Entry::here();
        let (weight, offsets, per_sample_weights) =
            (weight.as_ref(), offsets.into(), per_sample_weights.into());
        const NAME: &str = "embedding_bag";
        if per_sample_weights.is_some() && mode != BagMode::Sum {
            return Err(Error::argument(NAME, "weights for each index need the mode `Sum`"));
        }
        let rows = self.embedding(weight, None)?;
        let rows = match per_sample_weights {
            Some(weights) => rows.mul(&weights.unsqueeze(-1)?)?,
            None => rows,
        };
        match (self.rank(), offsets) {
            (2, None) if self.shape()[1] == 0 => {
                Tensor::full(&[self.shape()[0], weight.shape()[1]], 0.0, weight.dtype(), weight.device())
            }
            (2, None) => match mode {
                BagMode::Mean => rows.mean_dims(&[1]),
                BagMode::Sum => rows.sum_dims(&[1]),
                BagMode::Max => Ok(rows.max_dim(1)?.0),
            },
            (1, Some(offsets)) => {
                want_values(NAME, "the offsets", self.device())?;
                bags(&rows, &offsets.to_dtype(DType::I64)?.to_vec::<i64>()?, mode)
            }
            _ => {
                let message = format!("indices {:?}: needs a matrix, or a vector with offsets", self.shape());
                Err(Error::shape(NAME, message))
            }
        }
    }
}

/// Reduces rows in bags; each bag begins at an offset.
#[track_caller]
fn bags(rows: &Tensor, offsets: &[i64], mode: BagMode) -> Result<Tensor> {
    const NAME: &str = "embedding_bag";
    let (count, width) = (rows.shape()[0], rows.shape()[1]);
    let rises = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
    if offsets.first().is_some_and(|&first| first != 0)
        || !rises
        || offsets.last().is_some_and(|&last| last > count as i64)
    {
        let message = format!("offsets {offsets:?} must begin with 0, rise and end within {count} indices");
        return Err(Error::argument(NAME, message));
    }
    let ends = offsets[1.min(offsets.len())..].iter().copied().chain([count as i64]);
    let lengths: Vec<i64> = offsets.iter().zip(ends).map(|(&start, end)| end - start).collect();
    if mode == BagMode::Max {
        let bag = |(&start, &len): (&i64, &i64)| match len {
            0 => Tensor::full(&[width], 0.0, rows.dtype(), rows.device()),
            _ => Ok(rows.narrow(0, start as usize, len as usize)?.max_dim(0)?.0),
        };
        let bags: Vec<Tensor> = offsets.iter().zip(&lengths).map(bag).collect::<Result<_>>()?;
        return Tensor::stack(&bags.iter().collect::<Vec<_>>(), 0);
    }
    let number: Vec<i64> = lengths
        .iter()
        .enumerate()
        .flat_map(|(bag, &len)| std::iter::repeat_n(bag as i64, len as usize))
        .collect();
    let number = Tensor::from_slice(&number, &[number.len()], rows.device())?;
    let sums = Tensor::full(&[offsets.len(), width], 0.0, rows.dtype(), rows.device())?;
    let sums = sums.index_add(0, &number, rows)?;
    if mode == BagMode::Sum {
        return Ok(sums);
    }
    let lengths: Vec<f32> = lengths.iter().map(|&len| len.max(1) as f32).collect();
    let lengths = Tensor::from_slice(&lengths, &[lengths.len(), 1], rows.device())?;
    sums.div(&lengths.to_dtype(rows.dtype())?)
}
