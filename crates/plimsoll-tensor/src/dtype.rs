//! Element types and what comes of two together: those that the kernels on the host have.

pub use plimsoll_kernels::dtype::{DType, Element, Scalar, Stored, bf16, f16, promote, result_type};

pub(crate) use plimsoll_kernels::dtype::by_dtype;
