//! Householder QR in blocks of columns, with the signs of LAPACK's `geqrf`.

use super::matrices::{Part, STRIP, for_each_matrix, product, scratch_len, subtract, subtract_scaled};
use crate::number::Float;
use crate::parallel::Pieces;
use crate::simd::vectorize;

/// The number of reflections that are applied together.
const PANEL: usize = 32;

/// The scratch memory of [`qr`].
pub fn qr_scratch_len<T>(count: usize, m: usize, n: usize) -> usize {
    scratch_len::<T>(count, m.max(n), scratch_of_one(m, n))
}

/// The matrix with its reflections, their factors, and what applies a panel of them.
fn scratch_of_one(m: usize, n: usize) -> usize {
    m * n + m.min(n) + panel_lens(m, n).iter().sum::<usize>()
}

/// `a = q · r` of `count` matrices `[m, n]`, with `q` of `[m, k]` and `r` of `[k, n]`, where `k` is the smaller size.
pub fn qr<T: Float>(
    count: usize,
    a: &[T],
    (m, n): (usize, usize),
    (q, r): (&mut [T], &mut [T]),
    scratch: &mut [f32],
) {
    let k = m.min(n);
    if k == 0 {
        return;
    }
    let cut = (Pieces::of(q, m * k), Pieces::of(r, k * n));
    let elements = scratch_of_one(m, n);
    let done = for_each_matrix::<T, _>(count, cut, scratch, elements, |matrix, (q, r), scratch| {
        let (factored, rest) = scratch.split_at_mut(m * n);
        let (factors, rest) = rest.split_at_mut(k);
        let mut panel = PanelScratch::of(rest, m, n);
        factored.copy_from_slice(&a[matrix * m * n..][..m * n]);
        for first in (0..k).step_by(PANEL) {
            let end = (first + PANEL).min(k);
            vectorize(
                #[inline(always)]
                || reflect_columns(factored, (m, n), (first, end), factors, panel.sums),
            );
            if end < n {
                panel.read(factored, (m, n), (first, end), factors);
                panel.apply(&mut factored[first * n..], n, (end, n), true);
            }
        }
        for (i, (out, row)) in r.chunks_exact_mut(n).zip(factored.chunks_exact(n)).enumerate() {
            out[..i].fill(T::of(0.0));
            out[i..].copy_from_slice(&row[i..]);
        }
        q.fill(T::of(0.0));
        q.iter_mut().step_by(k + 1).take(k).for_each(|x| *x = T::of(1.0));
        for first in (0..k).step_by(PANEL).rev() {
            let end = (first + PANEL).min(k);
            panel.read(factored, (m, n), (first, end), factors);
            panel.apply(&mut q[first * k..], k, (first, k), false);
        }
        Ok(())
    });
    debug_assert!(done.is_ok(), "every matrix has a QR factorization");
}

/// Computes the reflections of the columns from `first` to `end`, and applies them to these columns.
#[inline(always)]
fn reflect_columns<T: Float>(
    a: &mut [T],
    (m, n): (usize, usize),
    (first, end): (usize, usize),
    factors: &mut [T],
    sums: &mut [T],
) {
    for at in first..end {
        let below = norm((at + 1..m).map(|row| a[row * n + at].wide()));
        let head = a[at * n + at].wide();
        if below == 0.0 {
            factors[at] = T::of(0.0);
            continue;
        }
        let length = -head.hypot(below).copysign(head);
        factors[at] = T::of((length - head) / length);
        let scale = head - length;
        for row in at + 1..m {
            a[row * n + at] = T::of(a[row * n + at].wide() / scale);
        }
        let (above, rows) = a.split_at_mut((at + 1) * n);
        let own = &mut above[at * n..];
        own[at] = T::of(length);
        let sums = &mut sums[..end - at - 1];
        sums.copy_from_slice(&own[at + 1..end]);
        for row in rows.chunks_exact(n) {
            subtract_scaled(sums, &row[at + 1..end], -row[at]);
        }
        let factor = factors[at];
        sums.iter_mut().for_each(|sum| *sum *= factor);
        subtract_scaled(&mut own[at + 1..end], sums, T::of(1.0));
        for row in rows.chunks_exact_mut(n) {
            let by = row[at];
            subtract_scaled(&mut row[at + 1..end], sums, by);
        }
    }
}

/// The Euclidean norm, which overflows only if the result does.
fn norm(values: impl Iterator<Item = f64> + Clone) -> f64 {
    // `max` ignores NaN.
    let either = |most: f64, x: f64| if most.is_nan() || x.is_nan() { f64::NAN } else { most.max(x.abs()) };
    let largest = values.clone().fold(0.0, either);
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * values.map(|x| (x / largest).powi(2)).sum::<f64>().sqrt()
}

/// The elements of each part of a [`PanelScratch`].
fn panel_lens(m: usize, n: usize) -> [usize; 5] {
    let (width, cols) = (PANEL.min(m.min(n)), n.max(PANEL));
    [m * width, width * width, width * cols, width * cols, STRIP.min(m) * cols]
}

/// A panel of reflections as one product, `1 - v t vᵀ`, and the memory for applying it.
struct PanelScratch<'a, T> {
    /// `[rows, width]`, with zeros above the diagonal and ones on it.
    v: &'a mut [T],
    /// `[width, width]`, upper triangular.
    t: &'a mut [T],
    /// Products with the columns that the reflections are applied to.
    sums: &'a mut [T],
    mixed: &'a mut [T],
    strip: &'a mut [T],
    rows: usize,
    width: usize,
}

impl<'a, T: Float> PanelScratch<'a, T> {
    fn of(scratch: &'a mut [T], m: usize, n: usize) -> Self {
        let [v, t, sums, mixed, strip] = panel_lens(m, n);
        let (v, scratch) = scratch.split_at_mut(v);
        let (t, scratch) = scratch.split_at_mut(t);
        let (sums, scratch) = scratch.split_at_mut(sums);
        let (mixed, scratch) = scratch.split_at_mut(mixed);
        PanelScratch { v, t, sums, mixed, strip: &mut scratch[..strip], rows: 0, width: 0 }
    }

    /// Reads the reflections of the columns from `first` to `end`.
    fn read(&mut self, a: &[T], (m, n): (usize, usize), (first, end): (usize, usize), factors: &[T]) {
        let (rows, width) = (m - first, end - first);
        (self.rows, self.width) = (rows, width);
        for (i, (v, row)) in self.v.chunks_exact_mut(width).zip(a[first * n..].chunks_exact(n)).enumerate() {
            for (j, v) in v.iter_mut().enumerate() {
                *v = match i.cmp(&j) {
                    std::cmp::Ordering::Less => T::of(0.0),
                    std::cmp::Ordering::Equal => T::of(1.0),
                    std::cmp::Ordering::Greater => row[first + j],
                };
            }
        }
        // The products of all pairs of reflections.
        let v = Part { elements: &self.v[..rows * width], row: width };
        product([width, rows, width], (v, v), [true, false], self.mixed);
        let (t, pairs) = (&mut *self.t, &*self.mixed);
        t[..width * width].fill(T::of(0.0));
        for i in 0..width {
            let factor = factors[first + i];
            for j in 0..i {
                let sum: T = (j..i).map(|l| t[j * width + l] * pairs[l * width + i]).sum();
                t[j * width + i] = -factor * sum;
            }
            t[i * width + i] = factor;
        }
    }

    /// Applies the reflections, or their transposed product, to the columns from `first` to `end` of rows with a distance of `row`
    /// elements.
    fn apply(&mut self, a: &mut [T], row: usize, (first, end): (usize, usize), transposed: bool) {
        let (rows, width, cols) = (self.rows, self.width, end - first);
        let v = Part { elements: &self.v[..rows * width], row: width };
        let columns = Part { elements: &a[first..], row };
        product([width, rows, cols], (v, columns), [true, false], self.sums);
        let t = Part { elements: &*self.t, row: width };
        let sums = Part { elements: &*self.sums, row: cols };
        product([width, width, cols], (t, sums), [transposed, false], self.mixed);
        for start in (0..rows).step_by(STRIP) {
            let height = STRIP.min(rows - start);
            let v = Part { elements: &self.v[start * width..], row: width };
            let mixed = Part { elements: &*self.mixed, row: cols };
            product([height, width, cols], (v, mixed), [false; 2], self.strip);
            let target = a[start * row..].chunks_mut(row).zip(self.strip.chunks_exact(cols)).take(height);
            for (target, what) in target {
                subtract(&mut target[first..end], cols, what, cols);
            }
        }
    }
}
