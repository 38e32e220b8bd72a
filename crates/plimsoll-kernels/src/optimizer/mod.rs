//! Steps of optimizers, and operations on gradients before them.
//!
//! | file | contents |
//! |---|---|
//! | `step` | SGD and Adam, and any rule |
//! | `averages` | rules that divide by running averages |
//! | `adafactor` | Adafactor, which uses the complete matrix |
//! | `muon` | Muon, which also uses the complete matrix |
//! | `adamw_8bit` | AdamW with moments in 8 bits |
//! | `eight_bit` | quantization of blocks to 8 bits |
//! | `direction` | steps against the gradient, or along it |
//! | `short` | steps of parameters in 16-bit types |
//! | `rounding` | stochastic rounding to `bfloat16` |
//! | `clip` | the norm of all gradients |
//! | `unscale` | unscaling the gradients of a scaled loss |

mod adafactor;
pub mod adamw_8bit;
mod averages;
pub mod clip;
mod direction;
pub mod eight_bit;
mod muon;
pub mod rounding;
pub mod short;
pub(crate) mod step;
pub mod unscale;

pub use adafactor::AdafactorStep;
pub use adamw_8bit::AdamW8bitStep;
pub use averages::{AdagradStep, LionStep, RmsPropStep};
pub use muon::{LrAdjustment, MuonStep};
pub use step::{AdamStep, Decay, Rule, SgdStep, adam_step, sgd_step};
