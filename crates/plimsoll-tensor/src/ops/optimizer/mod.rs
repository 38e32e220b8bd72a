//! Steps of optimizers, and what is done to gradients before them.
//!
//! | file | what it has |
//! |---|---|
//! | `step` | optimizer steps over any number of parameters |
//! | `one_by_one` | rules as a GPU's kernels take them, one parameter at a time |
//! | `captured_step` | the steps of optimizers in a capture |
//! | `clip` | gradient clipping |
//! | `unscale` | gradients of a scaled loss brought back to their own size |

pub(super) mod captured_step;
pub(super) mod clip;
pub(super) mod one_by_one;
pub(super) mod step;
pub(super) mod unscale;

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("clip", clip::cases), ("step", step::cases), ("unscale", unscale::cases)];
