//! The sizes of a product, and the strides of its matrices.

/// Sizes of `batch` products `[m, k] x [k, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatmulShape {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

/// Elements between neighbouring batches, rows and columns; 0 repeats (inputs only).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixStrides {
    pub batch: usize,
    pub row: usize,
    pub col: usize,
}

impl MatrixStrides {
    /// Row-major matrices of `rows x cols`, one after the other.
    pub fn row_major(rows: usize, cols: usize) -> Self {
        Self { batch: rows * cols, row: cols, col: 1 }
    }

    /// The strides of the transposed matrix.
    pub fn transposed(self) -> Self {
        Self { batch: self.batch, row: self.col, col: self.row }
    }

    pub(super) fn span(self, batch: usize, rows: usize, cols: usize) -> usize {
        if batch * rows * cols == 0 {
            return 0;
        }
        1 + (batch - 1) * self.batch + (rows - 1) * self.row + (cols - 1) * self.col
    }
}
