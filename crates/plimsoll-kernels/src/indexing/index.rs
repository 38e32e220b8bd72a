//! Reads, writes or adds elements by index along one dimension.
//!
//! Offsets along an indexed dimension come from the index; its stride in the operand is then 0 and is passed
//! separately. [`first_outside`] checks indices once, before anything is written.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::parallel::{Cut, PIECE, for_each_chunk, for_each_piece};
use crate::walk::Walk;

/// An integer type for indices.
pub trait Index: Copy + Send + Sync {
    /// Its value.
    fn value(self) -> i64;

    /// The value as an offset; the index was already checked.
    #[inline(always)]
    fn at(self) -> usize {
        self.value() as usize
    }
}

impl Index for i64 {
    #[inline(always)]
    fn value(self) -> i64 {
        self
    }
}

impl Index for i32 {
    #[inline(always)]
    fn value(self) -> i64 {
        i64::from(self)
    }
}

/// Elements of an index with their strides.
#[derive(Clone, Copy, Debug)]
pub struct Indices<'a, I> {
    pub elements: &'a [I],
    pub strides: &'a [usize],
}

/// The first index outside `0..size` in row-major order: its position and its value.
pub fn first_outside<I: Index>(shape: &[usize], index: Indices<'_, I>, size: usize) -> Option<(usize, i64)> {
    let walk = Walk::new(shape, [index.strides]);
    let [step] = walk.run_strides();
    let first = AtomicUsize::new(usize::MAX);
    let outside = |i: I| i.value() as u64 >= size as u64;
    for_each_chunk(walk.len().div_ceil(PIECE), |chunk| {
        let positions = chunk * PIECE..walk.len().min((chunk + 1) * PIECE);
        walk.for_each_run(positions, |position, [from], len| {
            let run = (0..len).map(|i| index.elements[from + i * step]);
            if run.clone().fold(false, |any, i| any | outside(i)) {
                let at = run.into_iter().position(outside).unwrap_or(0);
                first.fetch_min(position + at, Ordering::Relaxed);
            }
        });
    });
    let position = first.into_inner();
    if position == usize::MAX {
        return None;
    }
    let mut value = 0;
    walk.for_each_run(position..position + 1, |_, [from], _| value = index.elements[from].value());
    Some((position, value))
}

/// `out[p] = x[p · x_strides + index[p] · step]` for each position of `shape`, row-major.
pub fn pick<W: Copy + Send + Sync, I: Index>(
    shape: &[usize],
    (x, x_strides, step): (&[W], &[usize], usize),
    index: Indices<'_, I>,
    out: &mut [W],
) {
    let walk = Walk::new(shape, [x_strides, index.strides]);
    assert_eq!(out.len(), walk.len(), "pick: out does not match shape {shape:?}");
    let [x_step, index_step] = walk.run_strides();
    for_each_piece(out, PIECE, |start, piece| {
        walk.for_each_run(start..start + piece.len(), |position, [from, at], len| {
            let out = &mut piece[position - start..][..len];
            if index_step == 0 {
                let x = &x[from + index.elements[at].at() * step..];
                if x_step == 1 {
                    out.copy_from_slice(&x[..len]);
                } else {
                    out.iter_mut().enumerate().for_each(|(i, out)| *out = x[i * x_step]);
                }
            } else {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = x[from + i * x_step + index.elements[at + i * index_step].at() * step];
                }
            }
        });
    });
}

/// `change(out[p · out_strides + index[p] · step], src[p])` for each position of `shape`, in the order of `dim`, so
/// the result does not depend on the number of threads.
///
/// # Panics
/// If `out` is not row-major with a shape at least as large as `shape` in all dimensions except `dim`.
pub fn put<T: Copy + Send + Sync, I: Index>(
    shape: &[usize],
    dim: usize,
    (src, src_strides): (&[T], &[usize]),
    index: Indices<'_, I>,
    (out, out_shape): (&mut [T], &[usize]),
    change: impl Fn(&mut T, T) + Sync,
) {
    let fits = (0..shape.len()).all(|d| d == dim || shape[d] <= out_shape[d]);
    assert!(fits && shape.len() == out_shape.len(), "put: {shape:?} into {out_shape:?} along {dim}");
    let out_stride = |d: usize| out_shape[d + 1..].iter().product::<usize>();
    // Two positions that differ in a dimension other than `dim` never write to the same element.
    let others = (0..shape.len()).filter(|&d| d != dim);
    let rest = Walk::of_dims(others.map(|d| (shape[d], [src_strides[d], out_stride(d), index.strides[d]])));
    let [src_run, out_run, index_run] = rest.run_strides();
    let (count, src_dim, out_dim, index_dim) =
        (shape[dim], src_strides[dim], out_stride(dim), index.strides[dim]);
    let chunk_len = (PIECE / count.max(1)).max(64);
    let out = Cut::new(out);
    for_each_chunk(rest.len().div_ceil(chunk_len), |chunk| {
        let positions = chunk * chunk_len..rest.len().min((chunk + 1) * chunk_len);
        rest.for_each_run(positions, |_, [from, to, at], len| {
            // SAFETY: only this chunk has these positions in the other dimensions, and thus these elements.
            let part = |to: usize, len: usize| unsafe { out.range(to, len) };
            let element = |i: usize, j: usize| {
                let to = to + i * out_run + index.elements[at + i * index_run + j * index_dim].at() * out_dim;
                change(&mut part(to, 1)[0], src[from + i * src_run + j * src_dim]);
            };
            if index_run == 0 && out_run == 1 && src_run == 1 {
                for j in 0..count {
                    let to = to + index.elements[at + j * index_dim].at() * out_dim;
                    let src = &src[from + j * src_dim..][..len];
                    part(to, len).iter_mut().zip(src).for_each(|(out, &src)| change(out, src));
                }
            } else if src_dim < src_run {
                (0..len).for_each(|i| (0..count).for_each(|j| element(i, j)));
            } else {
                (0..count).for_each(|j| (0..len).for_each(|i| element(i, j)));
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn rows_are_picked_and_added_back_in_order() {
        let (rows, cols, picked) = (7, 300, 1000);
        let x = random(rows * cols, 1);
        let index: Vec<i64> = (0..picked).map(|i| (i * i % rows) as i64).collect();
        let indices = Indices { elements: &index[..], strides: &[1, 0] };
        let mut out = vec![0.0; picked * cols];
        pick(&[picked, cols], (&x, &[0, 1], cols), indices, &mut out);
        assert!((0..out.len()).all(|i| out[i] == x[index[i / cols] as usize * cols + i % cols]));
        let sums = on_any_threads(|| {
            let mut sums = vec![0.0; rows * cols];
            put(&[picked, cols], 0, (&out, &[cols, 1]), indices, (&mut sums, &[rows, cols]), |y, x| *y += x);
            sums
        });
        let mut expected = vec![0.0; rows * cols];
        (0..out.len()).for_each(|i| expected[index[i / cols] as usize * cols + i % cols] += out[i]);
        assert_eq!(sums, expected);
    }

    #[test]
    fn an_index_of_its_own_for_each_element_works_along_any_dimension() {
        let index: Vec<i32> = vec![2, 0, 1, 1, 3, 2];
        let x = random(12, 1);
        for (dim, shape, x_strides, step) in [(0, [2, 3], [0, 1], 3), (1, [2, 3], [4, 0], 1)] {
            let indices = Indices { elements: &index[..], strides: &[3, 1] };
            let mut out = [0.0; 6];
            pick(&shape, (&x, &x_strides, step), indices, &mut out);
            let other = |i: usize| if dim == 0 { i % 3 } else { i / 3 * 4 };
            assert!((0..6).all(|i| out[i] == x[other(i) + index[i] as usize * step]));
            let out_shape = if dim == 0 { [4, 3] } else { [3, 4] };
            let mut back = vec![0.0; 12];
            put(&shape, dim, (&out, &[3, 1]), indices, (&mut back, &out_shape), |y, x| *y += x);
            let mut expected = vec![0.0; 12];
            (0..6).for_each(|i| expected[other(i) + index[i] as usize * step] += out[i]);
            assert_eq!(back, expected);
        }
    }

    #[test]
    fn the_first_index_outside_is_found() {
        let mut index = vec![1i64; 100_000];
        let first =
            |index: &[i64]| first_outside(&[100, 1000], Indices { elements: index, strides: &[1000, 1] }, 3);
        assert_eq!(first(&index), None);
        (index[70_000], index[90_000]) = (3, -1);
        assert_eq!(first(&index), Some((70_000, 3)));
    }
}
