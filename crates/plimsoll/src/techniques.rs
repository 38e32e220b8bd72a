//! The usual memory-saving techniques, each in a few lines. This module has no code.
//!
//! The table gives peaks in MB, for three steps of a network of eight layers of width 1,024, here on a simulated device and in
//! PyTorch on a stand-in GPU. `tests/techniques.rs` compares them. The first rows use a batch of 2,048, where activations take
//! most of the memory; the last rows use a batch of 32, where parameters, gradients and optimizer state do.
//!
//! | technique | PyTorch | here |
//! |---|---|---|
//! | none | 209.7 | 184.6 |
//! | [`save_on_cpu`](plimsoll_tensor::save_on_cpu::save_on_cpu) | 96.5 | 88.1 |
//! | [`checkpoint_sequential`](plimsoll_tensor::checkpoint::checkpoint_sequential), four segments | 134.3 | 125.9 |
//! | gradients of four quarters of the batch accumulated, then clipped | 111.2 | 107.0 |
//! | [`autocast`](plimsoll_tensor::autocast::autocast) to `bfloat16` | 157.3 | 142.6 |
//! | no training: [`inference_mode`](plimsoll_tensor::inference_mode), outputs to the host | 59.8 | 58.8 |
//! | none, batch of 32, SGD | 67.4 | 67.4 |
//! | [`step_in_backward`](crate::optim::step_in_backward) | 40.0 | 40.0 |
//! | AdamW (PyTorch's fused form) | 134.6 | 134.6 |
//! | [`AdamW8bit`](crate::optim::AdamW8bit) | | 84.5 |
//!
//! # Saved tensors wait on the host
//!
//! ```
//! use plimsoll::save_on_cpu::{HostMemory, save_on_cpu};
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 8, 8))?;
//! # let x = Tensor::ones(&[4, 8], &device)?;
//! let loss = save_on_cpu(HostMemory::Pinned, || model.forward(&x)?.square()?.mean())?;
//! loss.backward()?;
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Saved tensors wait on the host, and the GPU does not
//!
//! Copies overlap with the computation, on their own streams. By default, a tensor leaves the GPU only if, according to
//! the GPU's datasheet, its copies are hidden; the order of the last backward pass decides what is copied back next.
//!
//! ```
//! use plimsoll::offload::{OffloadActivations, OffloadOptions};
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::like("H200")?);
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 8, 8))?;
//! # let x = Tensor::ones(&[4, 8], &device)?;
//! let offload = OffloadActivations::new(OffloadOptions::default()); // kept for all steps
//! let loss = offload.run(|| model.forward(&x)?.square()?.mean())?;
//! loss.backward()?;
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Optimizer state waits on the host
//!
//! While the backward pass computes gradients, the state of the parameters that are stepped next is copied to the GPU, and that of
//! others back. `OptimizerOf::with_offloaded_state` does the same in a step after the backward pass, which then takes as long as
//! the copies.
//!
//! ```
//! use plimsoll::optim::{AdamWOptions, step_in_backward};
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::like("H200")?);
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 8, 8))?;
//! # let x = Tensor::ones(&[4, 8], &device)?;
//! let steps = step_in_backward(&model.parameters(), AdamWOptions::default())?.with_offloaded_state();
//! model.forward(&x)?.square()?.mean()?.backward()?; // also steps
//! # drop(steps);
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Activations are computed twice
//!
//! ```
//! use plimsoll::checkpoint::checkpoint;
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let weight = Tensor::ones(&[8, 8], &device)?.requires_grad_(true)?;
//! # let x = Tensor::ones(&[4, 8], &device)?;
//! let block = weight.clone();
//! let y = checkpoint(move |x| x[0].linear(&block, None)?.gelu(), &[&x])?;
//! y.sum()?.backward()?;
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Activations within a budget
//!
//! The blocks are measured once. Then the cheapest schedule that keeps no more than the budget runs: some blocks keep what they
//! save, the others are computed again. `with_offload(bytes)` also moves saved tensors to pinned host memory: at most
//! this many bytes, and only as far as the copies are hidden.
//!
//! ```
//! use plimsoll::checkpoint::{Budget, Checkpointer};
//! # use plimsoll::nn::{Linear, ModuleList, Scope};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let blocks = ModuleList::new(&Scope::new(&device, 1), 16, |s| Linear::new(s, 8, 8))?;
//! # let x = Tensor::ones(&[4, 8], &device)?;
//! let checkpointer = Checkpointer::new(Budget::Bytes(64 << 20)); // or Budget::Auto: as little as possible
//! let y = checkpointer.forward(&blocks.steps(), &x)?;
//! y.sum()?.backward()?;
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # A step without requests for memory
//!
//! ```
//! use plimsoll::Traced;
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 8, 8))?;
//! # let x = Tensor::ones(&[4, 8], &device)?;
//! let mut step = Traced::new(&device);
//! for _ in 0..3 {
//!     step.run(|| model.forward(&x)?.square()?.mean()?.backward())?; // the third run uses the planned arena
//! }
//! assert!(step.plan().is_some());
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # A large batch in parts, and clipping without a copy
//!
//! ```
//! use plimsoll::optim::{Optimizer, Sgd, SgdOptions, clip_grad_norm_};
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 8, 8))?;
//! # let batches = vec![Tensor::ones(&[4, 8], &device)?; 4];
//! let mut sgd = Sgd::new(model.parameters(), SgdOptions::default());
//! for batch in &batches {
//!     model.forward(batch)?.square()?.mean()?.div_scalar(batches.len() as i64)?.backward()?; // adds in place
//! }
//! clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
//! sgd.step()?;
//! sgd.zero_grad();
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Moments in 8 bits
//!
//! Parameters of at least 4,096 elements take 2.03 bytes of optimizer state for each element instead of 8. The values are those of
//! bitsandbytes, whose state dicts load.
//!
//! ```
//! use plimsoll::optim::{AdamW8bit, AdamW8bitOptions, Optimizer};
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::without_bias(s, 64, 64))?;
//! # let x = Tensor::ones(&[4, 64], &device)?;
//! let mut adamw = AdamW8bit::new(model.parameters(), AdamW8bitOptions { lr: 1e-4, ..AdamW8bitOptions::default() });
//! model.forward(&x)?.square()?.mean()?.backward()?;
//! let before = device.memory_allocated();
//! adamw.step()?;
//! assert_eq!(device.memory_allocated() - before, 2 * 4096 + 2 * 512); // a `float32` for each block of 256
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Training in `bfloat16` alone
//!
//! Rounding to nearest loses updates below half a unit of a parameter. Stochastic rounding keeps them on average, without the 12 bytes
//! for each element of 32-bit master weights and moments; with moments in 8 bits, parameters, gradients and state take 6 bytes.
//!
//! ```
//! use plimsoll::optim::{AdamW8bit, AdamW8bitOptions, Optimizer};
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{DType, Device, SimConfig, Tensor};
//! # let device = Device::sim(SimConfig::new(1 << 30));
//! # let mut model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::without_bias(s, 64, 64))?;
//! # let x = Tensor::ones(&[4, 64], &device)?.to_dtype(DType::BF16)?;
//! model.bfloat16()?;
//! let options = AdamW8bitOptions { lr: 1e-4, ..AdamW8bitOptions::default() };
//! let mut adamw = AdamW8bit::new(model.parameters(), options).with_stochastic_rounding(1); // 1 is the seed
//! model.forward(&x)?.square()?.mean()?.backward()?;
//! adamw.step()?;
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! # Inference, with batches streamed to the host
//!
//! ```
//! use plimsoll::inference_mode;
//! # use plimsoll::nn::{Linear, Module, Scope, Sequential};
//! # use plimsoll::{Device, SimConfig, Tensor};
//! # let (device, host) = (Device::sim(SimConfig::new(1 << 30)), Device::sim(SimConfig::new(1 << 30)));
//! # let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 8, 8))?;
//! # let batches = vec![Tensor::ones(&[4, 8], &host)?; 4];
//! model.eval();
//! let mut outputs = Vec::new();
//! for batch in &batches {
//!     let output = inference_mode(|| model.forward(&batch.to_device(&device)?))?;
//!     outputs.push(output.to_device(&host)?); // one batch is on the device at a time
//! }
//! # assert_eq!(outputs.len(), 4);
//! # Ok::<(), plimsoll::Error>(())
//! ```
//!
//! For mixed precision, see [`autocast`](plimsoll_tensor::autocast) and [`amp`](crate::amp); for steps in the backward pass,
//! [`step_in_backward`](crate::optim::step_in_backward).
