//! Elementwise functions, copies and fills.
//!
//! | file | contents |
//! |---|---|
//! | `map` | a function of each element of one to three operands, of any types |
//! | `combine` | in-place updates with two other operands |
//! | `strided` | copies and fills for any strides |

pub mod combine;
pub(crate) mod map;
pub mod strided;

pub use map::{Operand, apply, change, change_both, map, update, update_any, zip, zip3};
