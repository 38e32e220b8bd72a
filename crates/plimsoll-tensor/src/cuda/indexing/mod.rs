//! Access to elements by index, by condition and by order.
//!
//! | file | contents |
//! |---|---|
//! | `index` | rows by index, and sums of rows by index |
//! | `scatter` | elements written or added at an index |
//! | `mask` | triangles of matrices, positions and elements that a mask selects |
//! | `sort` | sorting rows, and searching sorted rows |

pub(crate) mod index;
pub(crate) mod mask;
pub(crate) mod scatter;
pub(crate) mod sort;
