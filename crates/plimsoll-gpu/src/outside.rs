//! What a process takes of a GPU outside PyTorch's allocator, as laws and a table of first uses.
//!
//! Four laws cover most of it: the context grows with the threads that a GPU can hold, its pool of local memory with the largest stack
//! of a kernel, requests take pages, and NCCL's buffers follow from its channels ([`crate::nccl`]). What is left is a table:
//! how much each library takes when it is first used. Everything here is a pure function of a row of the table of GPUs.
//!
//! | file | contents |
//! |---|---|
//! | `outside/figure.rs` | [`Figure`]: bytes, and how they are known |
//! | `outside/pages.rs` | requests in pages of 2 MiB, which small ones share |
//! | `outside/context.rs` | the context, local memory of kernels, the driver's reserve |
//! | `outside/libraries.rs` | first uses of libraries, streams, graphs |

mod context;
mod figure;
mod libraries;
mod pages;

pub use context::{context, local_memory_bytes, reserve};
pub use figure::{Basis, Figure};
pub use libraries::{Library, Loading, graph_bytes, stream_bytes};
pub use pages::{PAGE_BYTES, SharedPages, whole_pages};
