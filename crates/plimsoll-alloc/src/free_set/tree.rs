//! The blocks of one bin in order: a treap with intrusive links.
//!
//! A treap is a search tree by rank and a heap by [`priority`], a pseudo-random number. It has the shape of a tree
//! built by inserting in random order. So its depth is logarithmic for any order of insertions and removals, and a
//! block needs to store only the two links.

use crate::block::{Block, BlockId, Slab};
use crate::config::TieOrder;

/// A tree, by its root.
pub(super) type Tree = Option<BlockId>;

/// Whether a block is a leaf.
#[inline]
pub(super) fn is_leaf(block: &Block) -> bool {
    block.lower.is_none() && block.upper.is_none()
}

/// Inserts an unlinked block into the tree at `root`; returns the new root.
#[inline(never)] // most bins hold one block: keep this code out of the common path
pub(super) fn insert(blocks: &mut Slab, order: TieOrder, root: BlockId, id: BlockId) -> BlockId {
    let rank = order.rank(&blocks[id]);
    if priority(root) < priority(id) {
        (blocks[id].lower, blocks[id].upper) = split(blocks, order, Some(root), rank);
        return id;
    }
    let Block { lower, upper, .. } = blocks[root];
    let put = |blocks: &mut Slab, below: Tree| match below {
        Some(root) => insert(blocks, order, root, id),
        None => id,
    };
    if rank < order.rank(&blocks[root]) {
        blocks[root].lower = Some(put(blocks, lower));
    } else {
        blocks[root].upper = Some(put(blocks, upper));
    }
    root
}

/// Removes a block from `tree`.
///
/// # Panics
/// If the block is not in the tree.
#[inline(never)]
pub(super) fn remove(blocks: &mut Slab, order: TieOrder, tree: Tree, id: BlockId) -> Tree {
    let Some(root) = tree else { panic!("no block is cached at {}", blocks[id].addr) };
    let Block { lower, upper, .. } = blocks[root];
    if root == id {
        return join(blocks, lower, upper);
    }
    if order.rank(&blocks[id]) < order.rank(&blocks[root]) {
        blocks[root].lower = remove(blocks, order, lower, id);
    } else {
        blocks[root].upper = remove(blocks, order, upper, id);
    }
    tree
}

/// The first block for which `far` holds. `far` must be false up to some block in the order, and true from there on.
#[inline]
pub(super) fn first(blocks: &Slab, mut tree: Tree, far: impl Fn(&Block) -> bool) -> Option<BlockId> {
    let mut found = None;
    while let Some(root) = tree {
        let block = &blocks[root];
        if far(block) {
            (found, tree) = (tree, block.lower);
        } else {
            tree = block.upper;
        }
    }
    found
}

/// The last block for which `near` holds. `near` must be true up to some block in the order, and false from there on.
#[inline]
pub(super) fn last(blocks: &Slab, mut tree: Tree, near: impl Fn(&Block) -> bool) -> Option<BlockId> {
    let mut found = None;
    while let Some(root) = tree {
        let block = &blocks[root];
        if near(block) {
            (found, tree) = (tree, block.upper);
        } else {
            tree = block.lower;
        }
    }
    found
}

/// Splits a tree into the blocks before `rank` and those after it.
fn split(blocks: &mut Slab, order: TieOrder, tree: Tree, rank: (u64, u64, u64)) -> (Tree, Tree) {
    let Some(root) = tree else { return (None, None) };
    let Block { lower, upper, .. } = blocks[root];
    if order.rank(&blocks[root]) < rank {
        let (near, far) = split(blocks, order, upper, rank);
        blocks[root].upper = near;
        (tree, far)
    } else {
        let (near, far) = split(blocks, order, lower, rank);
        blocks[root].lower = far;
        (near, tree)
    }
}

/// Joins two trees; all blocks of the first come before those of the second.
fn join(blocks: &mut Slab, near: Tree, far: Tree) -> Tree {
    let (Some(left), Some(right)) = (near, far) else { return near.or(far) };
    if priority(left) > priority(right) {
        blocks[left].upper = join(blocks, blocks[left].upper, far);
        near
    } else {
        blocks[right].lower = join(blocks, near, blocks[right].lower);
        far
    }
}

/// A bijective hash of the id (`lowbias32` of Chris Wellons' hash prospector).
fn priority(id: BlockId) -> u32 {
    let x = id.number();
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}
