//! Views, and elements at other places.
//!
//! | file | what it has |
//! |---|---|
//! | `view` | other ways to look at the same storage |
//! | `dims` | dimensions moved, put in, taken out and matched |
//! | `part` | parts of a tensor as views |
//! | `split` | a tensor cut along a dimension into views |
//! | `as_strided` | a part that lies as a view lies in another tensor |
//! | `cat` | tensors one after the other, and along a new dimension |
//! | `joined` | forms of `cat` and `stack` |
//! | `repeat` | elements repeated |
//! | `flip` | the order of a dimension turned round, or begun at another place |
//! | `pad` | elements around a tensor |
//! | `tri` | the upper or lower triangle of matrices |
//! | `diagonals` | diagonals: taken, made, filled and added up |
//! | `memory_format` | in which order an image's elements lie |

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

/// What the suite runs of the operators here, by their files.
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
