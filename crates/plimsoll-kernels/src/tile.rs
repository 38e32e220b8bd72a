//! The inner loop of convolution: rows of a tile, gathered from any addresses, times rows of `width` columns.
//!
//! `c[c_rows[i]][v] += sum over t of a[a_rows[i] + a_offset(t)] * b[b_offset(t)][v]`, where `t` runs through a
//! nest of three loops ([`Depth`]). With pixels as rows and a packed panel of weights as `b` this is the
//! forward pass without im2col; the other passes are the same product with the roles exchanged (see
//! `convolution/conv`).
//!
//! With AVX-512 a tile of 12 rows and 32 columns keeps 24 accumulators in registers: in each step, two loads of `b` and
//! twelve broadcasts of `a` feed 24 multiply-adds.

use super::simd::{Kernel, Simd, dispatch, dispatch_pairs};

/// A tile has `width` columns, from [`NARROW`] to [`WIDE`]. For widths in between, registers overlap and their common
/// columns are computed twice, which [`Start::Accumulate`] forbids.
pub(super) const NARROW: usize = 16;
pub(super) const WIDE: usize = 32;
/// The maximum number of rows for [`Tile::run`].
pub(super) const ROWS: usize = 12;

/// The panel width for a matrix of `cols` columns.
pub(super) fn panel_width(cols: usize) -> usize {
    if cols <= NARROW { NARROW } else { WIDE }
}

/// The positions of the sum's terms: three nested loops, outermost first, each with its steps in `a` and `b`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depth {
    pub(super) counts: [usize; 3],
    pub(super) a_strides: [usize; 3],
    pub(super) b_strides: [usize; 3],
}

impl Depth {
    /// For a packed panel, in which `b`'s rows of `width` are contiguous.
    pub(super) fn packed(counts: [usize; 3], a_strides: [usize; 3], width: usize) -> Self {
        Self { counts, a_strides, b_strides: [counts[1] * counts[2] * width, counts[2] * width, width] }
    }

    fn is_empty(&self) -> bool {
        self.counts.contains(&0)
    }

    /// The largest offsets in `a` and `b`.
    fn reach(&self) -> [usize; 2] {
        // Called for every tile, so it is written out: an iterator's sum would be a separate call.
        let [outer, middle, inner] = self.counts.map(|count| count.saturating_sub(1));
        [self.a_strides, self.b_strides].map(|[a, b, c]| outer * a + middle * b + inner * c)
    }
}

/// The initial values of a row of the tile.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// The values in `c`: the products are added to them.
    Accumulate,
    /// The same `width` values for every row: a bias of the columns.
    Columns(&'a [f32]),
    /// One value for each row, in all its columns: a bias of the rows.
    Rows(&'a [f32]),
}

/// The operands that stay the same from tile to tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    pub(super) depth: Depth,
    pub(super) width: usize,
    pub(super) start: Start<'a>,
}

impl Tile<'_> {
    /// Computes a tile of at most [`ROWS`] rows. Row `i` reads `a` from `a_rows[i]` and writes `width` floats of `c` at
    /// `c_rows[i]`, which no two rows share.
    #[inline]
    pub(super) fn run(&self, a_rows: &[usize], c: &mut [f32], c_rows: &[usize]) {
        if !a_rows.is_empty() {
            dispatch(self.check(a_rows, c, c_rows));
        }
    }

    /// [`Tile::run`] for any number of rows at equal distances: row `i` reads `a` from `i * a_row` and writes `c` at `i *
    /// c_row`.
    pub(super) fn run_strided(&self, rows: usize, a_row: usize, c: &mut [f32], c_row: usize) {
        if let Some(strided) = self.strided(rows, a_row, c, c_row) {
            dispatch(strided);
        }
    }

    /// [`Tile::run_strided`] for `a` and `b` with a pair of `bf16` in each float; a term is the sum of two products.
    pub(super) fn run_pairs(&self, rows: usize, a_row: usize, c: &mut [f32], c_row: usize) {
        if let Some(strided) = self.strided(rows, a_row, c, c_row) {
            dispatch_pairs(strided);
        }
    }

    fn strided<'a>(
        &'a self,
        rows: usize,
        a_row: usize,
        c: &'a mut [f32],
        c_row: usize,
    ) -> Option<Strided<'a>> {
        let last = rows.checked_sub(1)?;
        // If the first and the last row are inside, so are the rows between them.
        let _ = self.check(&[0, last * a_row], c, &[0, last * c_row]);
        assert!(!matches!(self.start, Start::Rows(_)), "rows at equal distances start from columns");
        Some(Strided { tile: self, rows, a_row, c, c_row })
    }

    /// Checks that every access of the tile is inside its slice.
    #[inline(always)]
    fn check<'a>(&'a self, a_rows: &'a [usize], c: &'a mut [f32], c_rows: &'a [usize]) -> Rows<'a> {
        let accumulates = matches!(self.start, Start::Accumulate);
        let in_between = NARROW < self.width && self.width < WIDE && !accumulates;
        assert!(self.width == NARROW || self.width == WIDE || in_between, "tile width {}", self.width);
        assert!(a_rows.len() <= ROWS && a_rows.len() == c_rows.len(), "tile of {} rows", a_rows.len());
        let (start, reads) = match self.start {
            Start::Accumulate => (0, 0),
            Start::Columns(row) => (row.len(), self.width),
            Start::Rows(column) => (column.len(), a_rows.len()),
        };
        assert!(start >= reads, "tile starts from {start} values where {reads} are read");
        let largest = |rows: &[usize]| rows.iter().fold(0, |max, &at| max.max(at));
        let [a_reach, b_reach] = self.depth.reach();
        let (a_end, b_end) = (largest(a_rows) + a_reach + 1, b_reach + self.width);
        let nothing = self.depth.is_empty();
        assert!(nothing || a_end <= self.a.len(), "tile reads a to {a_end} of {}", self.a.len());
        assert!(nothing || b_end <= self.b.len(), "tile reads b to {b_end} of {}", self.b.len());
        let c_end = largest(c_rows) + self.width;
        assert!(c_end <= c.len(), "tile writes to {c_end} of {}", c.len());
        Rows { tile: self, start: self.start, a_rows, c, c_rows }
    }
}

/// A checked call of [`Tile::run`].
struct Rows<'a> {
    tile: &'a Tile<'a>,
    start: Start<'a>,
    a_rows: &'a [usize],
    c: &'a mut [f32],
    c_rows: &'a [usize],
}

impl Kernel for Rows<'_> {
    /// Splits the tile into parts that fit this processor's registers: 12 x 2 vectors in 32 of them, 4 x 2 in 16.
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let width = self.tile.width;
        match (S::LANES, width) {
            (16, NARROW) => self.fit::<S, 1>(0),
            (16, _) => self.fit::<S, 2>(0),
            _ => {
                let (a_rows, c_rows) = (self.a_rows, self.c_rows);
                for (a_rows, c_rows) in a_rows.chunks(4).zip(c_rows.chunks(4)) {
                    (self.a_rows, self.c_rows) = (a_rows, c_rows);
                    for column in (0..width).step_by(2 * S::LANES) {
                        self.fit::<S, 2>(column.min(width - 2 * S::LANES));
                    }
                    if let Start::Rows(column) = &mut self.start {
                        *column = &column[a_rows.len()..];
                    }
                }
            }
        }
    }
}

/// A checked call of [`Tile::run_strided`].
struct Strided<'a> {
    tile: &'a Tile<'a>,
    rows: usize,
    a_row: usize,
    c: &'a mut [f32],
    c_row: usize,
}

impl Kernel for Strided<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for first in (0..self.rows).step_by(ROWS) {
            let count = ROWS.min(self.rows - first);
            let (mut a_rows, mut c_rows) = ([0; ROWS], [0; ROWS]);
            for i in 0..ROWS {
                (a_rows[i], c_rows[i]) = ((first + i) * self.a_row, (first + i) * self.c_row);
            }
            let (a_rows, c_rows) = (&a_rows[..count], &c_rows[..count]);
            Rows { tile: self.tile, start: self.tile.start, a_rows, c: &mut *self.c, c_rows }.run::<S>();
        }
    }
}

impl Rows<'_> {
    /// Picks the smallest register tile with enough rows; spare ones repeat the first row (see `rows`).
    #[inline(always)]
    fn fit<S: Simd, const VECTORS: usize>(&mut self, column: usize) {
        match self.a_rows.len() {
            ..=2 => self.registers::<S, 2, VECTORS>(column),
            3..=4 => self.registers::<S, 4, VECTORS>(column),
            5..=8 if S::LANES == 16 => self.registers::<S, 8, VECTORS>(column),
            _ if S::LANES == 16 => self.registers::<S, 12, VECTORS>(column),
            rows => unreachable!("{rows} rows for {} lanes", S::LANES),
        }
    }

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "short plain loops are unrolled")]
    fn registers<S: Simd, const R: usize, const V: usize>(&mut self, column: usize) {
        let tile = self.tile;
        let Depth { counts, a_strides, b_strides } = tile.depth;
        // Spare rows repeat row 0 in full: they compute and store the same values once more.
        let spare = |i: usize| if i < self.a_rows.len() { i } else { 0 };
        // SAFETY: `Tile::run` checked all offsets, and `S` comes from `dispatch`.
        unsafe {
            // Short plain loops: they are unrolled, and closures that are not inlined would not use the wide registers.
            let mut a = [tile.a.as_ptr(); R];
            // One pointer for all rows: each `as_mut_ptr` is a new borrow, which would invalidate earlier pointers.
            let mut c = [self.c.as_mut_ptr(); R];
            for i in 0..R {
                a[i] = a[i].wrapping_add(self.a_rows[spare(i)]);
                c[i] = c[i].add(self.c_rows[spare(i)] + column);
            }
            let last = (tile.width - column).min(V * S::LANES) - S::LANES;
            let at = |v: usize| if v == 0 { 0 } else { last };
            let mut sums = [[S::splat(0.0); V]; R];
            match self.start {
                Start::Accumulate => {
                    for i in 0..R {
                        for v in 0..V {
                            sums[i][v] = S::load(c[i].add(at(v)));
                        }
                    }
                }
                Start::Columns(row) => {
                    for v in 0..V {
                        let start = S::load(row.as_ptr().add(column + at(v)));
                        for i in 0..R {
                            sums[i][v] = start;
                        }
                    }
                }
                Start::Rows(column) => {
                    for i in 0..R {
                        sums[i] = [S::splat(*column.as_ptr().add(spare(i))); V];
                    }
                }
            }
            let b = tile.b.as_ptr().wrapping_add(column);
            for outer in 0..counts[0] {
                for middle in 0..counts[1] {
                    let mut a_at = outer * a_strides[0] + middle * a_strides[1];
                    let mut b = b.wrapping_add(outer * b_strides[0] + middle * b_strides[1]);
                    for _ in 0..counts[2] {
                        let mut columns = [S::splat(0.0); V];
                        for v in 0..V {
                            columns[v] = S::load(b.add(at(v)));
                        }
                        for i in 0..R {
                            let x = S::splat(*a[i].add(a_at));
                            for v in 0..V {
                                sums[i][v] = S::mul_add(x, columns[v], sums[i][v]);
                            }
                        }
                        a_at += a_strides[2];
                        b = b.wrapping_add(b_strides[2]);
                    }
                }
            }
            for i in 0..R {
                for v in 0..V {
                    S::store(c[i].add(at(v)), sums[i][v]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Level, dispatch_at};
    use super::super::testing::*;
    use super::*;

    fn narrower_levels() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return vec![Level::Portable, Level::Avx2];
        }
        vec![Level::Portable]
    }

    /// Compares the tile with sums computed one by one, for every start and at every level.
    fn check(depth: Depth, width: usize, rows: usize) {
        let [_, b_reach] = depth.reach();
        let (a, b, bias) = (random(300, 1), random(b_reach + width, 2), random(width.max(ROWS), 3));
        let a_rows: Vec<usize> = (0..rows).map(|i| i * 7 % 50).collect();
        let c_rows: Vec<usize> = (0..rows).map(|i| i * (width + 1)).collect();
        let at =
            |strides: [usize; 3], [i, j, k]: [usize; 3]| i * strides[0] + j * strides[1] + k * strides[2];
        let [outer, middle, inner] = depth.counts;
        let terms: Vec<[usize; 2]> = (0..outer * middle * inner)
            .map(|t| [t / inner / middle, t / inner % middle, t % inner])
            .map(|index| [at(depth.a_strides, index), at(depth.b_strides, index)])
            .collect();
        let starts = [Start::Columns(&bias), Start::Rows(&bias), Start::Accumulate];
        for start in starts.into_iter().take(if width == NARROW || width == WIDE { 3 } else { 2 }) {
            let c = random(ROWS * (width + 1), 4);
            let mut expected = c.clone();
            for (i, (&from, &to)) in a_rows.iter().zip(&c_rows).enumerate() {
                for v in 0..width {
                    let first = match start {
                        Start::Accumulate => c[to + v],
                        Start::Columns(row) => row[v],
                        Start::Rows(values) => values[i],
                    };
                    expected[to + v] = terms.iter().fold(first, |sum, [x, y]| sum + a[from + x] * b[y + v]);
                }
            }
            let tile = Tile { a: &a, b: &b, depth, width, start };
            let mut found = c.clone();
            tile.run(&a_rows, &mut found, &c_rows);
            assert_close(&found, &expected, 1e-5);
            for level in narrower_levels().into_iter().filter(|_| rows > 0) {
                let mut found = c.clone();
                // SAFETY: `narrower_levels` checked that the processor supports the level.
                unsafe { dispatch_at(level, tile.check(&a_rows, &mut found, &c_rows)) };
                assert_close(&found, &expected, 1e-5);
            }
        }
    }

    #[test]
    fn any_number_of_rows_matches_the_reference() {
        for (width, rows) in [NARROW, WIDE].into_iter().flat_map(|w| (0..=ROWS).map(move |r| (w, r))) {
            check(Depth::packed([3, 2, 5], [40, 9, 2], width), width, rows);
        }
    }

    #[test]
    fn overlapping_columns_are_computed_alike() {
        for (width, rows) in (NARROW..=WIDE).flat_map(|w| [1, 4, ROWS].map(move |r| (w, r))) {
            check(Depth { counts: [3, 2, 5], a_strides: [40, 9, 2], b_strides: [31, 7, 1] }, width, rows);
        }
    }
}
