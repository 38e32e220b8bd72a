//! Short lists, filled where they stay.

use smallvec::{Array, SmallVec};

/// Appends a few items. Faster than `extend` and `collect` while they fit into the list itself: nothing is reserved, every
/// push is inlined, and a list that was just written is not moved (`bench dispatch`).
#[inline]
pub(crate) fn fill<A: Array>(list: &mut SmallVec<A>, items: impl IntoIterator<Item = A::Item>) {
    for item in items {
        list.push(item);
    }
}
