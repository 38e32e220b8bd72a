//! Steps of optimizers, and operations on gradients before them.
//!
//! | file | contents |
//! |---|---|
//! | `step` | SGD and Adam, and any rule |
//! | `averages` | rules that divide by running averages |
//! | `adafactor` | Adafactor, which uses the complete matrix |
//! | `muon` | Muon, which also uses the complete matrix |
//! | `direction` | steps against the gradient, or along it |
//! | `short` | steps of parameters in 16-bit types |
//! | `clip` | the norm of all gradients |
//! | `unscale` | unscaling the gradients of a scaled loss |

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
