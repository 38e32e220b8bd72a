//! Elements by index, by condition and by order.
//!
//! | file | what it has |
//! |---|---|
//! | `index` | rows by index, and sums of rows by index |
//! | `scatter` | elements written or added at an index |
//! | `mask` | triangles of matrices, places and elements of a mask |
//! | `sort` | rows in order, and places in them |

pub(crate) mod index;
pub(crate) mod mask;
pub(crate) mod scatter;
pub(crate) mod sort;
