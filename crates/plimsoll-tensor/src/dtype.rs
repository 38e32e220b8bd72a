//! Element types and type promotion, re-exported from `plimsoll-kernels`.

pub use plimsoll_kernels::dtype::{DType, Element, Scalar, Stored, bf16, f16, promote, result_type};

pub(crate) use plimsoll_kernels::dtype::by_dtype;
