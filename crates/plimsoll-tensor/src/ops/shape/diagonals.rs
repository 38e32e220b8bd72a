//! Diagonals: extracting, creating, filling and summing them; and the indices of triangles.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::dim_index;
use crate::tensor::Tensor;

impl Tensor {
    /// From a vector, the matrix with the vector on a diagonal; from a matrix, a copy of that diagonal. Like `torch.diag`.
    ///
    /// # Errors
    /// If the tensor is neither a vector nor a matrix, or memory runs out.
    #[track_caller]
    pub fn diag(&self, diagonal: isize) -> Result<Tensor> {
        match self.rank() {
            1 => self.diag_embed(diagonal),
            2 => self.diagonal(diagonal, 0, 1)?.copy(),
            _ => Err(Error::shape("diag", format!("{:?}: needs a vector or a matrix", self.shape()))),
        }
    }

    /// Matrices `[…, n, n]` with the rows of the last dimension on a diagonal, zeros elsewhere. Like `torch.diag_embed(offset)`.
    ///
    /// # Errors
    /// If the tensor has no dimensions, or memory runs out.
    #[track_caller]
    pub fn diag_embed(&self, offset: isize) -> Result<Tensor> {
        let last = dim_index("diag_embed", -1, self.rank())?;
        let (len, away) = (self.shape()[last], offset.unsigned_abs());
        let side = len + away;
        // The matrix as one row: `len` runs of `side + 1` elements, each with one element of the diagonal.
        let first = if offset >= 0 { away } else { away * side };
        let spread = self.unsqueeze(-1)?.pad(&[0, side as isize], crate::ops::PadMode::Constant(0.0))?;
        let mut lead = self.shape()[..last].to_vec();
        lead.push(len * (side + 1));
        let flat = spread.reshape(lead.as_slice())?;
        // The last run reaches beyond the matrix, so the row is cut, and padded at the front and at the end.
        let (front, have) = (first as isize, (len * (side + 1)) as isize);
        let flat =
            flat.pad(&[front, (side * side) as isize - front - have], crate::ops::PadMode::Constant(0.0))?;
        lead.pop();
        lead.extend([side, side]);
        flat.reshape(lead.as_slice())
    }

    /// The sum of a matrix's diagonal. Like `torch.trace`.
    ///
    /// # Errors
    /// If the tensor is not a matrix, or memory runs out.
    #[track_caller]
    pub fn trace(&self) -> Result<Tensor> {
        if self.rank() != 2 {
            return Err(Error::shape("trace", format!("{:?}: needs a matrix", self.shape())));
        }
        self.diagonal(0, 0, 1)?.sum()
    }

    /// Writes a value on a matrix's diagonal. Like `Tensor.fill_diagonal_`.
    ///
    /// # Errors
    /// If the tensor is not a matrix; also the errors of [`Tensor::add_`].
    #[track_caller]
    pub fn fill_diagonal_(&self, value: f64) -> Result<()> {
        if self.rank() != 2 {
            return Err(Error::shape("fill_diagonal_", format!("{:?}: needs a matrix", self.shape())));
        }
        self.diagonal(0, 0, 1)?.fill_(value)
    }

    /// The rows and columns (`int64`, `[2, n]`) of the elements at and below a diagonal, row by row. Like `torch.tril_indices`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn tril_indices(rows: usize, columns: usize, offset: isize, device: &Device) -> Result<Tensor> {
        triangle(rows, columns, device, |row, column| column - row <= offset)
    }

    /// The rows and columns (`int64`, `[2, n]`) of the elements at and above a diagonal, row by row. Like `torch.triu_indices`.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn triu_indices(rows: usize, columns: usize, offset: isize, device: &Device) -> Result<Tensor> {
        triangle(rows, columns, device, |row, column| column - row >= offset)
    }
}

#[track_caller]
fn triangle(
    rows: usize,
    columns: usize,
    device: &Device,
    belongs: impl Fn(isize, isize) -> bool,
) -> Result<Tensor> {
    let all = (0..rows as i64).flat_map(|row| (0..columns as i64).map(move |column| (row, column)));
    let (mut places, at): (Vec<i64>, Vec<i64>) =
        all.filter(|&(row, column)| belongs(row as isize, column as isize)).unzip();
    let count = places.len();
    places.extend(at);
    Tensor::from_slice(&places, &[2, count], device)
}
