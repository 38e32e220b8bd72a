//! The gradients of a batch, computed in parts: [`backward_in_parts`].

use plimsoll_tensor::{Error, Result, Tensor};

/// Adds up the gradients of a batch, which is divided into `parts` of about equal size, so that only one part has activations
/// at a time. Returns the loss of the batch, detached.
///
/// `batch` has tensors with a row for each sample; `loss` gets the same rows of all, and computes a mean over them. Each part
/// is weighted by its size, so gradients and loss are those of the whole batch up to rounding. Layers that look at the
/// whole batch, such as batch normalization, see a part. A batch of fewer rows than `parts` has a part for each row.
///
/// ```
/// use plimsoll::{Device, Tensor, backward_in_parts};
/// let device = Device::cpu();
/// let w = Tensor::ones(&[3, 1], &device)?.requires_grad_(true)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], &device)?;
/// let loss = backward_in_parts(&[x], 2, |part| part[0].matmul(&w)?.mean())?;
/// assert_eq!(loss.item::<f32>()?, 10.5);
/// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [2.5, 3.5, 4.5]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// An empty batch; tensors of different numbers of rows; the errors of `loss` and of its backward pass.
pub fn backward_in_parts(
    batch: &[Tensor],
    parts: usize,
    mut loss: impl FnMut(&[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    if parts <= 1 {
        let loss = loss(batch)?;
        loss.backward()?;
        return Ok(loss.detach());
    }
    let rows = rows_of(batch)?;
    let parts = parts.min(rows);
    let mut sum: Option<Tensor> = None;
    for part in 0..parts {
        let start = rows * part / parts;
        let size = rows * (part + 1) / parts - start;
        let part = batch.iter().map(|tensor| tensor.narrow(0, start, size));
        let part = part.collect::<Result<Vec<_>>>()?;
        let loss = loss(&part)?.mul_scalar(size as f64 / rows as f64)?;
        loss.backward()?;
        let own = loss.detach();
        sum = Some(match sum {
            None => own,
            Some(sum) => sum.add(&own)?,
        });
    }
    sum.ok_or_else(|| refused("the batch has no rows"))
}

/// The number of samples of a batch.
///
/// # Errors
/// A batch without tensors; a tensor without dimensions; tensors of different numbers of rows.
fn rows_of(batch: &[Tensor]) -> Result<usize> {
    let mut rows = batch.iter().map(|tensor| tensor.shape().first().copied());
    let Some(Some(first)) = rows.next() else {
        return Err(refused("the batch has no tensor with a row for each sample"));
    };
    match rows.find(|rows| *rows != Some(first)) {
        None => Ok(first),
        Some(other) => {
            let other = other.map_or_else(|| "is a scalar".to_owned(), |rows| format!("has {rows} rows"));
            Err(refused(format!("a tensor of the batch {other}; the first has {first} rows")))
        }
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::Argument { op: "backward_in_parts", message: message.into() }
}
