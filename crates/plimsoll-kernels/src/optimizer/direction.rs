//! The option `maximize` of every optimizer: a step along the gradient instead of against it.

use super::super::number::Float;

/// The factor of a gradient.
pub(super) fn sign<T: Float>(maximize: bool) -> T {
    T::of(if maximize { -1.0 } else { 1.0 })
}
