//! Stockham's algorithm: each stage takes a factor out of the length, and leaves the results in order, in the other of two buffers.

use smallvec::SmallVec;

use super::roots::{Numbers, NumbersMut};
use crate::number::Float;
use crate::simd::vectorize;

/// The largest prime factor of a length for which stages are used: a stage multiplies each number by that many others.
const LARGEST_FACTOR: usize = 31;

/// The factors of the stages, first to last.
pub(super) type Stages = SmallVec<[usize; 16]>;

/// The stages of a length; `None` if it has a large prime factor.
pub(super) fn stages_of(len: usize) -> Option<Stages> {
    let (mut rest, mut stages) = (len, Stages::new());
    for factor in std::iter::once(4).chain(2..=LARGEST_FACTOR) {
        while rest.is_multiple_of(factor) && rest > 1 {
            stages.push(factor);
            rest /= factor;
        }
    }
    (rest == 1).then_some(stages)
}

/// Transforms `x`, rows of the stages' length with `lanes` of them side by side, and leaves the result in `x` or in `y`: returns whether
/// it is in `y`. `roots` are those of a multiple of the length.
pub(super) fn run_stages<T: Float>(
    stages: &[usize],
    lanes: usize,
    roots: Numbers<'_, T>,
    x: NumbersMut<'_, T>,
    y: NumbersMut<'_, T>,
) -> bool {
    let (mut from, mut to) = (x, y);
    let (mut len, mut side) = (stages.iter().product::<usize>(), lanes);
    for &factor in stages {
        vectorize(
            #[inline(always)]
            || stage(factor, (len, side), roots, from.read(), &mut to),
        );
        std::mem::swap(&mut from, &mut to);
        (len, side) = (len / factor, side * factor);
    }
    stages.len() % 2 == 1
}

/// One stage: `len` numbers remain to be transformed, of `side` transforms side by side.
#[inline(always)]
fn stage<T: Float>(
    factor: usize,
    (len, side): (usize, usize),
    roots: Numbers<'_, T>,
    x: Numbers<'_, T>,
    y: &mut NumbersMut<'_, T>,
) {
    let (groups, step) = (len / factor, roots.re.len() / len);
    let outs = y.re.chunks_exact_mut(factor * side).zip(y.im.chunks_exact_mut(factor * side));
    for (group, (re, im)) in (0..groups).zip(outs) {
        let at = |nth: usize| (group + groups * nth) * side;
        let root = group * step;
        match factor {
            2 => {
                let parts = [x.part(at(0), side), x.part(at(1), side)];
                of_two(parts, roots.at(root), (re, im));
            }
            4 => {
                let parts =
                    [x.part(at(0), side), x.part(at(1), side), x.part(at(2), side), x.part(at(3), side)];
                of_four(parts, [roots.at(root), roots.at(2 * root), roots.at(3 * root)], (re, im));
            }
            _ => {
                let apart = roots.re.len() / factor;
                for (nth, out) in re.chunks_exact_mut(side).zip(im.chunks_exact_mut(side)).enumerate() {
                    of_any((factor, nth * apart), (x, at(0), groups * side), roots, nth * root, out);
                }
            }
        }
    }
}

type Part<'a, T> = (&'a [T], &'a [T]);

/// Neighbouring numbers, in registers: their real and imaginary parts.
#[derive(Clone, Copy)]
struct Few<T, const W: usize>([T; W], [T; W]);

impl<T: Float, const W: usize> Few<T, W> {
    /// Each pair of parts, by a function of the two numbers.
    #[inline(always)]
    fn with(self, other: Self, f: impl Fn((T, T), (T, T)) -> (T, T)) -> Self {
        let mut out = self;
        for i in 0..W {
            (out.0[i], out.1[i]) = f((self.0[i], self.1[i]), (other.0[i], other.1[i]));
        }
        out
    }

    #[inline(always)]
    fn read((re, im): Part<'_, T>, at: usize) -> Self {
        let mut out = Few([T::of(0.0); W], [T::of(0.0); W]);
        out.0.copy_from_slice(&re[at..][..W]);
        out.1.copy_from_slice(&im[at..][..W]);
        out
    }

    #[inline(always)]
    fn write(self, re: &mut [T], im: &mut [T], at: usize) {
        re[at..][..W].copy_from_slice(&self.0);
        im[at..][..W].copy_from_slice(&self.1);
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.with(
            other,
            #[inline(always)]
            |a, b| (a.0 + b.0, a.1 + b.1),
        )
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.with(
            other,
            #[inline(always)]
            |a, b| (a.0 - b.0, a.1 - b.1),
        )
    }

    /// Times `-i`.
    #[inline(always)]
    fn turned(self) -> Self {
        self.with(
            self,
            #[inline(always)]
            |a, _| (a.1, -a.0),
        )
    }

    #[inline(always)]
    fn times(self, (re, im): (T, T)) -> Self {
        self.with(
            self,
            #[inline(always)]
            |a, _| (a.0 * re - a.1 * im, a.0 * im + a.1 * re),
        )
    }
}

/// Runs `$body` for all numbers up to `$count`, as many at a time as fit in a register, and then one at a time.
macro_rules! in_registers {
    ($count:expr, $at:ident, $w:ident => $body:expr) => {{
        let (count, mut $at) = ($count, 0);
        while $at + 8 <= count {
            const $w: usize = 8;
            $body;
            $at += 8;
        }
        while $at < count {
            const $w: usize = 1;
            $body;
            $at += 1;
        }
    }};
}

#[inline(always)]
fn of_two<T: Float>([a, b]: [Part<'_, T>; 2], root: (T, T), (re, im): (&mut [T], &mut [T])) {
    let side = a.0.len();
    in_registers!(side, at, W => {
        let (a, b) = (Few::<T, W>::read(a, at), Few::<T, W>::read(b, at));
        a.plus(b).write(re, im, at);
        a.minus(b).times(root).write(re, im, side + at);
    });
}

#[inline(always)]
fn of_four<T: Float>(
    [a, b, c, d]: [Part<'_, T>; 4],
    [first, second, third]: [(T, T); 3],
    (re, im): (&mut [T], &mut [T]),
) {
    let side = a.0.len();
    in_registers!(side, at, W => {
        let (a, b) = (Few::<T, W>::read(a, at), Few::<T, W>::read(b, at));
        let (c, d) = (Few::<T, W>::read(c, at), Few::<T, W>::read(d, at));
        let (even, odd) = (a.plus(c), b.plus(d));
        let (even_rest, odd_rest) = (a.minus(c), b.minus(d).turned());
        even.plus(odd).write(re, im, at);
        even_rest.plus(odd_rest).times(first).write(re, im, side + at);
        even.minus(odd).times(second).write(re, im, 2 * side + at);
        even_rest.minus(odd_rest).times(third).write(re, im, 3 * side + at);
    });
}

/// One output of a factor: the sum of its parts times their roots, times the root of the group. The roots of the parts are `by` apart, and
/// the parts themselves `distance`.
#[inline(always)]
fn of_any<T: Float>(
    (factor, by): (usize, usize),
    (x, first, distance): (Numbers<'_, T>, usize, usize),
    roots: Numbers<'_, T>,
    root: usize,
    (re, im): (&mut [T], &mut [T]),
) {
    let side = re.len();
    in_registers!(side, at, W => {
        let mut sum = Few::<T, W>::read(x.part(first, side), at);
        for term in 1..factor {
            let part = Few::<T, W>::read(x.part(first + term * distance, side), at);
            sum = sum.plus(part.times(roots.at(term * by % roots.re.len())));
        }
        sum.times(roots.at(root)).write(re, im, at);
    });
}
