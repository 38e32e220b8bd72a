//! What NCCL's communicators take of a GPU and of the host, as a pure model: [`Communicator`].
//!
//! The number of channels follows from the links between the ranks ([`Topology`]), the bytes from the channels. The formulas were
//! read in NCCL's source (2.21 to 2.30) and equal each step of NCCL 2.28.9 on two H100s in six modes. What no GPU has
//! confirmed, such as NVLS and InfiniBand, says so: [`Channels::basis`] is then derived or assumed.
//!
//! | file | contents |
//! |---|---|
//! | `nccl/version.rs` | [`Version`] |
//! | `nccl/variables.rs` | [`Variables`]: NCCL's environment variables that change bytes |
//! | `nccl/topology.rs` | [`Topology`]: the ranks and the links between them |
//! | `nccl/channels.rs` | [`Channels`]: how many channels a communicator has |
//! | `nccl/bytes.rs` | [`Communicator`], [`Bytes`]: what they take, and when |

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
