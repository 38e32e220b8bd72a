//! Variants of `cat` and `stack`: horizontal, vertical and depthwise stacking, and padding sequences of unequal lengths into
//! one batch.

use crate::caller::Entry;
use crate::error::{Error, Result};
use crate::ops::borrowed;
use crate::tensor::Tensor;

/// Gives all tensors at least `rank` dimensions: `widen` is applied to tensors with fewer.
#[track_caller]
fn at_least(
    tensors: &[&Tensor],
    rank: usize,
    widen: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    tensors.iter().map(|x| if x.rank() < rank { widen(x) } else { Ok((*x).clone()) }).collect()
}

#[track_caller]
fn want_tensors(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    match tensors.is_empty() {
        true => Err(Error::argument(op, "no tensors: needs at least one")),
        false => Ok(()),
    }
}

#[track_caller]
fn cat(tensors: &[Tensor], dim: isize) -> Result<Tensor> {
    Tensor::cat(&tensors.iter().collect::<Vec<_>>(), dim)
}

impl Tensor {
    /// Stacks tensors horizontally: concatenates along dimension 1, or along dimension 0 for vectors. Like `torch.hstack`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cat`].
    #[track_caller]
    pub fn hstack(tensors: &[impl AsRef<Tensor>]) -> Result<Tensor> {
        let tensors = &borrowed(tensors)[..];
        want_tensors("hstack", tensors)?;
        let wide = at_least(tensors, 1, |x| x.unsqueeze(0))?;
        cat(&wide, if wide[0].rank() == 1 { 0 } else { 1 })
    }

    /// Stacks tensors vertically: vectors become rows, and all are concatenated along dimension 0. Like `torch.vstack`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cat`].
    #[track_caller]
    pub fn vstack(tensors: &[impl AsRef<Tensor>]) -> Result<Tensor> {
        let tensors = &borrowed(tensors)[..];
        want_tensors("vstack", tensors)?;
        cat(&at_least(tensors, 2, |x| x.reshape(&[1, -1]))?, 0)
    }

    /// Stacks tensors depthwise: concatenates along dimension 2. Like `torch.dstack`.
    ///
    /// # Errors
    /// The same errors as [`Tensor::cat`].
    #[track_caller]
    pub fn dstack(tensors: &[impl AsRef<Tensor>]) -> Result<Tensor> {
        let tensors = &borrowed(tensors)[..];
        want_tensors("dstack", tensors)?;
        let wide = at_least(tensors, 3, |x| match x.rank() {
            2 => x.unsqueeze(2),
            _ => x.reshape(&[1, -1, 1]),
        })?;
        cat(&wide, 2)
    }

    /// Pads sequences `[length, …]` of unequal lengths with `padding` into one batch: `[batch, longest, …]`, or `[longest,
    /// batch, …]` unless `batch_first`. Like `torch.nn.utils.rnn.pad_sequence`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let (long, short) = (Tensor::arange(3, &device)?, Tensor::arange(1, &device)?);
    /// let batch = Tensor::pad_sequence(&[&long, &short], true, -1.0)?;
    /// assert_eq!(batch.to_vec::<i64>()?, [0, 1, 2, 0, -1, -1]);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are no sequences, the sequences differ in other dimensions or in dtype, or memory runs out.
    #[track_caller]
    pub fn pad_sequence(sequences: &[impl AsRef<Tensor>], batch_first: bool, padding: f64) -> Result<Tensor> {
        let _entry = Entry::here();
        let sequences = &borrowed(sequences)[..];
        want_tensors("pad_sequence", sequences)?;
        if let Some(scalar) = sequences.iter().position(|x| x.rank() == 0) {
            let message = format!("sequence {scalar} has no dimensions: needs [length, …]");
            return Err(Error::shape("pad_sequence", message));
        }
        let longest = sequences.iter().map(|x| x.shape()[0]).max().unwrap_or(0);
        let filled = |x: &&Tensor| -> Result<Tensor> {
            let missing = longest - x.shape()[0];
            if missing == 0 {
                return Ok((*x).clone());
            }
            let mut shape = x.shape().to_vec();
            shape[0] = missing;
            Tensor::cat(&[*x, &Tensor::full(&shape, padding, x.dtype(), x.device())?], 0)
        };
        let rows: Vec<Tensor> = sequences.iter().map(filled).collect::<Result<_>>()?;
        Tensor::stack(&rows.iter().collect::<Vec<_>>(), if batch_first { 0 } else { 1 })
    }
}
