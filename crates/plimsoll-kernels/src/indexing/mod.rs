//! Access to elements by index, by condition and by order.
//!
//! | file | contents |
//! |---|---|
//! | `index` | elements by index: reading, writing, adding |
//! | `mask` | elements by a condition |
//! | `sort` | sorting rows |
//! | `search` | searching sorted rows |

pub mod index;
pub mod mask;
pub mod search;
pub mod sort;
