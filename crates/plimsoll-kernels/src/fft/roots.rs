//! Roots of unity, rounded from exact multiples of a turn.

use std::f64::consts::FRAC_PI_2;

use crate::number::Float;

/// Complex numbers: their real and their imaginary parts.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a, T> {
    pub(super) re: &'a [T],
    pub(super) im: &'a [T],
}

impl<'a, T: Float> Numbers<'a, T> {
    /// One number.
    #[inline(always)]
    pub(super) fn at(self, at: usize) -> (T, T) {
        (self.re[at], self.im[at])
    }

    /// The numbers from `at`.
    #[inline(always)]
    pub(super) fn part(self, at: usize, len: usize) -> (&'a [T], &'a [T]) {
        (&self.re[at..][..len], &self.im[at..][..len])
    }
}

/// Complex numbers that change.
pub(super) struct NumbersMut<'a, T> {
    pub(super) re: &'a mut [T],
    pub(super) im: &'a mut [T],
}

impl<'a, T> NumbersMut<'a, T> {
    /// Takes `len` numbers from the front of `memory`.
    pub(super) fn take(memory: &mut &'a mut [T], len: usize) -> NumbersMut<'a, T> {
        let (re, rest) = std::mem::take(memory).split_at_mut(len);
        let (im, rest) = rest.split_at_mut(len);
        *memory = rest;
        NumbersMut { re, im }
    }

    pub(super) fn by_ref(&mut self) -> NumbersMut<'_, T> {
        NumbersMut { re: self.re, im: self.im }
    }

    pub(super) fn read(&self) -> Numbers<'_, T> {
        Numbers { re: self.re, im: self.im }
    }

    pub(super) fn into_read(self) -> Numbers<'a, T> {
        Numbers { re: self.re, im: self.im }
    }
}

/// `e^(-2πi · at / of)`, for `at` below `of`.
pub(super) fn root(at: usize, of: usize) -> (f64, f64) {
    // A quarter of a turn, and the rest in parts of a quarter; the larger half of it from the other side, which is more exact.
    let (quarter, rest) = (4 * at / of, 4 * at % of);
    let near = |parts: usize| libm::sincos(FRAC_PI_2 * parts as f64 / of as f64);
    let (sin, cos) = if 2 * rest <= of {
        near(rest)
    } else {
        let (cos, sin) = near(of - rest);
        (sin, cos)
    };
    match quarter {
        0 => (cos, -sin),
        1 => (-sin, -cos),
        2 => (-cos, sin),
        _ => (sin, cos),
    }
}

/// Fills in `e^(-2πi · j / n)` for all `j` below `n`.
pub(super) fn fill_roots<T: Float>(out: &mut NumbersMut<'_, T>) {
    let n = out.re.len();
    let computed = if n.is_multiple_of(4) { n / 4 } else { n };
    for at in 0..computed {
        let (re, im) = root(at, n);
        (out.re[at], out.im[at]) = (T::of(re), T::of(im));
    }
    for at in computed..n {
        // A quarter of a turn further.
        let (re, im) = (out.re[at - computed], out.im[at - computed]);
        (out.re[at], out.im[at]) = (im, -re);
    }
}
