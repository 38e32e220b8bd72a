//! The elementwise sum of parts, in an order that does not depend on the number of threads: a balanced tree over the parts.
//!
//! The tree over n parts adds two trees: one over the first k parts, where k is the largest power of two below n, and one over
//! the rest. Four parts are (a + b) + (c + d), and five are ((a + b) + (c + d)) + e. If the number of parts is a power of two,
//! the sum over each half of them is a node of the tree over all of them.

use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece};

/// The number of elements to sum together, so that the nodes of their trees fit into the L1 cache.
const BLOCK: usize = 256;
/// The maximum number of levels of a tree: one for each bit of the number of parts.
const LEVELS: usize = 32;

/// Writes the sum of the parts of `x`, times `scale`, to `out`. `x` is `parts` times as long as `out`.
pub fn ordered_sum<T: Float + Send + Sync>(parts: usize, x: &[T], scale: T, out: &mut [T]) {
    let len = out.len();
    assert!(parts > 0 && x.len() >= parts * len, "{} elements in {parts} parts of {len}", x.len());
    let parts: Vec<_> = (0..parts).map(|part| Some(&x[part * len..(part + 1) * len])).collect();
    ordered_sum_of(&parts, scale, out);
}

/// Like [`ordered_sum`], for parts that are not neighbours. Each is as long as `out`; `None` is what `out` holds.
pub fn ordered_sum_of<T: Float + Send + Sync>(parts: &[Option<&[T]>], scale: T, out: &mut [T]) {
    let len = out.len();
    let fits = |part: &Option<&[T]>| part.is_none_or(|part| part.len() == len);
    assert!(!parts.is_empty() && parts.iter().all(fits), "parts of {len} elements");
    for_each_piece(out, PIECE, |start, out| {
        let mut nodes = [[T::of(0.0); BLOCK]; LEVELS];
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let first = start + block * BLOCK;
            let mut depth = 0;
            for (part, x) in parts.iter().enumerate() {
                let x = x.map_or(&*out, |x| &x[first..first + out.len()]);
                nodes[depth][..out.len()].copy_from_slice(x);
                depth += 1;
                // The number of subtrees completed here is the number of trailing zeros in the number of parts so far.
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

/// Adds the last node to the one before it. Returns the number of nodes that remain.
fn merge<T: Float>(nodes: &mut [[T; BLOCK]; LEVELS], depth: usize, len: usize) -> usize {
    let (left, right) = nodes.split_at_mut(depth - 1);
    left[depth - 2][..len].iter_mut().zip(&right[0][..len]).for_each(|(left, right)| *left += *right);
    depth - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum as a balanced tree, computed directly from its definition.
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
                // One part is in the output.
                let own = len % parts;
                let mut also = x[own * len..(own + 1) * len].to_vec();
                let part = |part: usize| (part != own).then(|| &x[part * len..(part + 1) * len]);
                ordered_sum_of(&(0..parts).map(part).collect::<Vec<_>>(), 0.5, &mut also);
                assert!(also == out, "part {own} of {parts} in the output");
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
