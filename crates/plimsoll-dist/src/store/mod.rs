//! PyTorch's TCPStore, a key-value store that all ranks of a job share. Through it, they find each other and learn that one
//! failed.
//!
//! `wire.rs` has the commands and the encoding of numbers and strings; `server.rs` and `client.rs` are the two ends. Our client
//! can use the server of torchrun's agent, and our server can serve PyTorch's own client. The protocol is that of PyTorch 2.11
//! (`TCPStoreBackend.cpp`); earlier versions changed it only by adding commands.

mod client;
mod server;
mod wire;

pub use client::Client;
pub use server::Server;
