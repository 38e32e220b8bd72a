//! The names that most training programs import: `use plimsoll::prelude::*`.
//!
//! It has tensors and devices, the modules [`nn`] and [`optim`], the traits whose methods a loop calls, and the macros that define
//! layers. It has no name of Rust's own prelude: a program imports [`plimsoll::Result`](crate::Result) itself, or uses its own.
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! module! {
//!     struct Net(s) {
//!         fc1: nn::Linear = nn::Linear::new(s, 4, 8)?,
//!         fc2: nn::Linear = nn::Linear::new(s, 8, 2)?,
//!     }
//!
//!     fn forward(&self, x: &Tensor) -> plimsoll::Result<Tensor> {
//!         self.fc2.forward(&self.fc1.forward(x)?.relu()?)
//!     }
//! }
//!
//! let device = Device::cpu();
//! let model = Net::new(&Scope::new(&device, 1))?;
//! let mut sgd = optim::Sgd::new(model.parameters(), optim::SgdOptions { lr: 0.1, ..Default::default() });
//! let (x, y) = (Tensor::randn(&[3, 4], &device)?, Tensor::zeros(&[3, 2], &device)?);
//! model.forward(&x)?.mse_loss(&y)?.backward()?;
//! sgd.step()?;
//! sgd.zero_grad();
//! # Ok::<(), plimsoll::Error>(())
//! ```

pub use plimsoll_tensor::{DType, Device, Reduction, Tensor, no_grad};

pub use crate::data::DataLoader;
pub use crate::nn::{self, Init, Module, Parameter, Scope, Sequential};
pub use crate::optim::lr_scheduler::Scheduler;
pub use crate::optim::{
    self, Adam, AdamOptions, AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions, clip_grad_norm_,
};
pub use crate::{members, module};
