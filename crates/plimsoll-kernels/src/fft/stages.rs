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
        let part = |nth: usize| {
            let at = (group + groups * nth) * side;
            (&x.re[at..][..side], &x.im[at..][..side])
        };
        let root = |nth: usize| (roots.re[group * nth * step], roots.im[group * nth * step]);
        match factor {
            2 => of_two([0, 1].map(part), root(1), (re, im)),
            4 => of_four([0, 1, 2, 3].map(part), [1, 2, 3].map(root), (re, im)),
            _ => {
                let apart = roots.re.len() / factor;
                for (nth, out) in re.chunks_exact_mut(side).zip(im.chunks_exact_mut(side)).enumerate() {
                    let of_term = |term: usize| {
                        let at = term * nth % factor * apart;
                        (roots.re[at], roots.im[at])
                    };
                    of_any(factor, part, of_term, root(nth), out);
                }
            }
        }
    }
}

type Part<'a, T> = (&'a [T], &'a [T]);

#[inline(always)]
fn times<T: Float>((a, b): (T, T), (re, im): (T, T)) -> (T, T) {
    (a * re - b * im, a * im + b * re)
}

#[inline(always)]
fn of_two<T: Float>([a, b]: [Part<'_, T>; 2], root: (T, T), (re, im): (&mut [T], &mut [T])) {
    let side = a.0.len();
    let ((re0, re1), (im0, im1)) = (re.split_at_mut(side), im.split_at_mut(side));
    for q in 0..side {
        (re0[q], im0[q]) = (a.0[q] + b.0[q], a.1[q] + b.1[q]);
        (re1[q], im1[q]) = times((a.0[q] - b.0[q], a.1[q] - b.1[q]), root);
    }
}

#[inline(always)]
fn of_four<T: Float>(
    [a, b, c, d]: [Part<'_, T>; 4],
    [first, second, third]: [(T, T); 3],
    (re, im): (&mut [T], &mut [T]),
) {
    let side = a.0.len();
    let ((re0, re), (im0, im)) = (re.split_at_mut(side), im.split_at_mut(side));
    let ((re1, re), (im1, im)) = (re.split_at_mut(side), im.split_at_mut(side));
    let ((re2, re3), (im2, im3)) = (re.split_at_mut(side), im.split_at_mut(side));
    let (re3, im3) = (&mut re3[..side], &mut im3[..side]);
    for q in 0..side {
        let even = ((a.0[q] + c.0[q], a.1[q] + c.1[q]), (a.0[q] - c.0[q], a.1[q] - c.1[q]));
        let odd = (b.0[q] + d.0[q], b.1[q] + d.1[q]);
        // Minus `i` times the difference.
        let turned = (b.1[q] - d.1[q], d.0[q] - b.0[q]);
        (re0[q], im0[q]) = (even.0.0 + odd.0, even.0.1 + odd.1);
        (re1[q], im1[q]) = times((even.1.0 + turned.0, even.1.1 + turned.1), first);
        (re2[q], im2[q]) = times((even.0.0 - odd.0, even.0.1 - odd.1), second);
        (re3[q], im3[q]) = times((even.1.0 - turned.0, even.1.1 - turned.1), third);
    }
}

/// One output of a factor: the sum of its parts times their roots, times the root of the group.
#[inline(always)]
fn of_any<'a, T: Float>(
    factor: usize,
    part: impl Fn(usize) -> Part<'a, T>,
    of_term: impl Fn(usize) -> (T, T),
    root: (T, T),
    (re, im): (&mut [T], &mut [T]),
) {
    let first = part(0);
    re.copy_from_slice(first.0);
    im.copy_from_slice(first.1);
    for term in 1..factor {
        let ((x_re, x_im), by) = (part(term), of_term(term));
        for q in 0..re.len() {
            let (add_re, add_im) = times((x_re[q], x_im[q]), by);
            (re[q], im[q]) = (re[q] + add_re, im[q] + add_im);
        }
    }
    for (re, im) in re.iter_mut().zip(im) {
        (*re, *im) = times((*re, *im), root);
    }
}
