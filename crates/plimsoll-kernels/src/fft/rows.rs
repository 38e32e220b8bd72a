//! Reads rows into buffers, transforms them, and writes their results.
//!
//! A real row of even length `n` is transformed as `n / 2` complex numbers, each of two neighbouring elements: the spectra of the even and of
//! the odd elements are separated afterwards. A real row of odd length is transformed as complex numbers.

use super::plan::{Plan, Tables};
use super::roots::{Numbers, NumbersMut, fill_roots};
use crate::number::Float;
use crate::parallel::{Pieces, for_each_cut_with, scratch_workers};
use crate::simd::vectorize;

/// Rows that are transformed side by side.
pub(super) const LANES: usize = 8;
/// The complex numbers of all rows that are transformed side by side: two buffers of more do not fit in the first cache.
const MOST_NUMBERS: usize = 4096;

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

    fn lanes(self, plan: &Plan, rows: usize) -> usize {
        rows.min(MOST_NUMBERS / plan.buffer_len()).clamp(1, LANES)
    }
}

/// Floats of elements, with room for 64-bit alignment.
fn floats_of<T>(elements: usize) -> usize {
    (elements * size_of::<T>()).div_ceil(size_of::<f32>()).next_multiple_of(2)
}

/// The elements of the tables, and of one thread's two buffers.
fn scratch_parts(sizes: Sizes, plan: &Plan, rows: usize) -> [usize; 2] {
    [2 * sizes.n + plan.tables_len(), 4 * plan.buffer_len() * sizes.lanes(plan, rows)]
}

/// The scratch memory of [`transform`].
pub fn fft_scratch_len<T>(transform: Transform, n: usize, rows: usize) -> usize {
    let sizes = Sizes { transform, n };
    let plan = sizes.plan();
    let [tables, buffers] = scratch_parts(sizes, &plan, rows);
    let workers = scratch_workers(rows.div_ceil(sizes.lanes(&plan, rows)));
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
    let lanes_of_all = sizes.lanes(&plan, rows);
    let cut = Pieces::of(out, lanes_of_all * written);
    for_each_cut_with(
        rows.div_ceil(lanes_of_all),
        cut,
        scratch,
        floats_of::<T>(buffers),
        |chunk, out, scratch| {
            let lanes = out.len() / written;
            let x = &x[chunk * lanes_of_all * read..][..lanes * read];
            let mut memory = bytemuck::cast_slice_mut::<f32, T>(scratch);
            let len = plan.buffer_len() * lanes;
            let buffers = [NumbersMut::take(&mut memory, len), NumbersMut::take(&mut memory, len)];
            let block = Block { sizes, lanes, factors, plan: &plan, roots };
            block.run(tables, buffers, x, out);
        },
    );
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
        vectorize(
            #[inline(always)]
            || self.load(rows, &mut x),
        );
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
        vectorize(
            #[inline(always)]
            || self.store(found.read(), out),
        );
    }

    /// What a number of half of the spectrum is multiplied by.
    fn factor(&self, k: usize) -> T {
        let stands_for_two = k > 0 && 2 * k < self.sizes.n;
        T::of(if stands_for_two { self.factors.all * self.factors.doubled } else { self.factors.all })
    }

    /// A number of a half spectrum, times `by`.
    #[inline(always)]
    fn number(&self, rows: &[T], lane: usize, k: usize, by: T) -> (T, T) {
        let at = lane * self.sizes.widths()[0] + 2 * k;
        let im = if k == 0 || 2 * k == self.sizes.n { T::of(0.0) } else { rows[at + 1] * by };
        (rows[at] * by, im)
    }

    #[inline(always)]
    fn load(&self, rows: &[T], x: &mut NumbersMut<'_, T>) {
        let (n, lanes, [width, _]) = (self.sizes.n, self.lanes, self.sizes.widths());
        match self.sizes.transform {
            Transform::FromReal if !self.sizes.is_halved() => {
                fill(
                    x,
                    lanes,
                    0..n,
                    #[inline(always)]
                    |lane, at| (rows[lane * width + at], T::of(0.0)),
                );
            }
            Transform::Forward | Transform::Backward | Transform::FromReal => {
                fill(
                    x,
                    lanes,
                    0..width / 2,
                    #[inline(always)]
                    |lane, at| {
                        let at = lane * width + 2 * at;
                        (rows[at], rows[at + 1])
                    },
                );
            }
            Transform::ToReal => {
                if self.sizes.is_halved() {
                    let half = n / 2;
                    let parts = x.re.chunks_exact_mut(lanes).zip(x.im.chunks_exact_mut(lanes)).take(half);
                    for (k, (re, im)) in parts.enumerate() {
                        let (by, other) = (self.factor(k), self.factor(half - k));
                        let (cos, sin) = (self.roots.re[k], -self.roots.im[k]);
                        for (lane, (re, im)) in re.iter_mut().zip(im).enumerate() {
                            let ((a, b), (c, d)) =
                                (self.number(rows, lane, k, by), self.number(rows, lane, half - k, other));
                            // The sum with the conjugate, and the difference times `i` and the conjugate root.
                            let (sum, difference) = ((a + c, b - d), (a - c, b + d));
                            *re = sum.0 - (difference.0 * sin + difference.1 * cos);
                            *im = sum.1 + (difference.0 * cos - difference.1 * sin);
                        }
                    }
                } else {
                    fill(
                        x,
                        lanes,
                        0..n / 2 + 1,
                        #[inline(always)]
                        |lane, k| self.number(rows, lane, k, self.factor(k)),
                    );
                    fill(
                        x,
                        lanes,
                        n / 2 + 1..n,
                        #[inline(always)]
                        |lane, at| {
                            let (re, im) = self.number(rows, lane, n - at, self.factor(n - at));
                            (re, -im)
                        },
                    );
                }
            }
        }
    }

    #[inline(always)]
    fn store(&self, found: Numbers<'_, T>, out: &mut [T]) {
        let (lanes, [_, width]) = (self.lanes, self.sizes.widths());
        let all = T::of(self.factors.all);
        match self.sizes.transform {
            Transform::Forward | Transform::Backward => write(
                out,
                lanes,
                width,
                #[inline(always)]
                |lane, at| {
                    let (re, im) = found.at(at * lanes + lane);
                    (re * all, im * all)
                },
            ),
            // The numbers were multiplied when they were read.
            Transform::ToReal if self.sizes.is_halved() => {
                write(
                    out,
                    lanes,
                    width,
                    #[inline(always)]
                    |lane, at| found.at(at * lanes + lane),
                );
            }
            Transform::ToReal => {
                for (lane, row) in out.chunks_exact_mut(width).enumerate() {
                    row.iter_mut().enumerate().for_each(|(at, out)| *out = found.at(at * lanes + lane).0);
                }
            }
            Transform::FromReal if self.sizes.is_halved() => {
                let half = self.sizes.n / 2;
                for k in 0..=half {
                    // The last root is half a turn.
                    let (cos, sin) = (self.roots.re[k], self.roots.im[k]);
                    let by = self.factor(k) * T::of(0.5);
                    let (own, other) =
                        if k == half { (0, 0) } else { (k, if k == 0 { 0 } else { half - k }) };
                    for lane in 0..lanes {
                        let ((a, b), (c, d)) = (found.at(own * lanes + lane), found.at(other * lanes + lane));
                        // Twice the spectra of the even elements, and of the odd ones.
                        let (even, odd) = ((a + c, b - d), (b + d, c - a));
                        let pair = &mut out[lane * width + 2 * k..][..2];
                        pair[0] = (even.0 + odd.0 * cos - odd.1 * sin) * by;
                        pair[1] = (even.1 + odd.0 * sin + odd.1 * cos) * by;
                    }
                }
            }
            Transform::FromReal => write(
                out,
                lanes,
                width,
                #[inline(always)]
                |lane, k| {
                    let ((re, im), by) = (found.at(k * lanes + lane), self.factor(k));
                    // The sum of real numbers is real, whatever was rounded.
                    (re * by, if k == 0 { T::of(0.0) } else { im * by })
                },
            ),
        }
    }
}

/// Sets some numbers of all rows in a buffer.
#[inline(always)]
fn fill<T: Float>(
    x: &mut NumbersMut<'_, T>,
    lanes: usize,
    range: std::ops::Range<usize>,
    number: impl Fn(usize, usize) -> (T, T),
) {
    let parts = x.re.chunks_exact_mut(lanes).zip(x.im.chunks_exact_mut(lanes)).enumerate();
    for (at, (re, im)) in parts.skip(range.start).take(range.len()) {
        for (lane, (re, im)) in re.iter_mut().zip(im).enumerate() {
            (*re, *im) = number(lane, at);
        }
    }
}

/// Writes all numbers of rows of `width` elements.
#[inline(always)]
fn write<T: Float>(out: &mut [T], lanes: usize, width: usize, number: impl Fn(usize, usize) -> (T, T)) {
    for at in 0..width / 2 {
        for lane in 0..lanes {
            let pair = &mut out[lane * width + 2 * at..][..2];
            (pair[0], pair[1]) = number(lane, at);
        }
    }
}
