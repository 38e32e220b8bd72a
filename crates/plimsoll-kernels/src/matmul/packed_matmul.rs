//! Products of large `float32` matrices on processors with AVX-512.
//!
//! Both operands are packed once for all threads, one run of depth at a time: rows in groups, columns in panels, in the order
//! in which a register tile reads them. `batched.rs` uses this file for the products that [`takes`] accepts. `gemm.rs`,
//! which packs an operand again for each block of the output, handles other products and other processors.

use std::cell::Cell;

use super::matrix::{MatmulShape, MatrixStrides};
use crate::parallel::{Cut, for_each_chunk};
use crate::simd::{Kernel, Simd, dispatch, has_avx512, vectorize};
use crate::transpose::transpose;

/// Rows and columns of a tile: 24 registers of sums, two of columns, and the rest for rows.
const ROWS: usize = 12;
const COLS: usize = 32;
/// The number of elements to pack at a time along the depth. With half as many, the output is read and written so often
/// that products are 5 % slower.
const DEPTH: usize = 1024;
/// The maximum number of rows and columns that are packed at a time: 4 MiB and 8 MiB.
const ROWS_AT_ONCE: usize = 86 * ROWS;
const COLS_AT_ONCE: usize = 64 * COLS;
/// Rows and columns of a thread's piece of the output: its panels stay in the L2 cache.
const PIECE: [usize; 2] = [8 * ROWS, 8 * COLS];
/// The number of groups or panels that a thread packs at a time.
const PACK_SETS: usize = 4;

/// The minimum number of multiply-adds for which packing and two loops over threads are negligible.
const WORK: usize = 1 << 23;
/// Floats per cache line.
const LINE: usize = 16;

/// Whether [`packed_matmul`] should compute this product on this processor.
pub(super) fn takes(shape: &MatmulShape, c: MatrixStrides) -> bool {
    let &MatmulShape { m, k, n, .. } = shape;
    c.col == 1 && m >= 4 * ROWS && n >= 2 * COLS && k >= LINE && m * n * k >= WORK && has_avx512()
}

/// An operand's lines: rows of `a` or columns of `b`.
#[derive(Clone, Copy)]
struct Lines<'a> {
    values: &'a [f32],
    /// Elements between lines, and between neighbours in depth.
    line: usize,
    depth: usize,
}

/// Part of an operand: some of its lines, over a run of depth.
struct Part<'a> {
    of: Lines<'a>,
    first: usize,
    count: usize,
    depth: std::ops::Range<usize>,
}

thread_local! {
    /// The buffer for packed operands of this thread, as large as its largest product needed: at most 12 MiB.
    static PACKED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// `c = a * b`, plus `bias[n]` on every row when given, for products that [`takes`] accepts.
///
/// `matmul` has checked that the slices are long enough for their strides and that rows of `c` do not overlap.
pub(super) fn packed_matmul(
    shape: &MatmulShape,
    (a, a_strides): (&[f32], MatrixStrides),
    (b, b_strides): (&[f32], MatrixStrides),
    bias: Option<&[f32]>,
    (c, c_strides): (&mut [f32], MatrixStrides),
) {
    let &MatmulShape { batch, m, k, n } = shape;
    let run = k.div_ceil(k.div_ceil(DEPTH));
    let (rows, cols) = (m.min(ROWS_AT_ONCE), n.min(COLS_AT_ONCE));
    let lens = [rows.next_multiple_of(ROWS) * run, cols.next_multiple_of(COLS) * run];
    let mut kept = PACKED.take();
    if kept.len() < lens[0] + lens[1] + LINE {
        kept = vec![0.0; lens[0] + lens[1] + LINE];
    }
    let aligned = kept.as_ptr().align_offset(64).min(LINE);
    let (panels, groups) = kept[aligned..].split_at_mut(lens[1]);
    let c = Cut::new(c);
    for i in 0..batch {
        let a = Lines { values: &a[i * a_strides.batch..], line: a_strides.row, depth: a_strides.col };
        let b = Lines { values: &b[i * b_strides.batch..], line: b_strides.col, depth: b_strides.row };
        for col in (0..n).step_by(cols) {
            for first in (0..k).step_by(run) {
                let depth = first..k.min(first + run);
                let b = Part { of: b, first: col, count: cols.min(n - col), depth: depth.clone() };
                pack::<COLS>(&b, panels);
                for row in (0..m).step_by(rows) {
                    let a = Part { of: a, first: row, count: rows.min(m - row), depth: depth.clone() };
                    pack::<ROWS>(&a, groups);
                    let out = Output {
                        c: &c,
                        at: i * c_strides.batch + row * c_strides.row + col,
                        row: c_strides.row,
                        start: match bias {
                            _ if first > 0 => Start::Accumulate,
                            Some(bias) => Start::Bias(&bias[col..]),
                            None => Start::Zero,
                        },
                    };
                    multiply((a.count, groups), (b.count, panels), depth.len(), &out);
                }
            }
        }
    }
    PACKED.set(kept);
}

/// Packs lines in sets of `WIDTH`. For each step of depth, a set has one element from each line. Missing lines of the last set
/// are 0.
fn pack<const WIDTH: usize>(part: &Part<'_>, to: &mut [f32]) {
    let run = part.depth.len();
    let sets = part.count.div_ceil(WIDTH);
    let to = Cut::new(to);
    for_each_chunk(sets.div_ceil(PACK_SETS), |chunk| {
        let sets = chunk * PACK_SETS..sets.min((chunk + 1) * PACK_SETS);
        // SAFETY: each set has a separate piece.
        let to = unsafe { to.range(sets.start * WIDTH * run, sets.len() * WIDTH * run) };
        let first = sets.start * WIDTH;
        let count = (sets.end * WIDTH).min(part.count) - first;
        let Lines { values, line, depth } = part.of;
        let from = &values[(part.first + first) * line + part.depth.start * depth..];
        to[count / WIDTH * WIDTH * run..].fill(0.0);
        if line == 1 {
            return vectorize(
                #[inline(always)]
                || pack_stretches::<WIDTH>(from, depth, count, run, to),
            );
        }
        for (set, to) in to.chunks_exact_mut(WIDTH * run).enumerate() {
            let (from, count) = (&from[set * WIDTH * line..], WIDTH.min(count - set * WIDTH));
            if depth == 1 {
                transpose((count, run), (from, line), (to, WIDTH));
                continue;
            }
            for (step, to) in to.chunks_exact_mut(WIDTH).enumerate() {
                for (i, to) in to[..count].iter_mut().enumerate() {
                    *to = from[i * line + step * depth];
                }
            }
        }
    });
}

/// [`pack`] for lines that are adjacent in memory, so that each step of depth is a contiguous stretch.
#[inline(always)]
#[allow(clippy::manual_memcpy, reason = "some registers: a call of memcpy takes longer")]
fn pack_stretches<const WIDTH: usize>(from: &[f32], depth: usize, count: usize, run: usize, to: &mut [f32]) {
    for step in 0..run {
        let from = &from[step * depth..][..count];
        let (whole, rest) = from.as_chunks::<WIDTH>();
        let mut at = step * WIDTH;
        for from in whole {
            let to = &mut to[at..][..WIDTH];
            for i in 0..WIDTH {
                to[i] = from[i];
            }
            at += run * WIDTH;
        }
        for (i, &x) in rest.iter().enumerate() {
            to[at + i] = x;
        }
    }
}

/// The destination of a block of sums.
struct Output<'a> {
    c: &'a Cut<'a, f32>,
    /// Its first element, and the distance between its rows.
    at: usize,
    row: usize,
    start: Start<'a>,
}

/// The initial value of sums.
#[derive(Clone, Copy)]
enum Start<'a> {
    Zero,
    /// A value for each column.
    Bias(&'a [f32]),
    /// The old values.
    Accumulate,
}

/// Multiplies packed rows by packed columns.
fn multiply((m, a): (usize, &[f32]), (n, b): (usize, &[f32]), run: usize, out: &Output<'_>) {
    let across = n.div_ceil(PIECE[1]);
    for_each_chunk(m.div_ceil(PIECE[0]) * across, |chunk| {
        let (row, col) = (chunk / across * PIECE[0], chunk % across * PIECE[1]);
        dispatch(Piece {
            a: &a[row * run..],
            b: &b[col * run..],
            size: [PIECE[0].min(m - row), PIECE[1].min(n - col)],
            run,
            out,
            place: [row, col],
        });
    });
}

/// A thread's piece of the output.
struct Piece<'a> {
    a: &'a [f32],
    b: &'a [f32],
    size: [usize; 2],
    run: usize,
    out: &'a Output<'a>,
    place: [usize; 2],
}

impl Kernel for Piece<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let [rows, cols] = self.size;
        for row in (0..rows).step_by(ROWS) {
            for col in (0..cols).step_by(COLS) {
                let a = &self.a[row * self.run..][..ROWS * self.run];
                let b = &self.b[col * self.run..][..COLS * self.run];
                self.tile::<S>((a, b), [row, col], [ROWS.min(rows - row), COLS.min(cols - col)]);
            }
        }
    }
}

impl Piece<'_> {
    /// Computes a tile of the output from a group of rows and a panel of columns.
    #[inline(always)]
    fn tile<S: Simd>(&self, (a, b): (&[f32], &[f32]), [row, col]: [usize; 2], [rows, cols]: [usize; 2]) {
        let out = self.out;
        let at = out.at + (self.place[0] + row) * out.row + self.place[1] + col;
        if rows == ROWS && cols == COLS {
            // SAFETY: tiles are disjoint parts of `c`, and so are the rows of a tile, since rows of `c` do not overlap.
            let mut c: [&mut [f32]; ROWS] =
                std::array::from_fn(|i| unsafe { out.c.range(at + i * out.row, COLS) });
            if let Start::Bias(bias) = out.start {
                c.iter_mut().for_each(|c| c.copy_from_slice(&bias[self.place[1] + col..][..COLS]));
            }
            match out.start {
                Start::Zero => registers::<S, false>(a, b, &mut c),
                _ => registers::<S, true>(a, b, &mut c),
            }
            return;
        }
        let mut sums = [[0.0; COLS]; ROWS];
        // SAFETY: as above.
        let c = |i: usize| unsafe { out.c.range(at + i * out.row, cols) };
        for (i, sums) in sums.iter_mut().enumerate().take(rows) {
            match out.start {
                Start::Zero => {}
                Start::Bias(bias) => sums[..cols].copy_from_slice(&bias[self.place[1] + col..][..cols]),
                Start::Accumulate => sums[..cols].copy_from_slice(c(i)),
            }
        }
        registers::<S, true>(a, b, &mut sums.each_mut().map(|sums| &mut sums[..]));
        for (i, sums) in sums.iter().enumerate().take(rows) {
            c(i).copy_from_slice(&sums[..cols]);
        }
    }
}

/// Adds the products of a group of rows and a panel of columns to `c`, or sets `c` to them.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "short plain loops are unrolled")]
fn registers<S: Simd, const ADD: bool>(a: &[f32], b: &[f32], c: &mut [&mut [f32]; ROWS]) {
    const VECTORS: usize = 2;
    /// The number of steps of depth per loop iteration: address additions compete with products for the processor's ports.
    const UNROLLED: usize = 4;
    assert!(S::LANES * VECTORS == COLS && a.len() * COLS == b.len() * ROWS, "a tile of AVX-512");
    assert!(c.iter().all(|c| c.len() == COLS), "rows of a tile");
    let run = a.len() / ROWS;
    let (mut a, mut b) = (a.as_ptr(), b.as_ptr());
    // SAFETY: the operands have `run` steps of ROWS and COLS elements, and rows have COLS, as checked; `S` comes from
    // `dispatch`.
    unsafe {
        let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
        for i in 0..ROWS {
            for v in 0..VECTORS {
                S::prefetch(c[i].as_ptr().add(v * S::LANES));
            }
        }
        macro_rules! steps {
            ($count:expr) => {
                for at in 0..$count {
                    let mut columns = [S::splat(0.0); VECTORS];
                    for v in 0..VECTORS {
                        columns[v] = S::load(b.add(at * COLS + v * S::LANES));
                    }
                    for i in 0..ROWS {
                        let x = S::splat(*a.add(at * ROWS + i));
                        for v in 0..VECTORS {
                            sums[i][v] = S::mul_add(x, columns[v], sums[i][v]);
                        }
                    }
                }
                (a, b) = (a.add($count * ROWS), b.add($count * COLS));
            };
        }
        for _ in 0..run / UNROLLED {
            steps!(UNROLLED);
        }
        for _ in 0..run % UNROLLED {
            steps!(1);
        }
        for i in 0..ROWS {
            for v in 0..VECTORS {
                let at = c[i].as_mut_ptr().add(v * S::LANES);
                if ADD {
                    sums[i][v] = S::mul_add(sums[i][v], S::splat(1.0), S::load(at));
                }
                S::store(at, sums[i][v]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    /// Compares a product with sums in 64 bits. Does nothing on a processor without AVX-512.
    fn check(shape: MatmulShape, a_s: MatrixStrides, b_s: MatrixStrides, c_row: usize) {
        let MatmulShape { batch, m, k, n } = shape;
        let c_s = MatrixStrides { batch: m * c_row, row: c_row, col: 1 };
        let (a, b, bias) = (random(a_s.span(batch, m, k), 1), random(b_s.span(batch, k, n), 2), random(n, 3));
        for bias in [None, Some(&bias[..])] {
            let mut expected = vec![7.0; batch * m * c_row];
            for (i, row, col) in
                (0..batch).flat_map(|i| (0..m).flat_map(move |r| (0..n).map(move |c| (i, r, c))))
            {
                let term = |p: usize| {
                    let left = a[i * a_s.batch + row * a_s.row + p * a_s.col];
                    f64::from(left) * f64::from(b[i * b_s.batch + p * b_s.row + col * b_s.col])
                };
                let sum = bias.map_or(0.0, |bias| f64::from(bias[col])) + (0..k).map(term).sum::<f64>();
                expected[i * c_s.batch + row * c_row + col] = sum as f32;
            }
            let found = on_any_threads(|| {
                let mut c = vec![7.0; expected.len()];
                packed_matmul(&shape, (&a, a_s), (&b, b_s), bias, (&mut c, c_s));
                c
            });
            assert_close(&found, &expected, 1e-4);
        }
    }

    #[test]
    fn any_layout_and_size_matches_the_reference() {
        if !has_avx512() {
            return;
        }
        let row_major = MatrixStrides::row_major;
        for (batch, m, k, n) in [
            (1, 1, 1, 1),
            (1, 13, 20, 33),
            (1, 26, 1030, 40),
            (1, ROWS_AT_ONCE + 7, 9, 40),
            (1, 20, 9, COLS_AT_ONCE + 5),
            (2, 60, 40, 100),
        ] {
            let shape = MatmulShape { batch, m, k, n };
            for a in
                [row_major(m, k), row_major(k, m).transposed(), MatrixStrides { batch: 0, row: 3, col: 2 }]
            {
                for b in [
                    row_major(k, n),
                    row_major(n, k).transposed(),
                    MatrixStrides { batch: 5, row: 2, col: 3 },
                ] {
                    check(shape, a, b, n + 3);
                }
            }
        }
    }

    #[test]
    fn what_it_takes_is_large() {
        let takes = |m, k, n| takes(&MatmulShape { batch: 1, m, k, n }, MatrixStrides::row_major(m, n));
        assert_eq!(takes(2048, 384, 1536), has_avx512());
        assert!(!takes(256, 64, 256) && !takes(8, 4096, 4096));
    }
}
