//! The norm of all gradients, with the same bits for any kind of sharding.
//!
//! The squares of each row are added in 64 bits. A row is never split between ranks, so its sum does not depend on the rank that
//! has it. Then the sums of all rows are added, in the order of the parameters.

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{DType, Error, ProcessGroup, ReduceOp, Result, Tensor, into_out, no_grad};

const NAME: &str = "clip_grad_norm_";

/// Elements that are squared at a time, which bounds the temporary memory.
const CHUNK: usize = 1 << 20;

/// The rows of all gradients; this rank has some of them.
pub(super) struct RowSums {
    /// The number of rows of all parameters so far.
    rows: usize,
    /// This rank's gradients: the number of their first row, the length of a row, the gradient.
    own: Vec<(usize, usize, Tensor)>,
    /// The most elements and rows of a full parameter that are squared at a time.
    most_elements: usize,
    most_rows: usize,
}

/// The length of a row of a parameter. A row consists of the elements with the same first index.
pub(super) fn row_len(shape: &[usize]) -> usize {
    shape.get(1..).unwrap_or_default().iter().product()
}

impl RowSums {
    pub(super) fn new() -> RowSums {
        RowSums { rows: 0, own: Vec::new(), most_elements: 0, most_rows: 0 }
    }

    /// Adds a parameter of this full shape, and this rank's rows of its gradient, which begin with row `first`.
    pub(super) fn add(&mut self, full_shape: &[usize], first: usize, grad: Option<Tensor>) {
        let (len, rows) = (row_len(full_shape), full_shape.first().copied().unwrap_or(1));
        let at_once = rows.min(rows_of_chunk(len)).max(2); // a single row is added as two
        self.most_rows = self.most_rows.max(at_once);
        self.most_elements = self.most_elements.max(at_once * len);
        self.own.extend(grad.map(|grad| (self.rows + first, len, grad)));
        self.rows += rows;
    }

    /// Scales the gradients so that the norm of all is at most `max_norm`. With a group, the other ranks have the other rows.
    /// Returns the norm before scaling; `None` if there are no gradients.
    pub(super) fn clip(&self, group: Option<&ProcessGroup>, max_norm: f64) -> Result<Option<Tensor>> {
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(Error::argument(NAME, format!("max_norm is {max_norm}; it must be 0 or more")));
        }
        let Some((.., first)) = self.own.first() else { return Ok(None) };
        let _owner = Span::of(Category::Workspace, intern(NAME));
        no_grad(|| {
            let sums = Tensor::full(&[self.rows], 0.0, DType::F64, first.device())?;
            // As large as the full parameters need it, so that all ranks request the same memory.
            let empty = |len: usize| Tensor::empty(&[len], DType::F64, first.device());
            let work = Work {
                wide: empty(self.most_elements)?,
                squares: empty(self.most_elements)?,
                found: empty(self.most_rows)?,
            };
            for (at, len, grad) in &self.own {
                square_sums(&sums, *at, *len, grad, &work)?;
            }
            drop(work);
            if let Some(group) = group {
                group.all_reduce(&sums, ReduceOp::Sum)?; // only zeros are added, so this is exact
            }
            let norm = sums.sum()?.sqrt()?;
            let factor = norm.add_scalar(1e-6)?.reciprocal()?.mul_scalar(max_norm)?.clamp_max(1.0)?;
            for (.., grad) in self.own.iter().filter(|(.., grad)| grad.numel() > 0) {
                grad.mul_(&factor.to_dtype(grad.dtype())?)?;
            }
            norm.to_dtype(DType::F32).map(Some)
        })
    }
}

/// Memory for the elements of a chunk, their squares, and the sums of its rows.
struct Work {
    wide: Tensor,
    squares: Tensor,
    found: Tensor,
}

/// The number of rows that are squared at a time.
fn rows_of_chunk(row_len: usize) -> usize {
    (CHUNK / row_len.max(1)).max(1)
}

/// Writes the sums of squares of the rows of a gradient to `sums`, from `at` on.
fn square_sums(sums: &Tensor, at: usize, row_len: usize, grad: &Tensor, work: &Work) -> Result<()> {
    if grad.numel() == 0 {
        return Ok(());
    }
    let rows = grad.numel() / row_len;
    let grad = grad.reshape(&[rows, row_len])?;
    let chunk = rows_of_chunk(row_len);
    for start in (0..rows).step_by(chunk) {
        let count = chunk.min(rows - start);
        let part = grad.narrow(0, start, count)?;
        // A single row is summed as two equal rows, because the sum of all elements uses a different order than the
        // sums of several rows.
        let several = if count == 1 { part.expand(&[2, row_len])? } else { part };
        let part_of = |memory: &Tensor| memory.narrow(0, 0, several.numel())?.view(several.shape());
        let (wide, squares) = (part_of(&work.wide)?, part_of(&work.squares)?);
        let found = work.found.narrow(0, 0, several.shape()[0])?;
        into_out(&wide, || several.to_dtype(DType::F64))?;
        into_out(&squares, || wide.square())?;
        into_out(&found, || squares.sum_dims(&[1]))?;
        sums.narrow(0, at + start, count)?.copy_(&found.narrow(0, 0, count)?)?;
    }
    Ok(())
}
