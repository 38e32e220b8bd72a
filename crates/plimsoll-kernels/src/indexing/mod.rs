//! Elements by index, by condition and by order.
//!
//! | file | what it has |
//! |---|---|
//! | `index` | elements by index: picked, put, added |
//! | `mask` | elements by a condition |
//! | `sort` | rows in order |
//! | `search` | places in rows that are in order |

pub mod index;
pub mod mask;
pub mod search;
pub mod sort;
