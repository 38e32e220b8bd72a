//! Loops over elements: strided inputs of one shape, a function of each position, a contiguous output.
//!
//! The caller supplies the function (`ops/` has the tables). Pass it as an `#[inline(always)]` closure, or it is
//! not vectorised. Broadcasting is a stride of 0. Runs along the last merged dimension are vectorised when the
//! strides there are 0 or 1, which covers equal shapes, scalars, row vectors and column vectors.

use crate::convert::{AnyOperand, Compute, RUN, runs};
use crate::dtype::DType;
use crate::parallel::{PIECE, for_each_piece, for_each_piece2};
use crate::simd::vectorize;
use crate::walk::Walk;

/// A strided view of elements to read.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a, T> {
    pub data: &'a [T],
    /// The stride of each dimension, in elements; 0 broadcasts.
    pub strides: &'a [usize],
}

// A loop has two halves: the walk over the runs, which is compiled once for the types of the elements, and the body of one
// run, which is compiled for each function and instruction set. There are hundreds of functions: when the walk was inside
// the body, the crate took twice as long to compile. Bodies are `for` loops, since closures in `for_each` are not always
// inlined, and are then not compiled for the wide registers.

/// `out[i] = f(x[i])` for each position of `shape`, row-major.
pub fn map<T: Copy + Sync, O: Copy + Send>(
    shape: &[usize],
    x: Operand<'_, T>,
    out: &mut [O],
    f: impl Fn(T) -> O + Sync,
) {
    map_runs(shape, x, out, &|out, src, stride| {
        vectorize(
            #[inline(always)]
            || match stride {
                1 => {
                    for (out, &x) in out.iter_mut().zip(src) {
                        *out = f(x);
                    }
                }
                0 => out.fill(f(src[0])),
                _ => {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = f(src[i * stride]);
                    }
                }
            },
        );
    });
}

/// The body of a run of one operand: output (or the values to change), operand, its stride.
type Run1<'a, X, O> = dyn Fn(&mut [O], &[X], usize) + Sync + 'a;

fn map_runs<T: Copy + Sync, O: Copy + Send>(
    shape: &[usize],
    x: Operand<'_, T>,
    out: &mut [O],
    run: &Run1<'_, T, O>,
) {
    let walk = Walk::new(shape, [x.strides]);
    check(&walk, shape, [x.data.len()], out.len());
    let [stride] = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        walk.for_each_run(start..start + piece.len(), |at, [from], len| {
            run(&mut piece[at - start..][..len], &x.data[from..], stride);
        });
    });
}

/// `out[i] = f(a[i], b[i])` for each position of `shape`, row-major.
pub fn zip<A: Copy + Sync, B: Copy + Sync, O: Send>(
    shape: &[usize],
    a: Operand<'_, A>,
    b: Operand<'_, B>,
    out: &mut [O],
    f: impl Fn(A, B) -> O + Sync,
) {
    zip_runs(shape, a, b, out, &|out, a, b, strides| {
        vectorize(
            #[inline(always)]
            || match strides {
                [1, 1] => {
                    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                        *out = f(a, b);
                    }
                }
                [1, 0] => {
                    for (out, &a) in out.iter_mut().zip(a) {
                        *out = f(a, b[0]);
                    }
                }
                [0, 1] => {
                    for (out, &b) in out.iter_mut().zip(b) {
                        *out = f(a[0], b);
                    }
                }
                [step_a, step_b] => {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = f(a[i * step_a], b[i * step_b]);
                    }
                }
            },
        );
    });
}

/// The body of a run of two operands: output, operands, their strides.
type Run2<'a, A, B, O> = dyn Fn(&mut [O], &[A], &[B], [usize; 2]) + Sync + 'a;

fn zip_runs<A: Copy + Sync, B: Copy + Sync, O: Send>(
    shape: &[usize],
    a: Operand<'_, A>,
    b: Operand<'_, B>,
    out: &mut [O],
    run: &Run2<'_, A, B, O>,
) {
    let walk = Walk::new(shape, [a.strides, b.strides]);
    check(&walk, shape, [a.data.len(), b.data.len()], out.len());
    let strides = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        walk.for_each_run(start..start + piece.len(), |at, [from_a, from_b], len| {
            run(&mut piece[at - start..][..len], &a.data[from_a..], &b.data[from_b..], strides);
        });
    });
}

/// `out[i] = f(a[i], b[i], c[i])` for each position of `shape`, row-major.
pub fn zip3<T: Copy + Sync, O: Send>(
    shape: &[usize],
    operands: [Operand<'_, T>; 3],
    out: &mut [O],
    f: impl Fn(T, T, T) -> O + Sync,
) {
    zip3_runs(shape, operands, out, &|out, [a, b, c], strides| {
        vectorize(
            #[inline(always)]
            || match strides {
                [1, 1, 1] => {
                    for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                        *out = f(a, b, c);
                    }
                }
                [step_a, step_b, step_c] => {
                    for (i, out) in out.iter_mut().enumerate() {
                        *out = f(a[i * step_a], b[i * step_b], c[i * step_c]);
                    }
                }
            },
        );
    });
}

/// The body of a run of three operands.
type Run3<'a, T, O> = dyn Fn(&mut [O], [&[T]; 3], [usize; 3]) + Sync + 'a;

fn zip3_runs<T: Copy + Sync, O: Send>(
    shape: &[usize],
    [a, b, c]: [Operand<'_, T>; 3],
    out: &mut [O],
    run: &Run3<'_, T, O>,
) {
    let walk = Walk::new(shape, [a.strides, b.strides, c.strides]);
    check(&walk, shape, [a.data.len(), b.data.len(), c.data.len()], out.len());
    let strides = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        walk.for_each_run(start..start + piece.len(), |at, [from_a, from_b, from_c], len| {
            let from = [&a.data[from_a..], &b.data[from_b..], &c.data[from_c..]];
            run(&mut piece[at - start..][..len], from, strides);
        });
    });
}

/// `y[i] = f(y[i])` for every element.
pub fn change<T: Copy + Send>(y: &mut [T], f: impl Fn(T) -> T + Sync) {
    for_each_piece(y, PIECE, |_, piece| {
        vectorize(
            #[inline(always)]
            || {
                for y in piece {
                    *y = f(*y);
                }
            },
        );
    });
}

/// `(y[i], x[i]) = f(y[i], x[i])` for every element.
pub fn change_both<T: Copy + Send>(y: &mut [T], x: &mut [T], f: impl Fn(T, T) -> (T, T) + Sync) {
    for_each_piece2((y, x), PIECE, |_, y, x| {
        vectorize(
            #[inline(always)]
            || {
                for (y, x) in y.iter_mut().zip(x) {
                    (*y, *x) = f(*y, *x);
                }
            },
        );
    });
}

/// `y[i] = f(y[i], x[i])` for each position of `shape`; `y` is contiguous.
pub fn update<T: Copy + Send, X: Copy + Sync>(
    shape: &[usize],
    y: &mut [T],
    x: Operand<'_, X>,
    f: impl Fn(T, X) -> T + Sync,
) {
    update_runs(shape, y, x, &|y, x, stride| {
        vectorize(
            #[inline(always)]
            || match stride {
                1 => {
                    for (y, &x) in y.iter_mut().zip(x) {
                        *y = f(*y, x);
                    }
                }
                0 => {
                    for y in y {
                        *y = f(*y, x[0]);
                    }
                }
                _ => {
                    for (i, y) in y.iter_mut().enumerate() {
                        *y = f(*y, x[i * stride]);
                    }
                }
            },
        );
    });
}

fn update_runs<T: Copy + Send, X: Copy + Sync>(
    shape: &[usize],
    y: &mut [T],
    x: Operand<'_, X>,
    run: &Run1<'_, X, T>,
) {
    let walk = Walk::new(shape, [x.strides]);
    check(&walk, shape, [x.data.len()], y.len());
    let [stride] = walk.run_strides();
    for_each_piece(y, PIECE, |start, piece| {
        walk.for_each_run(start..start + piece.len(), |at, [from], len| {
            run(&mut piece[at - start..][..len], &x.data[from..], stride);
        });
    });
}

/// `out[i] = f([a[i], b[i], …])` for each position of `shape`, row-major, for operands and an output of any types. Computed in
/// `C`, one short run at a time.
pub fn apply<C: Compute, const N: usize>(
    shape: &[usize],
    operands: [AnyOperand<'_>; N],
    out: (&mut [u8], DType),
    f: impl Fn([C; N]) -> C + Sync,
) {
    apply_runs(shape, operands, out, &|values, results| {
        vectorize(
            #[inline(always)]
            || {
                for (j, result) in results.iter_mut().enumerate() {
                    *result = f(column(values, j));
                }
            },
        );
    });
}

/// The `j`th value of each operand. Compiled once, not for each expression.
#[inline(always)]
fn column<C: Copy, const N: usize>(values: &[[C; RUN]; N], j: usize) -> [C; N] {
    std::array::from_fn(
        #[inline(always)]
        |k| values[k][j],
    )
}

/// The body of a run of values of one type: the operands' values, and space for the same number of results.
type RunOf<'a, C, const N: usize> = dyn Fn(&[[C; RUN]; N], &mut [C]) + Sync + 'a;

fn apply_runs<C: Compute, const N: usize>(
    shape: &[usize],
    operands: [AnyOperand<'_>; N],
    (out, out_dtype): (&mut [u8], DType),
    run: &RunOf<'_, C, N>,
) {
    let walk = Walk::new(shape, operands.map(|operand| operand.strides));
    let size = out_dtype.size();
    check(&walk, shape, operands.map(|x| x.bytes.len() / x.dtype.size()), out.len() / size);
    let (loads, store) = (operands.map(|operand| C::load(operand.dtype)), C::store(out_dtype));
    let strides = walk.run_strides();
    for_each_piece(out, PIECE * size, |start, piece| {
        let start = start / size;
        walk.for_each_run(start..start + piece.len() / size, |at, from, len| {
            runs(len, |i, n| {
                let mut values = [[C::default(); RUN]; N];
                for k in 0..N {
                    loads[k](operands[k].bytes, from[k] + i * strides[k], strides[k], &mut values[k][..n]);
                }
                let mut results = [C::default(); RUN];
                run(&values, &mut results[..n]);
                store(&results[..n], &mut piece[(at - start + i) * size..][..n * size]);
            });
        });
    });
}

/// `y[i] = f(y[i], x[i])` for each position of `shape`, for elements of any types. Computed in `C`. `y` is contiguous.
pub fn update_any<C: Compute>(
    shape: &[usize],
    y: (&mut [u8], DType),
    x: AnyOperand<'_>,
    f: impl Fn(C, C) -> C + Sync,
) {
    update_any_runs(shape, y, x, &|old, new| {
        vectorize(
            #[inline(always)]
            || {
                for (old, &new) in old.iter_mut().zip(new) {
                    *old = f(*old, new);
                }
            },
        );
    });
}

fn update_any_runs<C: Compute>(
    shape: &[usize],
    (y, y_dtype): (&mut [u8], DType),
    x: AnyOperand<'_>,
    run: &(dyn Fn(&mut [C], &[C]) + Sync),
) {
    let walk = Walk::new(shape, [x.strides]);
    let size = y_dtype.size();
    check(&walk, shape, [x.bytes.len() / x.dtype.size()], y.len() / size);
    let (load_y, load_x, store) = (C::load(y_dtype), C::load(x.dtype), C::store(y_dtype));
    let [stride] = walk.run_strides();
    for_each_piece(y, PIECE * size, |start, piece| {
        let start = start / size;
        walk.for_each_run(start..start + piece.len() / size, |at, [from], len| {
            runs(len, |i, n| {
                let (mut old, mut new) = ([C::default(); RUN], [C::default(); RUN]);
                let y = &mut piece[(at - start + i) * size..][..n * size];
                load_y(y, 0, 1, &mut old[..n]);
                load_x(x.bytes, from + i * stride, stride, &mut new[..n]);
                run(&mut old[..n], &new[..n]);
                store(&old[..n], y);
            });
        });
    });
}

fn check<const N: usize>(walk: &Walk<N>, shape: &[usize], lens: [usize; N], out: usize) {
    assert_eq!(out, walk.len(), "elementwise: out does not match shape {shape:?}");
    for (i, len) in lens.into_iter().enumerate() {
        let reads = walk.span(i);
        assert!(len >= reads, "elementwise: operand {i} of {len} where {reads} are read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn every_loop_visits_any_strides_in_order() {
        let (left, right) = (random(1000, 1), random(3000, 2)); // reversed strides reach further
        for (shape, a) in strided_cases() {
            let x = Operand { data: &left, strides: &a };
            let expected: Vec<f32> = offsets(&shape, &a).map(|at| left[at] * 3.0).collect();
            let mut out = vec![0.0; expected.len()];
            map(&shape, x, &mut out, |x| x * 3.0);
            assert_eq!(out, expected, "{shape:?} {a:?}");
            for b in [vec![0; shape.len()], contiguous(&shape), a.iter().rev().copied().collect(), a.clone()]
            {
                let y = Operand { data: &right, strides: &b };
                let pairs = || offsets(&shape, &a).zip(offsets(&shape, &b));
                let expected: Vec<f32> = pairs().map(|(i, j)| left[i] - right[j]).collect();
                zip(&shape, x, y, &mut out, |a, b| a - b);
                assert_eq!(out, expected, "{shape:?} {a:?} {b:?}");
                let expected: Vec<f32> = pairs().map(|(i, j)| left[i] - right[j] * left[i]).collect();
                zip3(&shape, [x, y, x], &mut out, |a, b, c| a - b * c);
                assert_eq!(out, expected, "{shape:?} {a:?} {b:?}");
            }
        }
    }

    #[test]
    fn an_update_reads_its_old_value_and_any_strides() {
        let x = random(1000, 1);
        for (shape, strides) in strided_cases() {
            let y = random(shape.iter().product(), 2);
            let x = Operand { data: &x, strides: &strides };
            let expected: Vec<f32> =
                offsets(&shape, &strides).zip(&y).map(|(at, &y)| y + -0.5 * x.data[at]).collect();
            let mut out = y.clone();
            update(&shape, &mut out, x, |y, x| y + -0.5 * x);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn both_operands_change() {
        let (mut y, mut x) = (random(PIECE + 9, 1), random(PIECE + 9, 2));
        let (before_y, before_x) = (y.clone(), x.clone());
        change_both(&mut y, &mut x, |y, x| (y * x, x - y));
        assert!((0..y.len()).all(|i| y[i] == before_y[i] * before_x[i] && x[i] == before_x[i] - before_y[i]));
    }

    #[test]
    fn large_operands_are_cut_at_any_row() {
        let (a, b) = (random(300_000, 1), random(1000, 2));
        let mut out = vec![0.0; 300_000];
        let (left, right) =
            (Operand { data: &a, strides: &[1000, 1] }, Operand { data: &b, strides: &[0, 1] });
        zip(&[300, 1000], left, right, &mut out, |a, b| a + b);
        assert!((0..300_000).all(|i| out[i] == a[i] + b[i % 1000]));
    }
}
