//! PyTorch's TCPStore: names and values that all ranks of a job see. Through it they find each other, and learn that one failed.
//!
//! `wire.rs` has the commands and how numbers and strings travel, `server.rs` and `client.rs` the two ends. torchrun's agent is a
//! server; our server answers PyTorch's own client, too. The protocol was read in PyTorch 2.11 (`TCPStoreBackend.cpp`); until then
//! commands were only added.

mod client;
mod server;
mod wire;

pub use client::Client;
pub use server::Server;
