//! The norm of all gradients, bit-identical for any kind of sharding.
//!
//! The squares of each row are summed in 64 bits. Sharding never splits a row between ranks, so the sum does not depend
//! on which rank has the row. Then the sums of all rows are added in the order of the parameters. Tensor-parallel ranks
//! may each have a part of a row: their sums are added first. Parameters that each of them has in full count once.

use std::sync::{Mutex, PoisonError};

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{
    DType, Device, Error, ProcessGroup, ReduceOp, Result, Tensor, into_out, no_grad, with_stream,
};

use crate::nn::{Part, part_of};

const NAME: &str = "clip_grad_norm_";

/// The number of elements to square at a time, which bounds the temporary memory.
const CHUNK: usize = 1 << 20;

/// The rows of all gradients; this rank has some of them.
pub(super) struct RowSums {
    /// The number of rows of all parameters so far.
    rows: usize,
    /// This rank's gradients.
    own: Vec<Own>,
    /// The most elements and rows of a full parameter that are squared at a time.
    most_elements: usize,
    most_rows: usize,
}

/// Rows of a gradient.
struct Own {
    /// The number of the first row.
    first: usize,
    row_len: usize,
    grad: Tensor,
    /// Whether to count the sums of their squares. If not, another rank has the same rows.
    counts: bool,
}

/// Where the sums of all rows are added up.
pub(super) enum Place<'a> {
    /// On this rank alone, which has all rows.
    Here,
    /// On the ranks of a group, whose other ranks have other rows or parts.
    Group(&'a ProcessGroup),
    /// Like `Group`, but the ranks add up their sums in shared memory.
    Shared(&'a SharedSums),
}

/// Memory for the sums of all rows that the ranks of a group share, so that copy engines can move it.
pub(super) struct SharedSums {
    group: ProcessGroup,
    /// Allocated by the first use.
    memory: Mutex<Option<Tensor>>,
}

impl SharedSums {
    pub(super) fn new(group: &ProcessGroup) -> SharedSums {
        SharedSums { group: group.clone(), memory: Mutex::default() }
    }

    /// Memory for this many rows, or a few more. It has the values of the last use.
    fn memory(&self, rows: usize, device: &Device) -> Result<Tensor> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        match &*memory {
            Some(memory) => Ok(memory.clone()),
            None => {
                let len = rows.next_multiple_of(self.group.size());
                Ok(memory.insert(self.group.empty_shared(&[len], DType::F64, device)?).clone())
            }
        }
    }
}

impl Place<'_> {
    fn zeros(&self, rows: usize, device: &Device) -> Result<Tensor> {
        let Place::Shared(shared) = self else { return Tensor::full(&[rows], 0.0, DType::F64, device) };
        let sums = shared.memory(rows, device)?;
        sums.zero_()?;
        Ok(sums)
    }

    /// Adds the sums of the other ranks. Only zeros are added to a complete row, so this is exact.
    fn add_others(&self, sums: &Tensor) -> Result<()> {
        match self {
            Place::Here => Ok(()),
            Place::Group(group) => group.all_reduce(sums, ReduceOp::Sum),
            Place::Shared(SharedSums { group, .. }) => {
                let (current, side) = (sums.device().current_stream(), group.stream(sums.device()));
                side.wait_stream(&current)?;
                with_stream(&side, || group.all_reduce(sums, ReduceOp::Sum))?;
                current.wait_stream(&side)
            }
        }
    }
}

/// Scales the gradients of these parameters like [`RowSums::clip`]. Each parameter is one that this rank has in full,
/// or one that tensor-parallel ranks share.
pub(super) fn clip<'a>(
    parameters: impl Iterator<Item = &'a Tensor>,
    max_norm: f64,
) -> Result<Option<Tensor>> {
    let parameters: Vec<(&Tensor, Option<Part>)> = parameters.map(|it| (it, part_of(it))).collect();
    let group = parameters.iter().find_map(|(_, part)| part.as_ref().map(Part::group));
    let counts = group.is_none_or(|group| group.rank() == 0);
    let mut rows = RowSums::new();
    for (parameter, part) in &parameters {
        match part {
            None => rows.add_if(counts, parameter.shape(), 0, parameter.grad()),
            Some(part) => rows.add_part(part, parameter.grad().as_ref())?,
        }
    }
    rows.clip(&group.map_or(Place::Here, Place::Group), max_norm)
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
        self.add_if(true, full_shape, first, grad);
    }

    /// Like [`RowSums::add`]. If `counts` is false, another rank has the same gradient.
    fn add_if(&mut self, counts: bool, full_shape: &[usize], first: usize, grad: Option<Tensor>) {
        let (row_len, rows) = (row_len(full_shape), full_shape.first().copied().unwrap_or(1));
        self.want_memory(rows, row_len);
        self.own.extend(grad.map(|grad| Own { first: self.rows + first, row_len, grad, counts }));
        self.rows += rows;
    }

    /// Adds a parameter of which this rank has a part, and the gradient of this part.
    fn add_part(&mut self, part: &Part, grad: Option<&Tensor>) -> Result<()> {
        let (row_len, mut start) = (row_len(&part.shape()), 0);
        for range in part.rows() {
            self.want_memory(range.len(), row_len);
            if let Some(grad) = grad {
                let grad = no_grad(|| grad.narrow(0, start, range.len()))?;
                self.own.push(Own { first: self.rows + range.start, row_len, grad, counts: true });
            }
            start += range.len();
        }
        self.rows += part.whole_shape().first().copied().unwrap_or(1);
        Ok(())
    }

    /// Plans the memory for squaring these rows.
    fn want_memory(&mut self, rows: usize, row_len: usize) {
        let at_once = rows.min(rows_of_chunk(row_len)).max(2); // a single row is summed as two rows
        self.most_rows = self.most_rows.max(at_once);
        self.most_elements = self.most_elements.max(at_once * row_len);
    }

    /// Scales the gradients so that the norm of all is at most `max_norm`. Returns the norm before scaling; `None` if
    /// there are no gradients.
    pub(super) fn clip(&self, place: &Place<'_>, max_norm: f64) -> Result<Option<Tensor>> {
        if max_norm.is_nan() || max_norm < 0.0 {
            return Err(Error::argument(NAME, format!("max_norm is {max_norm}; it must be 0 or more")));
        }
        let Some(Own { grad: first, .. }) = self.own.first() else { return Ok(None) };
        let _owner = Span::of(Category::Workspace, intern(NAME));
        no_grad(|| {
            let sums = place.zeros(self.rows, first.device())?;
            // Sized for the full parameters, so that all ranks request the same memory.
            let empty = |len: usize| Tensor::empty(&[len], DType::F64, first.device());
            let work = Work {
                wide: empty(self.most_elements)?,
                squares: empty(self.most_elements)?,
                found: empty(self.most_rows)?,
            };
            for Own { first, row_len, grad, counts } in &self.own {
                square_sums(&sums, *first, *row_len, grad, &work)?;
                if !counts {
                    // Only now, because all ranks request the same memory.
                    let rows = grad.numel().checked_div(*row_len).unwrap_or(0); // rows may be empty
                    sums.narrow(0, *first, rows)?.zero_()?;
                }
            }
            drop(work);
            place.add_others(&sums)?;
            let norm = sums.narrow(0, 0, self.rows)?.sum()?.sqrt()?;
            let factor = norm.add_scalar(1e-6)?.reciprocal()?.mul_scalar(max_norm)?.clamp_max(1.0)?;
            for Own { grad, .. } in self.own.iter().filter(|own| own.grad.numel() > 0) {
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

/// Writes the sums of squares of the rows of a gradient to `sums`, from `at` onward.
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
