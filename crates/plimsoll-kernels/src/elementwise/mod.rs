//! Functions of each element, copies and fills.
//!
//! | file | what it has |
//! |---|---|
//! | `map` | a function of each element of one to three operands, of any types |
//! | `combine` | three operands in one pass |
//! | `strided` | copies and fills of any strides |

pub mod combine;
pub(crate) mod map;
pub mod strided;

pub use map::{Operand, apply, change, change_both, map, update, update_any, zip, zip3};
