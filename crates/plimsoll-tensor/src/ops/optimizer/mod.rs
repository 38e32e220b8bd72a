//! Optimizer steps, and gradient clipping and unscaling before them.
//!
//! | file | contents |
//! |---|---|
//! | `step` | optimizer steps over any number of parameters |
//! | `adamw_8bit` | AdamW with moments in 8 bits on the host |
//! | `one_by_one` | rules that a GPU's kernels apply to one parameter at a time |
//! | `rounded` | cases of steps with state in 8 bits, or rounded stochastically |
//! | `captured_step` | optimizer steps in a captured graph |
//! | `clip` | gradient clipping |
//! | `foreach_copy` | copies of many tensors in one call |
//! | `unscale` | unscaling the gradients of a scaled loss |

mod adamw_8bit;
pub(super) mod captured_step;
pub(super) mod clip;
pub(super) mod foreach_copy;
pub(super) mod one_by_one;
mod rounded;
pub(super) mod step;
pub(super) mod unscale;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("clip", clip::cases),
    ("foreach_copy", foreach_copy::cases),
    ("rounded", rounded::cases),
    ("step", step::cases),
    ("unscale", unscale::cases),
];
