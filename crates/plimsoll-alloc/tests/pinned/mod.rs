//! Pinned host memory, tested against PyTorch's results (`oracle.rs`), against a naive model (`model.rs`), over all
//! small interleavings of streams and requests (`interleavings.rs`), and with a driver that fails (`failures.rs`).
//! `make.py` records PyTorch's results again.

mod captures;
mod failures;
mod fallible;
mod interleavings;
mod model;
mod naive;
mod oracle;
mod recorded;
mod threads;
