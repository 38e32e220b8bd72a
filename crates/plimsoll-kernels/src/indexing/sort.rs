//! Sorts rows, or finds their first elements in order. An order is a list of positions.
//!
//! NaN comes after all numbers, and equal elements keep their order, in either direction. `f32` keys and their
//! positions are sorted together as one integer.

use crate::number::Number;
use crate::parallel::{PIECE, Pieces, for_each_cut, for_each_cut_with};
use crate::walk::Walk;

/// The direction of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Ascending,
    Descending,
}

/// A number type whose rows can be sorted.
pub trait Sorted: Number {
    /// Finds the positions of the first elements in order. `keys` has space for all of them. With `unsorted`, they are
    /// the same elements, but in any order.
    fn first_places(row: Row<'_, Self>, direction: Direction, count: usize, unsorted: bool, keys: &mut [u64]);
}

/// The elements of a row.
#[derive(Clone, Copy)]
pub struct Row<'a, T> {
    elements: &'a [T],
    step: usize,
}

impl<T: Copy> Row<'_, T> {
    fn at(self, i: usize) -> T {
        self.elements[i * self.step]
    }
}

/// An integer key that sorts like the number: its bits, adjusted for the sign.
fn key(x: f32) -> u32 {
    match x.to_bits() {
        _ if x.is_nan() => u32::MAX,
        _ if x == 0.0 => 1 << 31,
        bits if bits >> 31 == 1 => !bits,
        bits => bits | 1 << 31,
    }
}

/// Moves the `count` smallest keys to the front, in order unless `unsorted`.
fn first<K: Ord>(keys: &mut [K], count: usize, unsorted: bool) {
    if count < keys.len() && count > 0 {
        keys.select_nth_unstable(count - 1);
    }
    if !unsorted {
        keys[..count].sort_unstable();
    }
}

impl Sorted for f32 {
    fn first_places(row: Row<'_, f32>, direction: Direction, count: usize, unsorted: bool, keys: &mut [u64]) {
        if u32::try_from(keys.len()).is_err() {
            return by_comparing(row, direction, count, unsorted, keys);
        }
        let turned = if direction == Direction::Descending { u32::MAX } else { 0 };
        for (i, out) in keys.iter_mut().enumerate() {
            *out = u64::from(key(row.at(i)) ^ turned) << 32 | i as u64;
        }
        first(keys, count, unsorted);
        keys[..count].iter_mut().for_each(|key| *key &= u64::from(u32::MAX));
    }
}

impl Sorted for f64 {
    fn first_places(row: Row<'_, f64>, direction: Direction, count: usize, unsorted: bool, keys: &mut [u64]) {
        by_comparing(row, direction, count, unsorted, keys);
    }
}

impl Sorted for i64 {
    fn first_places(row: Row<'_, i64>, direction: Direction, count: usize, unsorted: bool, keys: &mut [u64]) {
        by_comparing(row, direction, count, unsorted, keys);
    }
}

fn by_comparing<T: Number>(
    row: Row<'_, T>,
    direction: Direction,
    count: usize,
    unsorted: bool,
    places: &mut [u64],
) {
    let order = |a: &u64, b: &u64| {
        let (x, y) = (row.at(*a as usize), row.at(*b as usize));
        let order = x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
        let order = if direction == Direction::Descending { order.reverse() } else { order };
        order.then_with(|| a.cmp(b))
    };
    places.iter_mut().enumerate().for_each(|(i, place)| *place = i as u64);
    if count < places.len() && count > 0 {
        places.select_nth_unstable_by(count - 1, order);
    }
    if !unsorted {
        places[..count].sort_unstable_by(order);
    }
}

/// Rows along the last dimension of a strided operand.
fn rows<'a, T>(
    shape: &[usize],
    (src, strides): (&'a [T], &[usize]),
) -> (Walk<1>, usize, impl Fn(usize) -> Row<'a, T>) {
    let last = shape.len() - 1;
    let walk = Walk::of_dims((0..last).map(|d| (shape[d], [strides[d]])));
    let step = strides[last];
    (walk, shape[last], move |from: usize| Row { elements: &src[from..], step })
}

/// Sorts each row of `src`. Writes its elements, and their original positions.
pub fn sort<T: Sorted>(
    shape: &[usize],
    src: (&[T], &[usize]),
    direction: Direction,
    values: &mut [T],
    places: &mut [i64],
) {
    assert_eq!(values.len(), places.len(), "sort: outputs");
    if values.is_empty() {
        return;
    }
    let (walk, len, row) = rows(shape, src);
    let chunk_len = (PIECE / 4 / len).max(1);
    let [step] = walk.run_strides();
    let cut = (Pieces::of(values, chunk_len * len), Pieces::of(places, chunk_len * len));
    for_each_cut(walk.len().div_ceil(chunk_len), cut, |chunk, (values, places)| {
        let positions = chunk * chunk_len..walk.len().min((chunk + 1) * chunk_len);
        walk.for_each_run(positions, |at, [from], run| {
            for i in 0..run {
                let row = row(from + i * step);
                let to = (at + i - chunk * chunk_len) * len;
                let (values, places) = (&mut values[to..][..len], &mut places[to..][..len]);
                T::first_places(row, direction, len, false, bytemuck::cast_slice_mut(places));
                values.iter_mut().zip(places).for_each(|(value, &mut place)| *value = row.at(place as usize));
            }
        });
    });
}

/// Floats of scratch memory for one worker of [`topk`].
pub fn topk_scratch_len(len: usize) -> usize {
    2 * len
}

/// Finds the first `count` elements of each row of `src` in order. Writes their values and positions.
pub fn topk<T: Sorted>(
    shape: &[usize],
    src: (&[T], &[usize]),
    (direction, unsorted): (Direction, bool),
    count: usize,
    (values, places): (&mut [T], &mut [i64]),
    scratch: &mut [f32],
) {
    assert_eq!(values.len(), places.len(), "topk: outputs");
    if values.is_empty() {
        return;
    }
    let (walk, len, row) = rows(shape, src);
    let cut = (Pieces::of(values, count), Pieces::of(places, count));
    for_each_cut_with(walk.len(), cut, scratch, topk_scratch_len(len), |chunk, (values, places), keys| {
        let keys = bytemuck::cast_slice_mut(keys);
        walk.for_each_run(chunk..chunk + 1, |_, [from], _| {
            let row = row(from);
            T::first_places(row, direction, count, unsorted, keys);
            for (i, &place) in keys[..count].iter().enumerate() {
                (values[i], places[i]) = (row.at(place as usize), place as i64);
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn keys_order_as_numbers_do_with_what_is_none_last() {
        let x = [f32::NEG_INFINITY, -2.0, -1e-30, 0.0, 1e-40, 1.0, f32::INFINITY, f32::NAN];
        assert!(x.windows(2).all(|pair| key(pair[0]) < key(pair[1])));
        assert_eq!(key(-0.0), key(0.0));
    }

    #[test]
    fn rows_are_sorted_stably_either_way_in_every_type() {
        let x: Vec<f32> = random(600, 1).iter().map(|x| (x * 8.0).floor()).collect();
        for direction in [Direction::Ascending, Direction::Descending] {
            let (mut values, mut places) = (vec![0.0; 600], vec![0; 600]);
            sort(&[3, 200], (&x, &[200, 1]), direction, &mut values, &mut places);
            let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            let (mut wide_values, mut wide_places) = (vec![0.0; 600], vec![0; 600]);
            sort(&[3, 200], (&wide, &[200, 1]), direction, &mut wide_values, &mut wide_places);
            assert_eq!(places, wide_places);
            for (row, (values, places)) in values.chunks(200).zip(places.chunks(200)).enumerate() {
                let mut expected: Vec<i64> = (0..200).collect();
                expected.sort_by(|&a, &b| {
                    let [a, b] = [a, b].map(|i| x[row * 200 + i as usize]);
                    if direction == Direction::Ascending { a.total_cmp(&b) } else { b.total_cmp(&a) }
                });
                assert_eq!(places, expected);
                assert!(places.iter().zip(values).all(|(&i, &value)| x[row * 200 + i as usize] == value));
            }
        }
    }

    #[test]
    fn the_first_of_a_row_are_those_of_the_sorted_row() {
        let x = random(500, 2);
        let (mut sorted, mut places) = (vec![0.0; 500], vec![0; 500]);
        sort(&[5, 100], (&x, &[1, 5]), Direction::Descending, &mut sorted, &mut places);
        let (mut values, mut found) = (vec![0.0; 35], vec![0; 35]);
        let mut scratch = vec![0f64; 100];
        let scratch = bytemuck::cast_slice_mut(&mut scratch);
        topk(&[5, 100], (&x, &[1, 5]), (Direction::Descending, false), 7, (&mut values, &mut found), scratch);
        for row in 0..5 {
            assert_eq!(values[row * 7..][..7], sorted[row * 100..][..7]);
            assert_eq!(found[row * 7..][..7], places[row * 100..][..7]);
        }
    }
}
