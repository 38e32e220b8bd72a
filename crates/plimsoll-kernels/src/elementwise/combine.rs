//! In-place updates with two other operands, for any types.

use crate::convert::{AnyOperand, Compute, RUN, runs};
use crate::dtype::DType;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;
use crate::walk::Walk;

/// `y[i] = f(y[i], a[i], b[i])` for each position of `shape`: computed in `C`, one short run at a time. `y` is
/// contiguous.
pub fn update_by<C: Compute>(
    shape: &[usize],
    y: (&mut [u8], DType),
    operands: [AnyOperand<'_>; 2],
    f: impl Fn(C, C, C) -> C + Sync,
) {
    update_runs(shape, y, operands, &|y: &mut [C], a: &[C], b: &[C]| {
        vectorize(
            #[inline(always)]
            || {
                for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                    *y = f(*y, a, b);
                }
            },
        );
    });
}

/// The body of a run: the values to change, and both operands.
type Run<'a, C> = dyn Fn(&mut [C], &[C], &[C]) + Sync + 'a;

fn update_runs<C: Compute>(
    shape: &[usize],
    (y, y_dtype): (&mut [u8], DType),
    operands: [AnyOperand<'_>; 2],
    run: &Run<'_, C>,
) {
    let walk = Walk::new(shape, operands.map(|operand| operand.strides));
    let size = y_dtype.size();
    assert_eq!(y.len() / size, walk.len(), "update_by: y does not match shape {shape:?}");
    let (load_y, loads, store) =
        (C::load(y_dtype), operands.map(|operand| C::load(operand.dtype)), C::store(y_dtype));
    let strides = walk.run_strides();
    for_each_piece(y, PIECE * size, |start, piece| {
        let start = start / size;
        walk.for_each_run(start..start + piece.len() / size, |at, from, len| {
            runs(len, |i, n| {
                let (mut old, mut values) = ([C::default(); RUN], [[C::default(); RUN]; 2]);
                let y = &mut piece[(at - start + i) * size..][..n * size];
                load_y(y, 0, 1, &mut old[..n]);
                for k in 0..2 {
                    loads[k](operands[k].bytes, from[k] + i * strides[k], strides[k], &mut values[k][..n]);
                }
                run(&mut old[..n], &values[0][..n], &values[1][..n]);
                store(&old[..n], y);
            });
        });
    });
}
