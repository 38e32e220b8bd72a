//! Steps of optimizers, and what is done to gradients before them.
//!
//! | file | what it has |
//! |---|---|
//! | `step` | SGD and Adam, and any rule |
//! | `averages` | rules that divide by running averages |
//! | `adafactor` | Adafactor, which looks at a whole matrix |
//! | `muon` | Muon, which does, too |
//! | `direction` | against the gradient, or along it |
//! | `short` | steps of short types |
//! | `clip` | the norm of all gradients |
//! | `unscale` | gradients of a scaled loss |

mod adafactor;
mod averages;
pub mod clip;
mod direction;
mod muon;
pub mod short;
pub(crate) mod step;
pub mod unscale;

pub use adafactor::AdafactorStep;
pub use averages::{AdagradStep, LionStep, RmsPropStep};
pub use muon::{LrAdjustment, MuonStep};
pub use step::{AdamStep, Decay, Rule, SgdStep, adam_step, sgd_step};
