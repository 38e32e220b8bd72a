//! Batched products of 16-bit float matrices, which read their operands in place.
//!
//! Sums are kept in 32 bits over the entire depth and rounded once. One block of the result is computed at a time: its
//! rows and columns are packed, over a range of the depth, for the tiles of `tile.rs` or the tile registers of `amx.rs`.
//! They are packed as pairs of `bf16` if the processor can multiply those (AMX, AVX512-BF16), otherwise as `f32`.
//! Packing is the only conversion: an operand is never converted to 32 bits as a whole.

use super::batched::Blocks;
use super::matrix::{MatmulShape, MatrixStrides};
use crate::amx::{Factors, SIDE, has_tiles};
use crate::convert::{Compute, Load};
use crate::dtype::DType;
use crate::parallel::{Cut, for_each_cut_with, scratch_workers};
use crate::simd::{has_pairs, vectorize};
use crate::tile::{Depth, NARROW, ROWS, Start, Tile, WIDE, panel_width};
use crate::transpose::transpose;

/// The maximum number of rows and columns in a block: over one range of the depth, they take 0.7 MB, less than a core's
/// L2 cache.
const LIMIT: [usize; 2] = [16 * ROWS, 8 * WIDE];
/// How many floats, or pairs, are packed at a time along the depth: a panel of columns then stays in the L1 cache.
const RUN: usize = 256;
/// The minimum number of rows for which tile registers, which have 16 of them, are faster than other registers.
const TILE_ROWS: usize = 8;

/// The instructions that multiply, and with them the form in which operands are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Products of `f32`.
    Floats,
    /// Products of pairs of `bf16`.
    Pairs,
    /// Products of pairs of `bf16` in tile registers: rows are not transposed, and the depth is filled up with zeros to a
    /// multiple of [`SIDE`] pairs.
    Tiles,
}

impl Unit {
    /// The fastest one of this processor for a product.
    fn of(dtype: DType, shape: &MatmulShape) -> Unit {
        match dtype {
            DType::BF16 if shape.m >= TILE_ROWS && has_tiles() => Unit::Tiles,
            DType::BF16 if has_pairs() => Unit::Pairs,
            _ => Unit::Floats,
        }
    }

    /// How many elements a packed float holds.
    fn per_float(self) -> usize {
        if self == Unit::Floats { 1 } else { 2 }
    }
}

fn blocks(shape: &MatmulShape) -> Blocks {
    Blocks::at_most(shape, LIMIT, [ROWS, NARROW])
}

/// The parts of a block's scratch memory, in floats: sums, packed rows, packed columns, and a panel before it is transposed.
struct BlockScratch {
    sums: usize,
    rows: usize,
    cols: usize,
    turned: usize,
}

impl BlockScratch {
    fn of(shape: &MatmulShape, blocks: &Blocks) -> Self {
        let (run, width) = (shape.k.clamp(1, RUN).next_multiple_of(SIDE), blocks.cols.next_multiple_of(WIDE));
        Self {
            sums: (blocks.rows + 1) * width,
            rows: blocks.rows * run,
            cols: width * run,
            turned: WIDE * run,
        }
    }

    fn len(&self) -> usize {
        self.sums + self.rows + self.cols + self.turned
    }
}

/// The number of floats of scratch memory that [`short_matmul`] needs; it is the same on every processor.
pub fn short_matmul_scratch_len(shape: &MatmulShape) -> usize {
    let blocks = blocks(shape);
    scratch_workers(blocks.count()) * BlockScratch::of(shape, &blocks).len()
}

/// The elements and the strides of matrices.
pub type Matrices<'a> = (&'a [u8], MatrixStrides);

/// `c = a * b`, plus `bias[n]` on every row when given. All are of type `dtype`, and `c` is row-major. Before the sums
/// in each row of a block are rounded, they are passed to `finish`, with the position of the first one in `c`.
///
/// # Panics
/// If `dtype` is not `F16` or `BF16`, or a slice is too short.
#[allow(clippy::too_many_arguments, reason = "a product's operands, and what it works in")]
pub fn short_matmul(
    dtype: DType,
    shape: &MatmulShape,
    a: Matrices<'_>,
    b: Matrices<'_>,
    bias: Option<&[u8]>,
    c: &mut [u8],
    scratch: &mut [f32],
    finish: impl Fn(usize, &mut [f32]) + Sync,
) {
    product(dtype, Unit::of(dtype, shape), shape, [a, b], bias, c, scratch, &finish);
}

#[allow(clippy::too_many_arguments, reason = "as above")]
fn product(
    dtype: DType,
    unit: Unit,
    shape: &MatmulShape,
    [(a, a_strides), (b, b_strides)]: [Matrices<'_>; 2],
    bias: Option<&[u8]>,
    c: &mut [u8],
    scratch: &mut [f32],
    finish: &(impl Fn(usize, &mut [f32]) + Sync),
) {
    let &MatmulShape { batch, m, k, n } = shape;
    assert!(matches!(dtype, DType::F16 | DType::BF16), "short_matmul of {dtype}");
    let spans =
        [a_strides.span(batch, m, k), b_strides.span(batch, k, n), batch * m * n].map(|span| 2 * span);
    assert!(a.len() >= spans[0], "matmul {shape:?}: a of {} bytes where {} are read", a.len(), spans[0]);
    assert!(b.len() >= spans[1], "matmul {shape:?}: b of {} bytes where {} are read", b.len(), spans[1]);
    assert!(c.len() >= spans[2], "matmul {shape:?}: c of {} bytes where {} are written", c.len(), spans[2]);
    assert!(bias.is_none_or(|bias| bias.len() == 2 * n), "matmul {shape:?}: bias");
    if spans[2] == 0 {
        return;
    }
    let blocks = blocks(shape);
    let lens = BlockScratch::of(shape, &blocks);
    let (load, store) = (<f32 as Compute>::load(dtype), <f32 as Compute>::store(dtype));
    let [a, b] = [a, b].map(|bytes| Packer { words: words(bytes), bytes, load, unit });
    let c = Cut::new(c);
    for_each_cut_with(blocks.count(), (), scratch, lens.len(), |chunk, (), own| {
        for (batch, rows, cols) in blocks.of_chunk(chunk) {
            let lines = |size: &std::ops::Range<usize>, of: MatrixStrides, line: usize, depth: usize| Lines {
                first: batch * of.batch + size.start * line,
                count: size.len(),
                line,
                depth,
            };
            let block = Block {
                a: (&a, lines(&rows, a_strides, a_strides.row, a_strides.col)),
                b: (&b, lines(&cols, b_strides, b_strides.col, b_strides.row)),
                depth: k,
                unit,
            };
            let bias = bias.map(|bias| &bias[2 * cols.start..2 * cols.end]);
            let (sums, width) = block.sums(&lens, bias.map(|bias| (bias, b.load)), own);
            for (row, sums) in rows.zip(sums.chunks_exact_mut(width)) {
                let (at, sums) = ((batch * m + row) * n + cols.start, &mut sums[..cols.len()]);
                finish(at, sums);
                // SAFETY: blocks have disjoint positions in `c`, whose length was checked.
                store(sums, unsafe { c.range(2 * at, 2 * sums.len()) });
            }
        }
    });
}

/// The elements as words. An empty slice may have any address.
fn words(bytes: &[u8]) -> &[u16] {
    if bytes.is_empty() { &[] } else { bytemuck::cast_slice(bytes) }
}

/// The lines of an operand that a block reads, which are rows of `a` or columns of `b`: `count` lines from `first`
/// onward. Lines are `line` apart, and their elements `depth` apart.
#[derive(Clone, Copy)]
struct Lines {
    first: usize,
    count: usize,
    line: usize,
    depth: usize,
}

/// A block of a product.
struct Block<'a> {
    a: (&'a Packer<'a>, Lines),
    b: (&'a Packer<'a>, Lines),
    depth: usize,
    unit: Unit,
}

impl Block<'_> {
    /// Computes its sums. Returns them with the width of their rows.
    fn sums<'r>(
        &self,
        lens: &BlockScratch,
        bias: Option<(&[u8], Load<f32>)>,
        own: &'r mut [f32],
    ) -> (&'r mut [f32], usize) {
        let ((a, a_lines), (b, b_lines)) = (self.a, self.b);
        let width = b_lines.count.next_multiple_of(WIDE);
        let (sums, own) = own.split_at_mut(lens.sums);
        let (packed_rows, own) = own.split_at_mut(lens.rows);
        let (packed_cols, turned) = own.split_at_mut(lens.cols);
        let (start, sums) = sums.split_at_mut(width);
        start.fill(0.0);
        if let Some((bias, load)) = bias {
            load(bias, 0, 1, &mut start[..b_lines.count]);
        }
        let per_float = self.unit.per_float();
        let whole = self.depth.div_ceil(per_float);
        // With depth 0, there is one empty range, so each sum keeps its initial value.
        for first in (0..whole.max(1)).step_by(RUN) {
            let run = RUN.min(whole - first);
            let at = |lines: Lines| Lines { first: lines.first + first * per_float * lines.depth, ..lines };
            let left = self.depth - first * per_float;
            let elements = left.min(run * per_float);
            let run = if self.unit == Unit::Tiles { run.next_multiple_of(SIDE) } else { run };
            let depth = Run { floats: run, elements };
            let [a_row, a_step] = a.rows(at(a_lines), depth, packed_rows, turned);
            for col in (0..b_lines.count).step_by(WIDE) {
                let count = WIDE.min(b_lines.count - col);
                let lines = Lines { first: at(b_lines).first + col * b_lines.line, count, ..b_lines };
                let panel_width = panel_width(count);
                let panel = &mut packed_cols[col * run..][..panel_width * run];
                b.panel(lines, depth, (panel, panel_width), turned);
                if self.unit == Unit::Tiles {
                    if first == 0 {
                        for sums in sums.chunks_exact_mut(width).take(a_lines.count) {
                            sums[col..][..panel_width].copy_from_slice(&start[col..][..panel_width]);
                        }
                    }
                    let factors = Factors { a: packed_rows, a_row, b: panel, width: panel_width, steps: run };
                    factors.add_to(a_lines.count, &mut sums[col..], width);
                    continue;
                }
                let start = if first == 0 { Start::Columns(&start[col..]) } else { Start::Accumulate };
                let depth = Depth::packed([1, 1, run], [0, 0, a_step], panel_width);
                let tile = Tile { a: packed_rows, b: panel, depth, width: panel_width, start };
                match self.unit {
                    Unit::Floats => tile.run_strided(a_lines.count, a_row, &mut sums[col..], width),
                    _ => tile.run_pairs(a_lines.count, a_row, &mut sums[col..], width),
                }
            }
        }
        (sums, width)
    }
}

/// A range of the depth: its elements, and the number of floats that they occupy once packed.
#[derive(Clone, Copy)]
struct Run {
    floats: usize,
    elements: usize,
}

/// An operand, and the way in which it is packed.
struct Packer<'a> {
    bytes: &'a [u8],
    words: &'a [u16],
    load: Load<f32>,
    unit: Unit,
}

impl Packer<'_> {
    /// Packs rows, for tile registers one after another, else without transposing them. Returns the distances between rows and
    /// between steps of depth.
    fn rows(&self, lines: Lines, run: Run, to: &mut [f32], turned: &mut [f32]) -> [usize; 2] {
        if run.floats == 0 {
            return [0, 0];
        }
        if lines.depth <= lines.line || lines.count == 1 {
            for (row, to) in to.chunks_exact_mut(run.floats).take(lines.count).enumerate() {
                self.along(lines.first + row * lines.line, lines.depth, run, to);
            }
            return [run.floats, 1];
        }
        if self.unit == Unit::Tiles {
            for row in (0..lines.count).step_by(WIDE) {
                let count = WIDE.min(lines.count - row);
                let some = Lines { first: lines.first + row * lines.line, count, ..lines };
                self.across(some, run, (turned, count));
                let to = &mut to[row * run.floats..];
                transpose((run.floats, count), (turned, count), (to, run.floats));
            }
            return [run.floats, 1];
        }
        self.across(lines, run, (to, lines.count));
        [1, lines.count]
    }

    /// Packs columns as rows of `width`, one row for each step of depth; unused columns are 0.
    fn panel(&self, lines: Lines, run: Run, (to, width): (&mut [f32], usize), turned: &mut [f32]) {
        if run.floats == 0 {
            return;
        }
        if lines.count < width {
            to.fill(0.0);
        }
        if lines.line <= lines.depth && lines.count > 1 {
            return self.across(lines, run, (to, width));
        }
        for (col, to) in turned.chunks_exact_mut(run.floats).take(lines.count).enumerate() {
            self.along(lines.first + col * lines.line, lines.depth, run, to);
        }
        transpose((lines.count, run.floats), (turned, run.floats), (to, width));
    }

    /// Packs one line over a range of the depth.
    fn along(&self, from: usize, step: usize, run: Run, to: &mut [f32]) {
        if self.unit == Unit::Floats {
            return (self.load)(self.bytes, from, step, to);
        }
        let to: &mut [u16] = bytemuck::cast_slice_mut(to);
        let (to, rest) = to.split_at_mut(run.elements);
        rest.fill(0);
        match step {
            1 => to.copy_from_slice(&self.words[from..][..run.elements]),
            _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = self.words[from + i * step]),
        }
    }

    /// Packs all lines, one step of depth at a time, as rows of `width`.
    fn across(&self, lines: Lines, run: Run, (to, width): (&mut [f32], usize)) {
        let Lines { first, line, depth, count } = lines;
        let to = to.chunks_exact_mut(width).take(run.floats).map(|to| &mut to[..count]).enumerate();
        if self.unit == Unit::Floats {
            return to.for_each(|(step, to)| (self.load)(self.bytes, first + step * depth, line, to));
        }
        let words = self.words;
        vectorize(
            #[inline(always)]
            || {
                for (step, to) in to {
                    let low = first + 2 * step * depth;
                    if 2 * step >= run.elements {
                        to.fill(0.0);
                        continue;
                    }
                    match (line, 2 * step + 1 < run.elements) {
                        (1, true) => {
                            let (low, high) = (&words[low..][..count], &words[low + depth..][..count]);
                            for i in 0..count {
                                to[i] = pair(low[i], high[i]);
                            }
                        }
                        // With odd depth, the last element is paired with 0.
                        (_, whole) => {
                            for (i, to) in to.iter_mut().enumerate() {
                                let at = low + i * line;
                                *to = pair(words[at], if whole { words[at + depth] } else { 0 });
                            }
                        }
                    }
                }
            },
        );
    }
}

/// Two elements at neighbouring steps of depth, with the first in the low half.
#[inline(always)]
fn pair(low: u16, high: u16) -> f32 {
    f32::from_bits(u32::from(low) | u32::from(high) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{AnyOperand, convert};
    use crate::testing::*;

    fn rounded(values: &[f32], dtype: DType) -> Vec<u8> {
        let mut bytes = vec![0; 2 * values.len()];
        let from = AnyOperand { bytes: bytemuck::cast_slice(values), dtype: DType::F32, strides: &[1] };
        convert(&[values.len()], from, (&mut bytes, dtype, &[1]));
        bytes
    }

    fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / 2];
        if !bytes.is_empty() {
            <f32 as Compute>::load(dtype)(bytes, 0, 1, &mut values);
        }
        values
    }

    /// Compares products, by every unit of this processor, with 64-bit sums of the same rounded elements.
    fn check(dtype: DType, shape: MatmulShape, a_s: MatrixStrides, b_s: MatrixStrides) {
        let MatmulShape { batch, m, k, n } = shape;
        let values = |len, seed| rounded(&random(len, seed), dtype);
        let (a, b, bias) = (values(a_s.span(batch, m, k), 1), values(b_s.span(batch, k, n), 2), values(n, 3));
        let (left, right) = (floats(&a, dtype), floats(&b, dtype));
        for bias in [None, Some(&bias[..])] {
            let plus = bias.map_or(vec![0.0; n], |bias| floats(bias, dtype));
            let mut expected = Vec::new();
            for (i, row, col) in
                (0..batch).flat_map(|i| (0..m).flat_map(move |r| (0..n).map(move |c| (i, r, c))))
            {
                let term = |p: usize| {
                    let left = left[i * a_s.batch + row * a_s.row + p * a_s.col];
                    f64::from(left) * f64::from(right[i * b_s.batch + p * b_s.row + col * b_s.col])
                };
                expected.push(2.0 * (f64::from(plus[col]) + (0..k).map(term).sum::<f64>()) as f32);
            }
            let units = [
                (Unit::Floats, true),
                (Unit::Pairs, dtype == DType::BF16 && has_pairs()),
                (Unit::Tiles, dtype == DType::BF16 && has_tiles()),
            ];
            for (unit, _) in units.into_iter().filter(|(_, exists)| *exists) {
                let found = on_any_threads(|| {
                    let (mut c, mut scratch) =
                        (vec![7; 2 * batch * m * n], vec![f32::NAN; short_matmul_scratch_len(&shape)]);
                    let double = |_, sums: &mut [f32]| sums.iter_mut().for_each(|x| *x *= 2.0);
                    product(dtype, unit, &shape, [(&a, a_s), (&b, b_s)], bias, &mut c, &mut scratch, &double);
                    floats(&c, dtype)
                });
                assert_close(&found, &expected, if dtype == DType::BF16 { 0.0045 } else { 0.0008 });
            }
        }
    }

    #[test]
    fn any_layout_of_short_floats_matches_the_reference() {
        for (batch, m, k, n) in [
            (1, 1, 1, 1),
            (1, 0, 3, 4),
            (0, 2, 3, 4),
            (1, 3, 0, 4),
            (1, 17, 33, 9),
            (3, 5, 7, 11),
            (1, 200, 600, 300),
            (40, 20, 31, 40),
            (2, 1, 515, 33),
            (1, 70, 300, 1),
        ] {
            let shape = MatmulShape { batch, m, k, n };
            let row_major = MatrixStrides::row_major;
            for dtype in [DType::BF16, DType::F16] {
                for a in [
                    row_major(m, k),
                    row_major(k, m).transposed(),
                    MatrixStrides { batch: 0, row: 2 * k + 3, col: 2 },
                ] {
                    for b in [
                        row_major(k, n),
                        row_major(n, k).transposed(),
                        MatrixStrides { batch: 0, row: 0, col: 1 },
                    ] {
                        check(dtype, shape, a, b);
                    }
                }
            }
        }
    }

    #[test]
    fn sums_are_rounded_once() {
        // The sum of 300 times 1 + 2^-7; with 8 bits of mantissa, it would stop growing at 256.
        let shape = MatmulShape { batch: 1, m: 1, k: 300, n: 1 };
        let (a, b) = (rounded(&[1.007_812_5; 300], DType::BF16), rounded(&[1.0; 300], DType::BF16));
        let (mut c, mut scratch) = ([0; 2], vec![0.0; short_matmul_scratch_len(&shape)]);
        let (a_s, b_s) = (MatrixStrides::row_major(1, 300), MatrixStrides::row_major(300, 1));
        short_matmul(DType::BF16, &shape, (&a, a_s), (&b, b_s), None, &mut c, &mut scratch, |_, _| {});
        assert_eq!(floats(&c, DType::BF16), [302.0]);
    }

    #[test]
    fn the_scratch_does_not_grow_with_the_matrices() {
        let square = |size| short_matmul_scratch_len(&MatmulShape { batch: 1, m: size, k: size, n: size });
        assert_eq!(square(4096), square(1 << 14));
        assert!(square(4096) * 4 <= 6 << 20);
    }
}
