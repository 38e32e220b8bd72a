//! A model of the GPU and host memory that NCCL's communicators use: [`Communicator`].
//!
//! The links between the ranks ([`Topology`]) determine the number of channels, and the channels determine the bytes. The
//! formulas come from NCCL's source (2.21 to 2.30), and match NCCL 2.28.9 on two H100s in six modes at every step. Where no GPU
//! has confirmed them, such as for NVLS and InfiniBand, [`Channels::basis`] is derived or assumed.
//!
//! | file | contents |
//! |---|---|
//! | `nccl/version.rs` | [`Version`] |
//! | `nccl/variables.rs` | [`Variables`]: NCCL's environment variables that change its memory use |
//! | `nccl/topology.rs` | [`Topology`]: the ranks and the links between them |
//! | `nccl/channels.rs` | [`Channels`]: how many channels a communicator has |
//! | `nccl/bytes.rs` | [`Communicator`], [`Bytes`]: the bytes that a communicator takes, and when |

mod bytes;
mod channels;
mod topology;
mod variables;
mod version;

pub use bytes::{Bytes, Communicator, Kernel, TreePlace, library};
pub use channels::Channels;
pub use topology::{Link, Topology};
pub use variables::{KNOWN, Variables};
pub use version::Version;
