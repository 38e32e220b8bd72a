//! Batched products of strided matrices with `gemm.rs`, and large `float32` products with `packed_matmul.rs`.
//!
//! `gemm` runs single-threaded on blocks of the output whose division depends only on the shape, so that the sum for each
//! element does not depend on the number of threads. Transposed views cost nothing: they are only strides.

use std::any::TypeId;

use super::gemm::gemm;
use super::matrix::{MatmulShape, MatrixStrides};
use super::packed_matmul;
use crate::number::{Float, Number};
use crate::parallel::{Cut, for_each_chunk, for_each_piece};
use crate::simd::vectorize;

/// `c = a * b`, plus `bias[n]` on every row when given. `c` is overwritten; its strides must not overlap.
pub fn matmul<T: Float>(
    shape: &MatmulShape,
    (a, a_strides): (&[T], MatrixStrides),
    (b, b_strides): (&[T], MatrixStrides),
    bias: Option<&[T]>,
    (c, c_strides): (&mut [T], MatrixStrides),
) {
    let &MatmulShape { batch, m, k, n } = shape;
    let spans = [a_strides.span(batch, m, k), b_strides.span(batch, k, n), c_strides.span(batch, m, n)];
    assert!(a.len() >= spans[0], "matmul {shape:?}: a of {} where {} are read", a.len(), spans[0]);
    assert!(b.len() >= spans[1], "matmul {shape:?}: b of {} where {} are read", b.len(), spans[1]);
    assert!(c.len() >= spans[2], "matmul {shape:?}: c of {} where {} are written", c.len(), spans[2]);
    if let Some(bias) = bias {
        assert_eq!(bias.len(), n, "matmul {shape:?}: bias");
    }
    let nests = crate::walk::Walk::new(&[batch, m, n], [&[c_strides.batch, c_strides.row, c_strides.col]]);
    assert!(nests.visits_once(0), "matmul {shape:?}: c overlaps itself, {c_strides:?}");
    if let Some((a, b, bias, c)) = as_f32(a, b, bias, &mut *c)
        && packed_matmul::takes(shape, c_strides)
    {
        return packed_matmul::packed_matmul(shape, (a, a_strides), (b, b_strides), bias, (c, c_strides));
    }
    let few =
        (1..=FEW_ROWS).contains(&m) && n * k >= FEW_ROWS_WORK && a_strides.col == 1 && b_strides.row == 1;
    let blocks = Blocks::of(shape);
    let c = Cut::new(c);
    for_each_chunk(blocks.count(), |chunk| {
        for (batch, rows, cols) in blocks.of_chunk(chunk) {
            let at = |s: MatrixStrides, row: usize, col: usize| batch * s.batch + row * s.row + col * s.col;
            let c_at = at(c_strides, rows.start, cols.start);
            // SAFETY: the spans checked above keep every element in its slice; blocks have disjoint positions, and `c` does
            // not overlap itself.
            unsafe {
                if few {
                    let part = |row: usize| &a[at(a_strides, row, 0)..][..k];
                    for col in cols {
                        let column = &b[at(b_strides, 0, col)..][..k];
                        let start = bias.map_or(T::of(0.0), |bias| bias[col]);
                        for_few_rows(m, part, column, |row, sum| c.set(at(c_strides, row, col), start + sum));
                    }
                    continue;
                }
                if let Some(bias) = bias {
                    for row in (0..rows.len()).map(|row| c_at + row * c_strides.row) {
                        let bias = &bias[cols.clone()];
                        if c_strides.col == 1 {
                            c.range(row, bias.len()).copy_from_slice(bias);
                            continue;
                        }
                        for (i, &bias) in bias.iter().enumerate() {
                            c.set(row + i * c_strides.col, bias);
                        }
                    }
                }
                let (a_at, b_at) = (at(a_strides, rows.start, 0), at(b_strides, 0, cols.start));
                gemm(
                    [rows.len(), k, cols.len()],
                    (a.as_ptr().wrapping_add(a_at), a_strides),
                    (b.as_ptr().wrapping_add(b_at), b_strides),
                    (c.pointer().add(c_at), c_strides),
                    bias.is_some(),
                );
            }
        }
    });
}

/// Inputs, a bias and an output in 32 bits.
type Operands32<'a> = (&'a [f32], &'a [f32], Option<&'a [f32]>, &'a mut [f32]);

/// The same operands as `f32`, if that is their type.
fn as_f32<'a, T: Float>(
    a: &'a [T],
    b: &'a [T],
    bias: Option<&'a [T]>,
    c: &'a mut [T],
) -> Option<Operands32<'a>> {
    (TypeId::of::<T>() == TypeId::of::<f32>()).then(|| {
        let floats = |x: &'a [T]| bytemuck::cast_slice(x);
        (floats(a), floats(b), bias.map(floats), bytemuck::cast_slice_mut(c))
    })
}

/// The maximum number of rows of a product whose speed is limited by memory, as in a language model that generates one
/// token at a time.
const FEW_ROWS: usize = 8;
/// The minimum number of elements of the right operand in such a product.
const FEW_ROWS_WORK: usize = 1 << 16;
/// The number of partial sums of an element, which fill one or two registers.
const LANES: usize = 16;
/// The number of rows that one pass over a column multiplies.
const ROWS_AT_ONCE: usize = 4;

/// The products of a few rows with one column, which is read once for every [`ROWS_AT_ONCE`] rows. Nothing is packed.
fn for_few_rows<'a, T: Float>(
    count: usize,
    row: impl Fn(usize) -> &'a [T],
    column: &[T],
    mut store: impl FnMut(usize, T),
) {
    for first in (0..count).step_by(ROWS_AT_ONCE) {
        // If there are fewer rows, the last one is repeated, and those sums are not stored.
        let rows = std::array::from_fn(|i| row((first + i).min(count - 1)));
        let sums = dots(rows, column);
        sums.iter().take(count - first).enumerate().for_each(|(i, &sum)| store(first + i, sum));
    }
}

/// The products of some rows with one column, with [`LANES`] partial sums for each.
#[allow(
    clippy::needless_range_loop,
    reason = "five slices side by side, which the compiler makes registers of"
)]
fn dots<T: Float>([a, b, c, d]: [&[T]; ROWS_AT_ONCE], column: &[T]) -> [T; ROWS_AT_ONCE] {
    vectorize(
        #[inline(always)]
        || {
            let [mut e, mut f, mut g, mut h] = [[T::of(0.0); LANES]; ROWS_AT_ONCE];
            let (a, a_rest) = a.as_chunks::<LANES>();
            let (b, b_rest) = b.as_chunks::<LANES>();
            let (c, c_rest) = c.as_chunks::<LANES>();
            let (d, d_rest) = d.as_chunks::<LANES>();
            let (column, rest) = column.as_chunks::<LANES>();
            for ((((x, a), b), c), d) in column.iter().zip(a).zip(b).zip(c).zip(d) {
                for i in 0..LANES {
                    e[i] = a[i].times_plus(x[i], e[i]);
                    f[i] = b[i].times_plus(x[i], f[i]);
                    g[i] = c[i].times_plus(x[i], g[i]);
                    h[i] = d[i].times_plus(x[i], h[i]);
                }
            }
            let mut sums = [T::of(0.0); ROWS_AT_ONCE];
            for (sum, (lanes, row)) in
                sums.iter_mut().zip([(e, a_rest), (f, b_rest), (g, c_rest), (h, d_rest)])
            {
                for (&a, &x) in row.iter().zip(rest) {
                    *sum = a.times_plus(x, *sum);
                }
                for lane in lanes {
                    *sum += lane;
                }
            }
            sums
        },
    )
}

/// A type with matrix products.
pub trait Product: Number {
    /// Like [`matmul`].
    fn matmul(
        shape: &MatmulShape,
        a: (&[Self], MatrixStrides),
        b: (&[Self], MatrixStrides),
        bias: Option<&[Self]>,
        c: (&mut [Self], MatrixStrides),
    );
}

macro_rules! product {
    ($($t:ty => $matmul:path),*) => {$(
        impl Product for $t {
            fn matmul(
                shape: &MatmulShape,
                a: (&[$t], MatrixStrides),
                b: (&[$t], MatrixStrides),
                bias: Option<&[$t]>,
                c: (&mut [$t], MatrixStrides),
            ) {
                $matmul(shape, a, b, bias, c);
            }
        }
    )*};
}
product!(f32 => matmul, f64 => matmul, i64 => matmul_whole);

/// [`matmul`] for integers, in plain loops; overflow wraps. `c` is row-major.
fn matmul_whole(
    shape: &MatmulShape,
    (a, a_strides): (&[i64], MatrixStrides),
    (b, b_strides): (&[i64], MatrixStrides),
    bias: Option<&[i64]>,
    (c, c_strides): (&mut [i64], MatrixStrides),
) {
    let &MatmulShape { batch, m, k, n } = shape;
    assert_eq!(c_strides, MatrixStrides { batch: c_strides.batch, ..MatrixStrides::row_major(m, n) });
    for_each_piece(&mut c[..batch * m * n], n.max(1), |start, out| {
        let (batch, row) = (start / n / m, start / n % m);
        for (col, out) in out.iter_mut().enumerate() {
            let at = |i: usize| {
                let a = a[batch * a_strides.batch + row * a_strides.row + i * a_strides.col];
                (a, b[batch * b_strides.batch + i * b_strides.row + col * b_strides.col])
            };
            let bias = bias.map_or(0, |bias| bias[col]);
            *out = (0..k).map(at).fold(bias, |sum, (a, b)| a.times_plus(b, sum));
        }
    });
}

/// The division of the outputs into chunks: complete batches if these are small, else blocks of rows and columns.
pub(super) struct Blocks {
    shape: MatmulShape,
    batches_per_chunk: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// The number of multiply-adds in a chunk, about 20 µs.
const CHUNK_WORK: usize = 1 << 20;
/// The maximum number of blocks of one product; more would pack its operands too often.
const BLOCKS: usize = 16;

impl Blocks {
    fn of(shape: &MatmulShape) -> Self {
        let &MatmulShape { m, k, n, .. } = shape;
        let work = (m * n * k).max(1);
        let mut blocks = Self {
            shape: *shape,
            batches_per_chunk: (CHUNK_WORK / work).max(1),
            rows: m.max(1),
            cols: n.max(1),
        };
        let mut count = 1;
        // Halving the longer side keeps blocks square, for which packing takes the smallest share of the work.
        while count < BLOCKS && work / count >= 2 * CHUNK_WORK {
            if blocks.rows >= blocks.cols {
                blocks.rows = blocks.rows.div_ceil(2).next_multiple_of(16);
            } else {
                blocks.cols = blocks.cols.div_ceil(2).next_multiple_of(16);
            }
            count *= 2;
        }
        blocks
    }

    /// Blocks of at most `limit` rows and columns, all of about equal size, in multiples of `unit`.
    pub(super) fn at_most(shape: &MatmulShape, limit: [usize; 2], unit: [usize; 2]) -> Self {
        let &MatmulShape { batch, m, k, n } = shape;
        let even =
            |size: usize, count: usize, unit: usize| size.div_ceil(count).next_multiple_of(unit).max(unit);
        let (mut down, mut across) = (m.div_ceil(limit[0]).max(1), n.div_ceil(limit[1]).max(1));
        let work = |down: usize, across: usize| m * n * k / (down * across);
        // With few blocks, large products would leave some cores without work, or with much less than others.
        while batch * down * across < BLOCKS && work(down, across) >= 2 * CHUNK_WORK {
            match even(m, down, unit[0]) >= even(n, across, unit[1]) {
                true => down *= 2,
                false => across *= 2,
            }
        }
        let batches_per_chunk = if down * across == 1 { (CHUNK_WORK / work(1, 1).max(1)).max(1) } else { 1 };
        let (rows, cols) = (even(m, down, unit[0]), even(n, across, unit[1]));
        Self { shape: *shape, batches_per_chunk, rows, cols }
    }

    fn per_batch(&self) -> usize {
        self.shape.m.div_ceil(self.rows) * self.shape.n.div_ceil(self.cols)
    }

    pub(super) fn count(&self) -> usize {
        self.shape.batch.div_ceil(self.batches_per_chunk) * self.per_batch()
    }

    /// The `(batch, rows, columns)` of a chunk.
    pub(super) fn of_chunk(
        &self,
        chunk: usize,
    ) -> impl Iterator<Item = (usize, std::ops::Range<usize>, std::ops::Range<usize>)> {
        let (group, block) = (chunk / self.per_batch(), chunk % self.per_batch());
        let across = self.shape.n.div_ceil(self.cols);
        let (row, col) = (block / across * self.rows, block % across * self.cols);
        let rows = row..self.shape.m.min(row + self.rows);
        let cols = col..self.shape.n.min(col + self.cols);
        let first = group * self.batches_per_chunk;
        let batches = first..self.shape.batch.min(first + self.batches_per_chunk);
        batches.map(move |batch| (batch, rows.clone(), cols.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn check(shape: MatmulShape, a_s: MatrixStrides, b_s: MatrixStrides, c_s: MatrixStrides) {
        let MatmulShape { batch, m, k, n } = shape;
        let (a, b, bias) = (random(a_s.span(batch, m, k), 1), random(b_s.span(batch, k, n), 2), random(n, 3));
        for bias in [None, Some(&bias[..])] {
            let mut expected = vec![7.0; c_s.span(batch, m, n)];
            for (i, row, col) in
                (0..batch).flat_map(|i| (0..m).flat_map(move |r| (0..n).map(move |c| (i, r, c))))
            {
                let mut sum = bias.map_or(0.0, |bias| f64::from(bias[col]));
                for p in 0..k {
                    let left = a[i * a_s.batch + row * a_s.row + p * a_s.col];
                    sum += f64::from(left) * f64::from(b[i * b_s.batch + p * b_s.row + col * b_s.col]);
                }
                expected[i * c_s.batch + row * c_s.row + col * c_s.col] = sum as f32;
            }
            let found = on_any_threads(|| {
                let mut c = vec![7.0; expected.len()];
                matmul(&shape, (&a, a_s), (&b, b_s), bias, (&mut c, c_s));
                c
            });
            assert_close(&found, &expected, 1e-4);
        }
    }

    #[test]
    fn any_layout_matches_the_reference() {
        for (batch, m, k, n) in [
            (1, 1, 1, 1),
            (1, 0, 3, 4),
            (0, 2, 3, 4),
            (1, 3, 0, 4),
            (1, 17, 33, 9),
            (3, 5, 7, 11),
            (1, 130, 200, 150),
            (70, 20, 30, 40),
            (2, 1, 300, 500),
            (1, 4, 1000, 67),
            (1, 7, 4099, 17),
        ] {
            let shape = MatmulShape { batch, m, k, n };
            let row_major = MatrixStrides::row_major;
            for a in [
                row_major(m, k),
                row_major(k, m).transposed(),
                MatrixStrides { batch: 0, row: k + 3, col: 1 },
            ] {
                for b in [
                    row_major(k, n),
                    row_major(n, k).transposed(),
                    MatrixStrides { batch: 0, row: 0, col: 1 },
                ] {
                    check(shape, a, b, row_major(m, n));
                }
            }
            check(shape, row_major(m, k), row_major(k, n), row_major(n, m).transposed());
        }
    }

    #[test]
    #[should_panic(expected = "c overlaps itself")]
    fn an_overlapping_output_is_refused() {
        let (shape, s) = (MatmulShape { batch: 2, m: 1, k: 1, n: 1 }, MatrixStrides::row_major(1, 1));
        matmul(
            &shape,
            (&[1.0; 2], s),
            (&[1.0; 2], s),
            None,
            (&mut [0.0; 2], MatrixStrides { batch: 0, ..s }),
        );
    }
}
