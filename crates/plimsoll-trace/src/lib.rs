//! Recordings of PyTorch's allocator: read, replayed through ours, compared.
//!
//! Today this holds [`conformance`]: streams of requests and programs with all that PyTorch answered.
//! It knows nothing of tensors, and prints nothing: a comparison is a value.

#![forbid(unsafe_code)]

pub mod conformance;
