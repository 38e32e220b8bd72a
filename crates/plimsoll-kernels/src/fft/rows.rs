//! Reads rows into buffers, transforms them, and writes their results.
//!
//! A real row of even length `n` is transformed as `n / 2` complex numbers, each of two neighbouring elements: the spectra of the even and of
//! the odd elements are separated afterwards. A real row of odd length is transformed as complex numbers.

use super::plan::{Plan, Tables};
use super::roots::{Numbers, NumbersMut, fill_roots};
use crate::number::Float;
use crate::parallel::{Pieces, for_each_cut_with, scratch_workers};

/// Rows that are transformed side by side.
pub(super) const LANES: usize = 8;
/// The longest rows of which several are transformed side by side: others do not fit in a cache.
const LONGEST_LANES: usize = 4096;

/// The rows that a transform reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// Complex to complex: `Σ x[j] · e^(-2πi jk/n)`.
    Forward,
    /// Complex to complex, with the other sign of the exponent, and without a division by `n`.
    Backward,
    /// Real to half of the spectrum, as [`Transform::Forward`].
    FromReal,
    /// Half of the spectrum to real, as [`Transform::Backward`]. Ignores the imaginary parts of the first number, and of the last one if
    /// `n` is even: they are zero in the spectrum of a real row.
    ToReal,
}

/// Numbers that results are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// All of them.
    pub all: f64,
    /// For real rows: those numbers of the half spectrum that stand for two of the whole one.
    pub doubled: f64,
}

/// The sizes of a call.
#[derive(Clone, Copy)]
struct Sizes {
    transform: Transform,
    n: usize,
}

impl Sizes {
    /// The elements of a row that is read, and of one that is written.
    fn widths(self) -> [usize; 2] {
        let half = 2 * (self.n / 2 + 1);
        match self.transform {
            Transform::Forward | Transform::Backward => [2 * self.n; 2],
            Transform::FromReal => [self.n, half],
            Transform::ToReal => [half, self.n],
        }
    }

    /// Whether a row is transformed as half as many complex numbers.
    fn is_halved(self) -> bool {
        matches!(self.transform, Transform::FromReal | Transform::ToReal) && self.n.is_multiple_of(2)
    }

    fn plan(self) -> Plan {
        Plan::of(if self.is_halved() { self.n / 2 } else { self.n })
    }

    fn lanes(self, rows: usize) -> usize {
        if self.n > LONGEST_LANES { 1 } else { rows.clamp(1, LANES) }
    }
}

/// Floats of elements, with room for 64-bit alignment.
fn floats_of<T>(elements: usize) -> usize {
    (elements * size_of::<T>()).div_ceil(size_of::<f32>()).next_multiple_of(2)
}

/// The elements of the tables, and of one thread's two buffers.
fn scratch_parts(sizes: Sizes, plan: &Plan, rows: usize) -> [usize; 2] {
    [2 * sizes.n + plan.tables_len(), 4 * plan.buffer_len() * sizes.lanes(rows)]
}

/// The scratch memory of [`transform`].
pub fn fft_scratch_len<T>(transform: Transform, n: usize, rows: usize) -> usize {
    let sizes = Sizes { transform, n };
    let [tables, buffers] = scratch_parts(sizes, &sizes.plan(), rows);
    let workers = scratch_workers(rows.div_ceil(sizes.lanes(rows)));
    floats_of::<T>(tables) + workers * floats_of::<T>(buffers)
}

/// Transforms rows of length `n`, which must not be 0.
pub fn transform<T: Float>(
    transform: Transform,
    n: usize,
    factors: Factors,
    x: &[T],
    out: &mut [T],
    scratch: &mut [f32],
) {
    let sizes = Sizes { transform, n };
    let ([read, written], plan) = (sizes.widths(), sizes.plan());
    let rows = out.len() / written;
    if rows == 0 {
        return;
    }
    let [tables, buffers] = scratch_parts(sizes, &plan, rows);
    let (table_memory, scratch) = scratch.split_at_mut(floats_of::<T>(tables));
    let mut memory = bytemuck::cast_slice_mut::<f32, T>(table_memory);
    let mut roots = NumbersMut::take(&mut memory, n);
    fill_roots(&mut roots);
    let roots = roots.into_read();
    let tables =
        plan.tables(roots, &mut memory, bytemuck::cast_slice_mut(&mut scratch[..floats_of::<T>(buffers)]));
    let lanes = sizes.lanes(rows);
    let cut = Pieces::of(out, lanes * written);
    for_each_cut_with(rows.div_ceil(lanes), cut, scratch, floats_of::<T>(buffers), |chunk, out, scratch| {
        let lanes = out.len() / written;
        let x = &x[chunk * sizes.lanes(rows) * read..][..lanes * read];
        let mut memory = bytemuck::cast_slice_mut::<f32, T>(scratch);
        let len = plan.buffer_len() * lanes;
        let buffers = [NumbersMut::take(&mut memory, len), NumbersMut::take(&mut memory, len)];
        let block = Block { sizes, lanes, factors, plan: &plan, roots };
        block.run(tables, buffers, x, out);
    });
}

/// Rows that are transformed side by side.
struct Block<'a, T> {
    sizes: Sizes,
    lanes: usize,
    factors: Factors,
    plan: &'a Plan,
    /// The roots of the rows' length.
    roots: Numbers<'a, T>,
}

impl<T: Float> Block<'_, T> {
    fn run<'b>(
        &self,
        tables: Tables<'_, T>,
        [mut x, mut y]: [NumbersMut<'b, T>; 2],
        rows: &[T],
        out: &mut [T],
    ) {
        let [read, written] = self.sizes.widths();
        for (lane, row) in rows.chunks_exact(read).enumerate() {
            self.load(row, lane, &mut x);
        }
        // Backward by the forward transform: with the two parts exchanged, before and after.
        let exchanged = matches!(self.sizes.transform, Transform::Backward | Transform::ToReal);
        let exchange = |numbers: &mut NumbersMut<'b, T>| {
            if exchanged {
                std::mem::swap(&mut numbers.re, &mut numbers.im);
            }
        };
        exchange(&mut x);
        exchange(&mut y);
        let mut found = self.plan.run(tables, self.lanes, x, y);
        exchange(&mut found);
        for (lane, row) in out.chunks_exact_mut(written).enumerate() {
            self.store(found.read(), lane, row);
        }
    }

    /// What a number of half of the spectrum is multiplied by, if its neighbours on the circle are or are not among the rest of it.
    fn factor(&self, k: usize) -> T {
        let stands_for_two = k > 0 && 2 * k < self.sizes.n;
        T::of(if stands_for_two { self.factors.all * self.factors.doubled } else { self.factors.all })
    }

    fn load(&self, row: &[T], lane: usize, x: &mut NumbersMut<'_, T>) {
        let (n, lanes) = (self.sizes.n, self.lanes);
        let mut set = |at: usize, (re, im): (T, T)| {
            (x.re[at * lanes + lane], x.im[at * lanes + lane]) = (re, im);
        };
        match self.sizes.transform {
            Transform::FromReal if !self.sizes.is_halved() => {
                row.iter().enumerate().for_each(|(at, &re)| set(at, (re, T::of(0.0))));
            }
            Transform::Forward | Transform::Backward | Transform::FromReal => {
                row.chunks_exact(2).enumerate().for_each(|(at, pair)| set(at, (pair[0], pair[1])));
            }
            Transform::ToReal => {
                let number = |k: usize| {
                    let by = self.factor(k);
                    let im = if k == 0 || 2 * k == n { T::of(0.0) } else { row[2 * k + 1] * by };
                    (row[2 * k] * by, im)
                };
                if self.sizes.is_halved() {
                    let half = n / 2;
                    for k in 0..half {
                        let ((a, b), (c, d)) = (number(k), number(half - k));
                        // The sum with the conjugate, and the difference times `i` and the conjugate root.
                        let (sum, difference) = ((a + c, b - d), (a - c, b + d));
                        let (cos, sin) = (self.roots.re[k], -self.roots.im[k]);
                        let re = difference.0 * cos - difference.1 * sin;
                        let im = difference.0 * sin + difference.1 * cos;
                        set(k, (sum.0 - im, sum.1 + re));
                    }
                } else {
                    set(0, number(0));
                    for k in 1..=n / 2 {
                        let (re, im) = number(k);
                        set(k, (re, im));
                        set(n - k, (re, -im));
                    }
                }
            }
        }
    }

    fn store(&self, found: Numbers<'_, T>, lane: usize, out: &mut [T]) {
        let lanes = self.lanes;
        let number = |at: usize| (found.re[at * lanes + lane], found.im[at * lanes + lane]);
        let all = T::of(self.factors.all);
        match self.sizes.transform {
            Transform::Forward | Transform::Backward => {
                for (at, pair) in out.chunks_exact_mut(2).enumerate() {
                    let (re, im) = number(at);
                    (pair[0], pair[1]) = (re * all, im * all);
                }
            }
            // The numbers were multiplied when they were read.
            Transform::ToReal if self.sizes.is_halved() => {
                for (at, pair) in out.chunks_exact_mut(2).enumerate() {
                    (pair[0], pair[1]) = number(at);
                }
            }
            Transform::ToReal => out.iter_mut().enumerate().for_each(|(at, out)| *out = number(at).0),
            Transform::FromReal if self.sizes.is_halved() => {
                let half = self.sizes.n / 2;
                for (k, pair) in out.chunks_exact_mut(2).enumerate() {
                    let ((a, b), (c, d)) = (number(k % half), number((half - k) % half));
                    // Of the even elements, and of the odd ones.
                    let two = T::of(2.0);
                    let (even, odd) = (((a + c) / two, (b - d) / two), ((b + d) / two, (c - a) / two));
                    // The last root is half a turn.
                    let (cos, sin) = (self.roots.re[k], self.roots.im[k]);
                    let by = self.factor(k);
                    pair[0] = (even.0 + odd.0 * cos - odd.1 * sin) * by;
                    pair[1] = (even.1 + odd.0 * sin + odd.1 * cos) * by;
                }
            }
            Transform::FromReal => {
                for (k, pair) in out.chunks_exact_mut(2).enumerate() {
                    let ((re, im), by) = (number(k), self.factor(k));
                    (pair[0], pair[1]) = (re * by, im * by);
                }
            }
        }
    }
}
