//! The GPU memory that a process uses outside PyTorch's allocator, computed by rules and from a table of libraries.
//!
//! Four rules cover most of it. The context grows with the number of threads that a GPU can hold. Its pool of local memory grows
//! with the largest stack of a kernel. Requests are rounded up to pages. NCCL's buffers depend on its channels
//! ([`crate::nccl`]). For everything else there is a table of the bytes that each library takes when it is first used.
//! Everything here is a pure function of a row of the table of GPUs.
//!
//! | file | contents |
//! |---|---|
//! | `outside/pages.rs` | rounding to pages of 2 MiB, and the pages that small requests share |
//! | `outside/context.rs` | the context, the kernels' local memory, the driver's reserve |
//! | `outside/libraries.rs` | libraries at their first use, streams, graphs |

mod context;
mod libraries;
mod pages;

pub use crate::figure::{Basis, Figure};
pub use context::{context, local_memory_bytes, reserve};
pub use libraries::{CUBLAS_HANDLE_BYTES, Library, Loading, cublas, graph_bytes, stream_bytes};
pub use pages::{PAGE_BYTES, SharedPages, whole_pages};
