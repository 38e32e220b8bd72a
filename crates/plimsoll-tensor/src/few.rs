//! Short lists, filled in place.

use smallvec::{Array, SmallVec};

/// Appends a few items. Faster than `extend` and `collect` if the items fit inline: nothing is reserved, every push is
/// inlined, and the list is not moved after it is filled (`bench dispatch`).
#[inline]
pub(crate) fn fill<A: Array>(list: &mut SmallVec<A>, items: impl IntoIterator<Item = A::Item>) {
    for item in items {
        list.push(item);
    }
}
