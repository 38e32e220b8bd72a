//! Elements as words of 1, 2, 4 or 8 bytes: the types that are used by kernels that only move elements.
//!
//! Such a kernel is compiled for four sizes and works for every [`DType`](crate::DType).

/// Evaluates a body in which a name stands for the unsigned integer type of the element size.
macro_rules! by_word {
    ($dtype:expr, $w:ident => $body:expr) => {
        match $dtype.size() {
            1 => {
                type $w = u8;
                $body
            }
            2 => {
                type $w = u16;
                $body
            }
            4 => {
                type $w = u32;
                $body
            }
            _ => {
                type $w = u64;
                $body
            }
        }
    };
}
pub(crate) use by_word;
