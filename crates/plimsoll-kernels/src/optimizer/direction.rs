//! Against the gradient, or along it: the option `maximize` of every optimizer.

use super::super::number::Float;

/// What a gradient is multiplied by.
pub(super) fn sign<T: Float>(maximize: bool) -> T {
    T::of(if maximize { -1.0 } else { 1.0 })
}
