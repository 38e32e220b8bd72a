//! The one inner loop of convolution: rows of a tile, gathered from anywhere, times a packed panel.
//!
//! `c[c_rows[i]][v] += sum over t of a[a_rows[i] + offset(t)] * b[t][v]`, where `t` runs through a nest of three
//! loops ([`Depth`]). With pixels as rows and weights as panel this is the forward pass without im2col; the
//! other two passes are the same product with the roles exchanged (see `conv_input`, `conv_weight`).
//!
//! With AVX-512 a tile of 12 rows and 32 columns keeps 24 accumulators in registers: per step two loads of the
//! panel and twelve broadcasts feed 24 multiply-adds.

use super::simd::{Kernel, Simd, dispatch};

/// Columns of a panel: `width` is [`NARROW`] or [`WIDE`], padded with zeros.
pub(super) const NARROW: usize = 16;
pub(super) const WIDE: usize = 32;
/// Rows that [`Tile::run`] takes at most.
pub(super) const ROWS: usize = 12;

/// The panel width for a matrix of `cols` columns.
pub(super) fn panel_width(cols: usize) -> usize {
    if cols <= NARROW { NARROW } else { WIDE }
}

/// Where the sum's terms are: three nested loops, outermost first, with the step of `a` in each. The panel's
/// rows are in the same order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Depth {
    pub(super) counts: [usize; 3],
    pub(super) strides: [usize; 3],
}

impl Depth {
    fn len(&self) -> usize {
        self.counts.iter().product()
    }

    /// The largest offset.
    fn reach(&self) -> usize {
        (0..3).map(|i| self.counts[i].saturating_sub(1) * self.strides[i]).sum()
    }
}

/// What a row of the tile starts from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// What `c` holds: accumulate.
    Accumulate,
    /// These values, `width` of them, for every row: a bias.
    From(&'a [f32]),
}

/// The operands that stay the same from tile to tile.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) a: &'a [f32],
    pub(super) depth: Depth,
    /// `depth.len()` rows of `width`.
    pub(super) panel: &'a [f32],
    pub(super) width: usize,
    pub(super) start: Start<'a>,
}

impl Tile<'_> {
    /// Computes the tile whose row `i` reads `a` from `a_rows[i]` and is `width` floats of `c` at `c_rows[i]`,
    /// which no two rows share. At most [`ROWS`] rows.
    #[inline]
    pub(super) fn run(&self, a_rows: &[usize], c: &mut [f32], c_rows: &[usize]) {
        if !a_rows.is_empty() {
            dispatch(self.check(a_rows, c, c_rows));
        }
    }

    /// Checks that every access of the tile is inside its slice.
    #[inline(always)]
    fn check<'a>(&'a self, a_rows: &'a [usize], c: &'a mut [f32], c_rows: &'a [usize]) -> Rows<'a> {
        assert!(self.width == NARROW || self.width == WIDE, "panel width {}", self.width);
        assert!(a_rows.len() <= ROWS && a_rows.len() == c_rows.len(), "tile of {} rows", a_rows.len());
        assert!(self.panel.len() >= self.depth.len() * self.width, "panel of {}", self.panel.len());
        if let Start::From(row) = self.start {
            assert!(row.len() >= self.width, "start of {} where {} are read", row.len(), self.width);
        }
        let a_max = a_rows.iter().fold(0, |max, &at| max.max(at)) + self.depth.reach();
        let c_max = c_rows.iter().fold(0, |max, &at| max.max(at)) + self.width;
        assert!(a_max < self.a.len() || self.depth.len() == 0, "tile reads {a_max} of {}", self.a.len());
        assert!(c_max <= c.len(), "tile writes to {c_max} of {}", c.len());
        Rows { tile: self, a_rows, c, c_rows }
    }
}

/// A checked call of [`Tile::run`].
struct Rows<'a> {
    tile: &'a Tile<'a>,
    a_rows: &'a [usize],
    c: &'a mut [f32],
    c_rows: &'a [usize],
}

impl Kernel for Rows<'_> {
    /// Cuts the tile to what fits this processor's registers: 12 x 2 vectors in 32 of them, 4 x 2 in 16.
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let vectors = self.tile.width / S::LANES;
        match (S::LANES, vectors) {
            (16, 1) => self.fit::<S, 1>(0),
            (16, _) => self.fit::<S, 2>(0),
            _ => {
                let (a_rows, c_rows) = (self.a_rows, self.c_rows);
                for (a_rows, c_rows) in a_rows.chunks(4).zip(c_rows.chunks(4)) {
                    (self.a_rows, self.c_rows) = (a_rows, c_rows);
                    for column in (0..self.tile.width).step_by(2 * S::LANES) {
                        self.fit::<S, 2>(column);
                    }
                }
            }
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
    fn registers<S: Simd, const R: usize, const V: usize>(&mut self, column: usize) {
        let tile = self.tile;
        let Depth { counts, strides } = tile.depth;
        // Spare rows repeat row 0 in full: they compute and store the same values once more.
        let row = |rows: &[usize], i: usize| rows[if i < rows.len() { i } else { 0 }];
        // SAFETY: `Tile::run` checked all reaches, and `S` comes from `dispatch`.
        unsafe {
            let a: [*const f32; R] =
                std::array::from_fn(|i| tile.a.as_ptr().wrapping_add(row(self.a_rows, i)));
            let c: [*mut f32; R] =
                std::array::from_fn(|i| self.c.as_mut_ptr().add(row(self.c_rows, i) + column));
            let mut sums: [[S::Vector; V]; R] = std::array::from_fn(|i| {
                let from = match tile.start {
                    Start::Accumulate => c[i].cast_const(),
                    Start::From(row) => row.as_ptr().add(column),
                };
                std::array::from_fn(|v| S::load(from.add(v * S::LANES)))
            });
            let mut panel = tile.panel.as_ptr().add(column);
            for outer in 0..counts[0] {
                for middle in 0..counts[1] {
                    let mut at = outer * strides[0] + middle * strides[1];
                    for _ in 0..counts[2] {
                        let weights: [S::Vector; V] =
                            std::array::from_fn(|v| S::load(panel.add(v * S::LANES)));
                        for i in 0..R {
                            let x = S::splat(*a[i].add(at));
                            for (sum, &weights) in sums[i].iter_mut().zip(&weights) {
                                *sum = S::mul_add(x, weights, *sum);
                            }
                        }
                        at += strides[2];
                        panel = panel.wrapping_add(tile.width);
                    }
                }
            }
            for (to, sums) in c.into_iter().zip(sums) {
                for (v, sum) in sums.into_iter().enumerate() {
                    S::store(to.add(v * S::LANES), sum);
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

    #[test]
    fn any_number_of_rows_matches_the_reference() {
        let depth = Depth { counts: [3, 2, 5], strides: [40, 9, 2] };
        for width in [NARROW, WIDE] {
            let (a, panel, bias) = (random(300, 1), random(30 * width, 2), random(width, 3));
            for rows in 0..=ROWS {
                let a_rows: Vec<usize> = (0..rows).map(|i| i * 7 % 50).collect();
                let c_rows: Vec<usize> = (0..rows).map(|i| i * (width + 1)).collect();
                for start in [Start::Accumulate, Start::From(&bias)] {
                    let c = random(ROWS * (width + 1), 4);
                    let mut expected = c.clone();
                    for (&from, &to) in a_rows.iter().zip(&c_rows) {
                        for v in 0..width {
                            let mut sum = match start {
                                Start::Accumulate => c[to + v],
                                Start::From(row) => row[v],
                            };
                            for t in 0..30 {
                                let at = from + t / 10 * 40 + t / 5 % 2 * 9 + t % 5 * 2;
                                sum += a[at] * panel[t * width + v];
                            }
                            expected[to + v] = sum;
                        }
                    }
                    let tile = Tile { a: &a, depth, panel: &panel, width, start };
                    let mut found = c.clone();
                    tile.run(&a_rows, &mut found, &c_rows);
                    assert_close(&found, &expected, 1e-5);
                    for level in narrower_levels() {
                        let mut found = c.clone();
                        if rows > 0 {
                            // SAFETY: `narrower_levels` asked the processor.
                            unsafe { dispatch_at(level, tile.check(&a_rows, &mut found, &c_rows)) };
                            assert_close(&found, &expected, 1e-5);
                        }
                    }
                }
            }
        }
    }
}
