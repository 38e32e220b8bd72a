//! Elementwise functions of two operands with broadcasting, and their in-place forms.
//!
//! Broadcasting is a stride of 0. The output is contiguous; each operand may have any strides. Runs along the
//! last merged dimension are vectorised when both strides there are 0 or 1, which covers equal shapes,
//! scalars, row vectors and column vectors.

use super::parallel::{PIECE, for_each_piece};
use super::simd::vectorize;
use super::walk::Walk;
use crate::op::BinaryFn;

/// A strided view of floats to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [f32],
    /// Elements between neighbours, per dimension; 0 repeats.
    pub(crate) strides: &'a [usize],
}

/// `out[i] = function(a[i], b[i])` for each position of `shape`, row-major.
pub(crate) fn binary(function: BinaryFn, shape: &[usize], a: Operand<'_>, b: Operand<'_>, out: &mut [f32]) {
    match function {
        BinaryFn::Add => zip(
            shape,
            a,
            b,
            out,
            #[inline(always)]
            |a, b| a + b,
        ),
        BinaryFn::Sub => zip(
            shape,
            a,
            b,
            out,
            #[inline(always)]
            |a, b| a - b,
        ),
        BinaryFn::Mul => zip(
            shape,
            a,
            b,
            out,
            #[inline(always)]
            |a, b| a * b,
        ),
        BinaryFn::Div => zip(
            shape,
            a,
            b,
            out,
            #[inline(always)]
            |a, b| a / b,
        ),
    }
}

/// `y[i] += alpha * x[i]` for each position of `shape`; `y` is contiguous.
pub(crate) fn add_assign(shape: &[usize], y: &mut [f32], alpha: f32, x: Operand<'_>) {
    update(
        shape,
        y,
        x,
        #[inline(always)]
        |y, x| y + alpha * x,
    );
}

/// `y[i] *= x[i]` for each position of `shape`; `y` is contiguous.
pub(crate) fn mul_assign(shape: &[usize], y: &mut [f32], x: Operand<'_>) {
    update(
        shape,
        y,
        x,
        #[inline(always)]
        |y, x| y * x,
    );
}

fn zip(shape: &[usize], a: Operand<'_>, b: Operand<'_>, out: &mut [f32], f: impl Fn(f32, f32) -> f32 + Sync) {
    let walk = Walk::new(shape, [a.strides, b.strides]);
    assert_eq!(out.len(), walk.len(), "binary: out against shape {shape:?}");
    assert!(a.data.len() >= walk.span(0), "binary: a of {} where {} are read", a.data.len(), walk.span(0));
    assert!(b.data.len() >= walk.span(1), "binary: b of {} where {} are read", b.data.len(), walk.span(1));
    let strides = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                walk.for_each_run(
                    start..start + piece.len(),
                    #[inline(always)]
                    |at, [from_a, from_b], len| {
                        let out = &mut piece[at - start..][..len];
                        let (a, b) = (&a.data[from_a..], &b.data[from_b..]);
                        match strides {
                            [1, 1] => {
                                for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                                    *out = f(a, b);
                                }
                            }
                            [1, 0] => out.iter_mut().zip(a).for_each(
                                #[inline(always)]
                                |(out, &a)| *out = f(a, b[0]),
                            ),
                            [0, 1] => out.iter_mut().zip(b).for_each(
                                #[inline(always)]
                                |(out, &b)| *out = f(a[0], b),
                            ),
                            [step_a, step_b] => {
                                for (i, out) in out.iter_mut().enumerate() {
                                    *out = f(a[i * step_a], b[i * step_b]);
                                }
                            }
                        }
                    },
                );
            },
        );
    });
}

fn update(shape: &[usize], y: &mut [f32], x: Operand<'_>, f: impl Fn(f32, f32) -> f32 + Sync) {
    let walk = Walk::new(shape, [x.strides]);
    assert_eq!(y.len(), walk.len(), "in-place: y against shape {shape:?}");
    assert!(x.data.len() >= walk.span(0), "in-place: x of {} where {} are read", x.data.len(), walk.span(0));
    let [stride] = walk.run_strides();
    for_each_piece(y, PIECE, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                walk.for_each_run(
                    start..start + piece.len(),
                    #[inline(always)]
                    |at, [from], len| {
                        let y = &mut piece[at - start..][..len];
                        let x = &x.data[from..];
                        match stride {
                            1 => y.iter_mut().zip(x).for_each(
                                #[inline(always)]
                                |(y, &x)| *y = f(*y, x),
                            ),
                            0 => y.iter_mut().for_each(
                                #[inline(always)]
                                |y| *y = f(*y, x[0]),
                            ),
                            _ => y.iter_mut().enumerate().for_each(
                                #[inline(always)]
                                |(i, y)| *y = f(*y, x[i * stride]),
                            ),
                        }
                    },
                );
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    type Formula = fn(f32, f32) -> f32;
    const FUNCTIONS: [(BinaryFn, Formula); 4] = [
        (BinaryFn::Add, |a, b| a + b),
        (BinaryFn::Sub, |a, b| a - b),
        (BinaryFn::Mul, |a, b| a * b),
        (BinaryFn::Div, |a, b| a / b),
    ];

    #[test]
    fn every_function_broadcasts_over_any_pair_of_strides() {
        let (left, right) = (random(1000, 1), random(3000, 2)); // reversed strides reach further
        for (shape, a) in strided_cases() {
            for b in [vec![0; shape.len()], contiguous(&shape), a.iter().rev().copied().collect(), a.clone()]
            {
                for (function, formula) in FUNCTIONS {
                    let pairs = offsets(&shape, &a).zip(offsets(&shape, &b));
                    let expected: Vec<f32> = pairs.map(|(i, j)| formula(left[i], right[j])).collect();
                    let mut out = vec![0.0; expected.len()];
                    let (left, right) =
                        (Operand { data: &left, strides: &a }, Operand { data: &right, strides: &b });
                    binary(function, &shape, left, right, &mut out);
                    assert_eq!(out, expected, "{function:?} {shape:?} {a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn in_place_forms_match_their_formula_on_any_strides() {
        let x = random(1000, 1);
        for (shape, strides) in strided_cases() {
            let y = random(shape.iter().product(), 2);
            let x = Operand { data: &x, strides: &strides };
            let of = |f: fn(f32, f32) -> f32| -> Vec<f32> {
                offsets(&shape, &strides).zip(&y).map(|(at, &y)| f(y, x.data[at])).collect()
            };
            let mut out = y.clone();
            add_assign(&shape, &mut out, -0.5, x);
            assert_eq!(out, of(|y, x| y + -0.5 * x));
            let mut out = y.clone();
            mul_assign(&shape, &mut out, x);
            assert_eq!(out, of(|y, x| y * x));
        }
    }

    #[test]
    fn large_operands_are_cut_at_any_row() {
        let (a, b) = (random(300_000, 1), random(1000, 2));
        let mut out = vec![0.0; 300_000];
        let (left, right) =
            (Operand { data: &a, strides: &[1000, 1] }, Operand { data: &b, strides: &[0, 1] });
        binary(BinaryFn::Add, &[300, 1000], left, right, &mut out);
        assert!((0..300_000).all(|i| out[i] == a[i] + b[i % 1000]));
    }
}
