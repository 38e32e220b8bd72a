//! Views, and copies with elements moved, repeated, padded or joined.
//!
//! | file | contents |
//! |---|---|
//! | `view` | views of the same storage in other shapes |
//! | `dims` | moving, inserting, removing and matching dimensions |
//! | `part` | parts of a tensor as views |
//! | `split` | splitting a tensor along a dimension into views |
//! | `as_strided` | the part of a tensor that corresponds to a view of another tensor |
//! | `cat` | concatenating tensors, and stacking them along a new dimension |
//! | `joined` | variants of `cat` and `stack` |
//! | `repeat` | repeating elements |
//! | `flip` | reversing or rotating a dimension |
//! | `pad` | padding |
//! | `tri` | the upper or lower triangle of matrices |
//! | `diagonals` | extracting, creating, filling and summing diagonals |
//! | `memory_format` | the memory order of an image's elements |

pub(super) mod as_strided;
pub(super) mod cat;
pub(super) mod diagonals;
pub(super) mod dims;
pub(super) mod flip;
pub(super) mod joined;
pub(super) mod memory_format;
pub(super) mod pad;
pub(super) mod part;
pub(super) mod repeat;
pub(super) mod split;
pub(super) mod tri;
pub(super) mod view;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("as_strided", as_strided::cases),
    ("cat", cat::cases),
    ("dims", dims::cases),
    ("flip", flip::cases),
    ("pad", pad::cases),
    ("part", part::cases),
    ("repeat", repeat::cases),
    ("split", split::cases),
    ("tri", tri::cases),
    ("view", view::cases),
];
