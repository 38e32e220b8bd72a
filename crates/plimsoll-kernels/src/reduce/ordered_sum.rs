//! The sum of parts, element by element, in one order whatever the number of threads: a balanced tree over the parts.
//!
//! The tree of n parts is that of the largest power of two below n, plus that of the rest: four parts are (a + b) + (c + d), five
//! are ((a + b) + (c + d)) + e. So the sums of the halves of a group are nodes of the whole group's tree.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};

/// Elements that are added up together: the nodes of their trees stay in the first cache.
const BLOCK: usize = 256;
/// Levels of a tree; as many as a number of parts has bits.
const LEVELS: usize = 32;

/// `x` is `parts` times as long as `out`; `out` becomes the sum of its parts, times `scale`.
pub fn ordered_sum<T: Float + Send + Sync>(parts: usize, x: &[T], scale: T, out: &mut [T]) {
    let len = out.len();
    assert!(parts > 0 && x.len() >= parts * len, "{} elements in {parts} parts of {len}", x.len());
    for_each_piece(out, PIECE, |start, out| {
        let mut nodes = [[T::of(0.0); BLOCK]; LEVELS];
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let first = start + block * BLOCK;
            let mut depth = 0;
            for part in 0..parts {
                let from = part * len + first;
                nodes[depth][..out.len()].copy_from_slice(&x[from..from + out.len()]);
                depth += 1;
                // As many complete subtrees end here as the number of parts so far has zeros at its end.
                for _ in 0..(part + 1).trailing_zeros() {
                    depth = merge(&mut nodes, depth, out.len());
                }
            }
            while depth > 1 {
                depth = merge(&mut nodes, depth, out.len());
            }
            out.iter_mut().zip(&nodes[0]).for_each(|(out, sum)| *out = *sum * scale);
        }
    });
}

/// Adds the last node to the one before; the number of nodes that are left.
fn merge<T: Float>(nodes: &mut [[T; BLOCK]; LEVELS], depth: usize, len: usize) -> usize {
    let (left, right) = nodes.split_at_mut(depth - 1);
    left[depth - 2][..len].iter_mut().zip(&right[0][..len]).for_each(|(left, right)| *left += *right);
    depth - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as its definition says.
    fn tree(parts: &[f32]) -> f32 {
        match parts.len() {
            1 => parts[0],
            n => {
                let left = n.next_power_of_two() / 2;
                tree(&parts[..left]) + tree(&parts[left..])
            }
        }
    }

    #[test]
    fn parts_are_added_as_a_balanced_tree() {
        for parts in [1, 2, 3, 4, 5, 6, 7, 8, 13, 64] {
            for len in [0, 1, 255, 700, 40_000] {
                // Values whose sum depends on the order.
                let value = |i: usize| (i.wrapping_mul(2_654_435_761) % 1_000_003) as f32 / 1000.0 - 500.0;
                let x: Vec<f32> = (0..parts * len).map(value).collect();
                let mut out = vec![0.0; len];
                ordered_sum(parts, &x, 0.5, &mut out);
                for (i, found) in out.iter().enumerate() {
                    let column: Vec<f32> = (0..parts).map(|part| x[part * len + i]).collect();
                    assert_eq!(
                        found.to_bits(),
                        (tree(&column) * 0.5).to_bits(),
                        "{parts} parts of {len}, element {i}"
                    );
                }
            }
        }
    }
}
