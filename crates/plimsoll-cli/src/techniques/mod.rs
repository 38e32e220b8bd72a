//! Techniques that make a PyTorch program use less memory, applied to the unmodified program: [`Technique`], [`Set`].
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `technique.rs` | the names of the techniques in Rust |
//! | `row.rs` | the facts about a technique |
//! | `expandable.rs`, `free_grads.rs`, `step_in_backward.rs` | the rows, one technique per file: fewer gaps and gradients |
//! | `checkpoint.rs`, `checkpoint_nested.rs`, `checkpoint_segments.rs`, `offload.rs` | fewer activations on the GPU |
//! | `offload_optimizer.rs`, `no_foreach.rs`, `fused.rs`, `adam_8bit.rs` | less optimizer state, fewer temporary copies |
//! | `chunked_loss.rs`, `bf16.rs` | a smaller loss; a smaller type |
//! | `split.rs`, `accumulate.rs` | the batch in parts |
//! | `compile.rs`, `memory_budget.rs`, `no_compile.rs` | `torch.compile`, or none |
//! | `fsdp.rs` | several GPUs |
//! | `no_grad.rs`, `host_outputs.rs`, `offload_weights.rs`, `half.rs`, `bf16_weights.rs` | programs that only compute outputs |
//! | `freeze.rs`, `lora.rs` | train only a part of the model, or adapters |
//! | `tensor_parallel.rs` | several GPUs, each with a part of the layers |
//! | `offload_disk.rs` | a host that is too small as well |
//! | `table.rs` | all rows, and the methods of a technique that read its row |
//! | `set.rs` | the set of a `--with` |
//! | `python.rs` | a set as the Python package reads it |
//!
//! The Python package that applies them inside the user's Python has one file per technique:
//! `../../python/plimsoll/techniques/`.

mod accumulate;
mod adam_8bit;
mod bf16;
mod bf16_weights;
mod checkpoint;
mod checkpoint_nested;
mod checkpoint_segments;
mod chunked_loss;
mod compile;
mod expandable;
mod free_grads;
mod freeze;
mod fsdp;
mod fused;
mod half;
mod host_outputs;
mod lora;
mod memory_budget;
mod no_compile;
mod no_foreach;
mod no_grad;
mod offload;
mod offload_disk;
mod offload_optimizer;
mod offload_weights;
mod python;
mod row;
mod set;
mod split;
mod step_in_backward;
mod table;
mod technique;
mod tensor_parallel;

pub(crate) use self::row::{Alone, Joins, Levels, Operators, Programs, Shown, Time, Value};
pub(crate) use self::set::Set;
pub(crate) use self::table::help;
pub(crate) use self::technique::{Allowed, Numbers, Technique};
