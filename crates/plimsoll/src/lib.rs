//! Train within a memory limit, with every byte accounted for.
//!
//! This is the library to import: it has layers ([`nn`]), optimizers ([`optim`]), saving ([`serialize`]), data ([`data`]) and
//! memory reports ([`memory`]) on top of the tensors of `plimsoll-tensor`, which are re-exported here. Where PyTorch has a
//! name for something, that name is used.
//!
//! ```
//! use plimsoll::prelude::*;
//!
//! let device = Device::cpu();
//! device.set_memory_limit(64 << 20);
//! let model = nn::Sequential::new(&nn::Scope::new(&device, 1))
//!     .add("fc1", |s| nn::Linear::new(s, 4, 32))?
//!     .add("relu", nn::ReLU::new)?
//!     .add("fc2", |s| nn::Linear::new(s, 32, 1))?;
//! let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
//! let (x, y) = (Tensor::randn(&[16, 4], &device)?, Tensor::ones(&[16, 1], &device)?);
//! let mut last = f32::INFINITY;
//! for _ in 0..20 {
//!     let loss = model.forward(&x)?.mse_loss(&y)?;
//!     sgd.zero_grad();
//!     loss.backward()?;
//!     sgd.step()?;
//!     last = loss.item()?;
//! }
//! assert!(last < 0.1);
//! println!("{}", device.memory_summary());
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `data/` | data sets, samplers, loaders with worker threads |
//! | `distributions/` | probability distributions |
//! | `memory/` | reports, recordings, figures of a running program |
//! | `state_dict/` | named tensors, from which layers are loaded |
//! | `nn/` | layers |
//! | `optim/` | optimizers |
//! | `serialize/` | the files of layers and optimizers |
//! | `amp.rs` | gradients scaled for `float16` |
//! | `dist.rs` | the ranks of a job that torchrun, srun or mpirun has started |
//! | `parallel/` | one model on several ranks |
//! | `captured_step.rs` | a training step that is captured and replayed |
//! | `trainer/` | the usual training loop |
//! | `fit/` | the fastest techniques within a memory limit, found by simulated runs |
//! | `techniques.rs` | the usual memory-saving techniques, as documentation |
//! | `prelude.rs` | the names that most programs import |
//! | `models/` | models whose parameters have the names of pretrained weights |

#![forbid(unsafe_code)]

pub mod amp;
mod captured_step;
pub mod data;
pub mod dist;
pub mod distributions;
pub mod fit;
pub mod memory;
pub mod models;
pub mod nn;
pub mod optim;
pub mod parallel;
pub mod prelude;
pub mod serialize;
mod state_dict;
pub mod techniques;
mod trainer;

pub use captured_step::CapturedStep;
pub use plimsoll_tensor::*;
pub use trainer::{EpochMetrics, Fitted, Progress, TrainError, Trainer, backward_in_parts};

/// The guide's example is compiled and run with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/in-rust.md")]
struct Readme;
