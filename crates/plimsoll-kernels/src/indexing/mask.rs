//! Selects elements by a condition or by position. Words are moved; nothing is computed.

use crate::elementwise::map::Operand;
use crate::parallel::{PIECE, for_each_piece};
use crate::simd::vectorize;
use crate::walk::Walk;

/// `out[p] = if mask[p] != 0 { a[p] } else { b[p] }` for each position of `shape`, row-major.
pub fn choose<W: bytemuck::Pod + Send + Sync>(
    shape: &[usize],
    mask: Operand<'_, u8>,
    a: Operand<'_, W>,
    b: Operand<'_, W>,
    out: &mut [W],
) {
    let walk = Walk::new(shape, [mask.strides, a.strides, b.strides]);
    assert_eq!(out.len(), walk.len(), "choose: out does not match shape {shape:?}");
    let strides = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        vectorize(
            #[inline(always)]
            || {
                walk.for_each_run(
                    start..start + piece.len(),
                    #[inline(always)]
                    |at, [mask_from, a_from, b_from], len| {
                        let out = &mut piece[at - start..][..len];
                        let (mask, a, b) = (&mask.data[mask_from..], &a.data[a_from..], &b.data[b_from..]);
                        match strides {
                            [1, 1, 1] => {
                                for (((out, &mask), &a), &b) in out.iter_mut().zip(mask).zip(a).zip(b) {
                                    *out = if mask != 0 { a } else { b };
                                }
                            }
                            [1, 0, 1] => {
                                for ((out, &mask), &b) in out.iter_mut().zip(mask).zip(b) {
                                    *out = if mask != 0 { a[0] } else { b };
                                }
                            }
                            [1, 1, 0] => {
                                for ((out, &mask), &a) in out.iter_mut().zip(mask).zip(a) {
                                    *out = if mask != 0 { a } else { b[0] };
                                }
                            }
                            [m, x, y] => {
                                for (i, out) in out.iter_mut().enumerate() {
                                    *out = if mask[i * m] != 0 { a[i * x] } else { b[i * y] };
                                }
                            }
                        }
                    },
                );
            },
        );
    });
}

/// The elements of `x` where the mask is set, in row-major order; returns `false` if their number differs from the
/// length of `out`.
pub fn compress<W: bytemuck::Pod + Send + Sync>(
    shape: &[usize],
    mask: Operand<'_, u8>,
    x: Operand<'_, W>,
    out: &mut [W],
) -> bool {
    let walk = Walk::new(shape, [mask.strides, x.strides]);
    let ([mask_step, x_step], mut count) = (walk.run_strides(), 0);
    walk.for_each_run(0..walk.len(), |_, [mask_from, from], len| {
        for i in 0..len {
            if mask.data[mask_from + i * mask_step] != 0 {
                if let Some(out) = out.get_mut(count) {
                    *out = x.data[from + i * x_step];
                }
                count += 1;
            }
        }
    });
    count == out.len()
}

/// The inverse: writes the elements of `x` in order where the mask is set, and zeros elsewhere.
pub fn expand_into<W: bytemuck::Pod + Send + Sync>(
    shape: &[usize],
    mask: Operand<'_, u8>,
    (x, x_step): (&[W], usize),
    out: &mut [W],
) {
    let walk = Walk::new(shape, [mask.strides]);
    assert_eq!(out.len(), walk.len(), "expand_into: out does not match shape {shape:?}");
    let ([mask_step], mut count) = (walk.run_strides(), 0);
    walk.for_each_run(0..walk.len(), |at, [mask_from], len| {
        for i in 0..len {
            let is_set = mask.data[mask_from + i * mask_step] != 0;
            out[at + i] = if is_set { x[count * x_step] } else { W::zeroed() };
            count += usize::from(is_set);
        }
    });
}

/// Each matrix of `shape` with the elements on one side of a diagonal, and zeros on the other.
pub fn triangle<W: bytemuck::Pod + Send + Sync>(
    shape: &[usize],
    x: Operand<'_, W>,
    upper: bool,
    diagonal: isize,
    out: &mut [W],
) {
    let [lead @ .., rows, cols] = shape else { unreachable!("triangle of {shape:?}") };
    let (rank, col_step) = (lead.len(), x.strides[lead.len() + 1]);
    let outer = Walk::new(&shape[..=rank], [&x.strides[..=rank]]);
    if out.is_empty() {
        return;
    }
    let [step] = outer.run_strides();
    for_each_piece(out, (PIECE / cols).max(1) * cols, |start, piece| {
        let first = start / cols;
        outer.for_each_run(first..first + piece.len() / cols, |at, [from], len| {
            for i in 0..len {
                let (row, x) = ((at + i) % rows, &x.data[from + i * step..]);
                // The first column to the right of the diagonal; the diagonal is in both triangles.
                let edge = (row as isize).saturating_add(diagonal);
                let clamp = |at: isize| usize::try_from(at).unwrap_or(0).min(*cols);
                let kept = if upper { clamp(edge)..*cols } else { 0..clamp(edge.saturating_add(1)) };
                let out = &mut piece[(at + i - first) * cols..][..*cols];
                out[..kept.start].fill(W::zeroed());
                out[kept.end..].fill(W::zeroed());
                if col_step == 1 {
                    out[kept.clone()].copy_from_slice(&x[kept]);
                } else {
                    kept.for_each(|col| out[col] = x[col * col_step]);
                }
            }
        });
    });
}
