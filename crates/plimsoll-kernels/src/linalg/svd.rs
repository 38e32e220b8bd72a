//! The singular value decomposition: Householder bidiagonalization, then implicit QR steps (Golub and Kahan), as in LINPACK's `svdc`
//! and JAMA. Computed in 64 bits for both types.

use super::matrices::{Failure, dot, for_each_matrix, scratch_len, subtract_scaled};
use crate::number::Float;
use crate::parallel::Pieces;
use crate::simd::vectorize;

/// Whether the singular vectors are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// `u`, `[m, k]`, and `vᵀ`, `[k, n]`.
    Both,
    /// Values only; `u` and `vᵀ` are empty.
    Omitted,
}

/// The scratch memory of [`svd`].
pub fn svd_scratch_len(count: usize, m: usize, n: usize, vectors: Vectors) -> usize {
    scratch_len::<f64>(count, m.max(n), scratch_of_one(m, n, vectors))
}

fn scratch_of_one(m: usize, n: usize, vectors: Vectors) -> usize {
    let (long, short) = (m.max(n), m.min(n));
    let both = if vectors == Vectors::Both { long * short + short * short } else { 0 };
    long * short + both + 2 * short + long
}

/// `a = u · diag(s) · vᵀ` of `count` matrices `[m, n]`, with descending `s` of `k` values, where `k` is the smaller size.
///
/// # Errors
/// The first matrix that has an infinite element or a NaN, or whose values do not converge.
pub fn svd<T: Float>(
    (count, vectors): (usize, Vectors),
    a: &[T],
    (m, n): (usize, usize),
    (u, s, vt): (&mut [T], &mut [T], &mut [T]),
    scratch: &mut [f32],
) -> Result<(), Failure> {
    let k = m.min(n);
    if k == 0 {
        return Ok(());
    }
    let width = if vectors == Vectors::Both { k } else { 0 };
    let cut = (Pieces::of(u, m * width), Pieces::of(s, k), Pieces::of(vt, width * n));
    let elements = scratch_of_one(m, n, vectors);
    for_each_matrix::<f64, _>(count, cut, scratch, elements, |matrix, (u, s, vt), scratch| {
        let a = &a[matrix * m * n..][..m * n];
        let largest = a.iter().map(|x| x.wide().abs()).fold(0.0, |most, x| if x > most { x } else { most });
        if !a.iter().all(|x| x.wide().is_finite()) {
            return Err(0);
        }
        let scale = if largest == 0.0 { 1.0 } else { largest };
        let (long, is_wide) = (m.max(n), m < n);
        let (columns, rest) = scratch.split_at_mut(long * k);
        // The columns of a tall matrix, or the rows of a wide one, one after the other.
        for (at, x) in columns.iter_mut().enumerate() {
            let (column, row) = (at / long, at % long);
            *x = a[if is_wide { at } else { row * n + column }].wide() / scale;
        }
        let mut work = Work::of(columns, rest, long, k, vectors);
        work.decompose()?;
        s.iter_mut().zip(&*work.s).for_each(|(s, &value)| *s = T::of(value * scale));
        if vectors == Vectors::Both {
            // Both hold columns one after the other: what they belong to depends on which matrix was decomposed.
            let (left, right) = if is_wide { (&*work.v, &*work.u) } else { (&*work.u, &*work.v) };
            for (at, u) in u.iter_mut().enumerate() {
                *u = T::of(left[at % k * m + at / k]);
            }
            vt.iter_mut().zip(right).for_each(|(vt, &x)| *vt = T::of(x));
        }
        Ok(())
    })
}

/// One decomposition of a matrix with at least as many rows, `m`, as columns, `n`. Matrices hold columns one after the other.
struct Work<'a> {
    m: usize,
    n: usize,
    /// `[n, m]`: the matrix, then its reflections.
    a: &'a mut [f64],
    /// `[n, m]` and `[n, n]`, or empty.
    u: &'a mut [f64],
    v: &'a mut [f64],
    /// The diagonal, and the elements above it.
    s: &'a mut [f64],
    e: &'a mut [f64],
    sums: &'a mut [f64],
}

impl<'a> Work<'a> {
    fn of(a: &'a mut [f64], rest: &'a mut [f64], m: usize, n: usize, vectors: Vectors) -> Work<'a> {
        let both = vectors == Vectors::Both;
        let (u, rest) = rest.split_at_mut(if both { m * n } else { 0 });
        let (v, rest) = rest.split_at_mut(if both { n * n } else { 0 });
        let (s, rest) = rest.split_at_mut(n);
        let (e, rest) = rest.split_at_mut(n);
        Work { m, n, a, u, v, s, e, sums: &mut rest[..m] }
    }

    fn decompose(&mut self) -> Result<(), usize> {
        vectorize(
            #[inline(always)]
            || self.bidiagonalize(),
        );
        if !self.u.is_empty() {
            vectorize(
                #[inline(always)]
                || self.accumulate(),
            );
        }
        self.iterate()
    }

    /// Reduces the matrix to two diagonals, and stores the reflections of columns in `a` and those of rows in `v`.
    #[inline(always)]
    fn bidiagonalize(&mut self) {
        let (m, n) = (self.m, self.n);
        let (columns, rows) = ((m - 1).min(n), n.saturating_sub(2));
        for k in 0..columns.max(rows) {
            let (before, others) = self.a.split_at_mut((k + 1) * m);
            let own = &mut before[k * m..];
            if k < columns {
                self.s[k] = -normalize(&mut own[k..]);
            }
            for (j, other) in (k + 1..n).zip(others.chunks_exact_mut(m)) {
                if k < columns && self.s[k] != 0.0 {
                    let by = dot(&own[k..], &other[k..]) / own[k];
                    subtract_scaled(&mut other[k..], &own[k..], by);
                }
                self.e[j] = other[k];
            }
            if k >= rows {
                continue;
            }
            self.e[k] = -normalize(&mut self.e[k + 1..]);
            if self.e[k] != 0.0 && k + 1 < m {
                let sums = &mut self.sums[k + 1..];
                sums.fill(0.0);
                for (j, other) in (k + 1..n).zip(others.chunks_exact(m)) {
                    subtract_scaled(sums, &other[k + 1..], -self.e[j]);
                }
                for (j, other) in (k + 1..n).zip(others.chunks_exact_mut(m)) {
                    subtract_scaled(&mut other[k + 1..], sums, self.e[j] / self.e[k + 1]);
                }
            }
            if !self.v.is_empty() {
                self.v[k * n + k + 1..(k + 1) * n].copy_from_slice(&self.e[k + 1..]);
            }
        }
        if columns < n {
            self.s[columns] = self.a[columns * m + columns];
        }
        if rows + 1 < n {
            self.e[rows] = self.a[(n - 1) * m + rows];
        }
        self.e[n - 1] = 0.0;
    }

    /// Multiplies the reflections out, into `u` and `v`.
    #[inline(always)]
    fn accumulate(&mut self) {
        let (m, n) = (self.m, self.n);
        let (columns, rows) = ((m - 1).min(n), n.saturating_sub(2));
        self.u.copy_from_slice(self.a);
        for k in (0..n).rev() {
            let (before, others) = self.u.split_at_mut((k + 1) * m);
            let own = &mut before[k * m..];
            if k >= columns || self.s[k] == 0.0 {
                own.fill(0.0);
                own[k] = 1.0;
                continue;
            }
            for other in others.chunks_exact_mut(m) {
                let by = dot(&own[k..], &other[k..]) / own[k];
                subtract_scaled(&mut other[k..], &own[k..], by);
            }
            own[k..].iter_mut().for_each(|x| *x = -*x);
            own[k] += 1.0;
            own[..k].fill(0.0);
        }
        for k in (0..n).rev() {
            let (before, others) = self.v.split_at_mut((k + 1) * n);
            let own = &mut before[k * n..];
            if k < rows && self.e[k] != 0.0 {
                for other in others.chunks_exact_mut(n) {
                    let by = dot(&own[k + 1..], &other[k + 1..]) / own[k + 1];
                    subtract_scaled(&mut other[k + 1..], &own[k + 1..], by);
                }
            }
            own.fill(0.0);
            own[k] = 1.0;
        }
    }

    /// Drives the elements above the diagonal to zero.
    fn iterate(&mut self) -> Result<(), usize> {
        // The number of values that are left, and the steps since the last one was found.
        let (mut left, mut steps) = (self.n, 0);
        while left > 0 {
            let negligible = |small: f64, near: f64| small.abs() <= f64::MIN_POSITIVE + f64::EPSILON * near;
            let (s, e) = (&mut *self.s, &mut *self.e);
            // The block of nonzero elements above the diagonal that ends at the last value.
            let mut first = left - 1;
            while first > 0 {
                if negligible(e[first - 1], s[first - 1].abs() + s[first].abs()) {
                    e[first - 1] = 0.0;
                    break;
                }
                first -= 1;
            }
            if first == left - 1 {
                self.sort_in(first);
                (left, steps) = (left - 1, 0);
                continue;
            }
            let near = |at: usize| {
                let after = if at + 1 < left { e[at].abs() } else { 0.0 };
                after + if at > first { e[at - 1].abs() } else { 0.0 }
            };
            let zero = (first..left).rev().find(|&at| negligible(s[at], near(at)));
            match zero {
                Some(at) => {
                    s[at] = 0.0;
                    if at + 1 == left { self.clear_column(first, at) } else { self.clear_row(at, left) }
                }
                None => self.step(first, left),
            }
            steps += 1;
            if steps > MOST_STEPS {
                return Err(left - 1);
            }
        }
        Ok(())
    }

    /// The last value is zero: rotates the element above it away.
    fn clear_column(&mut self, first: usize, last: usize) {
        let mut f = std::mem::take(&mut self.e[last - 1]);
        for j in (first..last).rev() {
            let (length, rotation) = Rotation::of(self.s[j], f);
            self.s[j] = length;
            if j != first {
                f = -rotation.sin * self.e[j - 1];
                self.e[j - 1] *= rotation.cos;
            }
            rotation.apply(self.v, self.n, j, last);
        }
    }

    /// A value before the last one is zero: rotates the element to its right away.
    fn clear_row(&mut self, zero: usize, left: usize) {
        let mut f = std::mem::take(&mut self.e[zero]);
        for j in zero + 1..left {
            let (length, rotation) = Rotation::of(self.s[j], f);
            self.s[j] = length;
            f = -rotation.sin * self.e[j];
            self.e[j] *= rotation.cos;
            rotation.apply(self.u, self.m, j, zero);
        }
    }

    /// One QR step on the values from `first` to `left`, shifted by an estimate of the last one.
    fn step(&mut self, first: usize, left: usize) {
        let (s, e) = (&mut *self.s, &mut *self.e);
        let all = [s[left - 1], s[left - 2], e[left - 2], s[first], e[first]];
        let scale = all.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let [last, before, above, head, next] = all.map(|x| x / scale);
        let b = ((before + last) * (before - last) + above * above) / 2.0;
        let c = (last * above).powi(2);
        let root = (b * b + c).sqrt();
        let shift = if b == 0.0 && c == 0.0 { 0.0 } else { c / (b + if b < 0.0 { -root } else { root }) };
        let (mut f, mut g) = ((head + last) * (head - last) + shift, head * next);
        for j in first..left - 1 {
            let (length, rotation) = Rotation::of(f, g);
            if j != first {
                e[j - 1] = length;
            }
            (f, e[j]) = rotation.turn(s[j], e[j]);
            (g, s[j + 1]) = (rotation.sin * s[j + 1], rotation.cos * s[j + 1]);
            rotation.apply(self.v, self.n, j, j + 1);
            let (length, rotation) = Rotation::of(f, g);
            s[j] = length;
            (f, s[j + 1]) = rotation.turn(e[j], s[j + 1]);
            (g, e[j + 1]) = (rotation.sin * e[j + 1], rotation.cos * e[j + 1]);
            rotation.apply(self.u, self.m, j, j + 1);
        }
        e[left - 2] = f;
    }

    /// A value has been found: makes it positive, and moves it behind the larger ones.
    fn sort_in(&mut self, found: usize) {
        let n = self.n;
        if self.s[found].is_sign_negative() {
            self.s[found] = -self.s[found];
            if !self.v.is_empty() {
                self.v[found * n..][..n].iter_mut().for_each(|x| *x = -*x);
            }
        }
        for at in found..n - 1 {
            if self.s[at] >= self.s[at + 1] {
                break;
            }
            self.s.swap(at, at + 1);
            if !self.u.is_empty() {
                swap_columns(self.u, self.m, at);
                swap_columns(self.v, n, at);
            }
        }
    }
}

/// The number of QR steps after which a value is given up. A few are usual.
const MOST_STEPS: usize = 200;

/// A vector with smaller elements is zero: the largest element of the matrix is 1, and a smaller vector has too few digits to be a direction.
const NEGLIGIBLE: f64 = 1e-250;

/// Divides a vector by its norm, with the sign of its first element, and adds 1 to that element. Returns the signed norm.
#[inline(always)]
fn normalize(x: &mut [f64]) -> f64 {
    let largest = x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if largest < NEGLIGIBLE {
        return 0.0;
    }
    let sum: f64 = x.iter().map(|x| (x / largest).powi(2)).sum();
    let length = (largest * sum.sqrt()).copysign(x[0]);
    x.iter_mut().for_each(|x| *x /= length);
    x[0] += 1.0;
    length
}

fn swap_columns(columns: &mut [f64], len: usize, first: usize) {
    let (before, after) = columns.split_at_mut((first + 1) * len);
    before[first * len..].swap_with_slice(&mut after[..len]);
}

#[derive(Clone, Copy)]
struct Rotation {
    cos: f64,
    sin: f64,
}

impl Rotation {
    /// The rotation that turns `(x, y)` to `(length, 0)`.
    fn of(x: f64, y: f64) -> (f64, Rotation) {
        let length = x.hypot(y);
        let turned = Rotation { cos: x / length, sin: y / length };
        (length, if length == 0.0 { Rotation { cos: 1.0, sin: 0.0 } } else { turned })
    }

    fn turn(self, x: f64, y: f64) -> (f64, f64) {
        (self.cos * x + self.sin * y, self.cos * y - self.sin * x)
    }

    /// Rotates two columns of `len` elements; nothing if there are no columns.
    fn apply(self, columns: &mut [f64], len: usize, first: usize, second: usize) {
        if columns.is_empty() {
            return;
        }
        let (before, after) = columns.split_at_mut(first.max(second) * len);
        let (lower, upper) = (&mut before[first.min(second) * len..][..len], &mut after[..len]);
        let (x, y) = if first < second { (lower, upper) } else { (upper, lower) };
        vectorize(
            #[inline(always)]
            || {
                for (x, y) in x.iter_mut().zip(y) {
                    (*x, *y) = self.turn(*x, *y);
                }
            },
        );
    }
}
