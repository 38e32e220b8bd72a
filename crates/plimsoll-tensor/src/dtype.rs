//! Element types: what a tensor's bytes mean.
//!
//! [`DType`] is the run-time tag; [`Element`] ties a Rust type to its tag so that values go in and out
//! of tensors without a cast. Only what the library computes with is here.

use std::fmt;

/// The type of a tensor's elements, by PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// 32-bit floating point (`torch.float32`).
    F32,
    /// 64-bit signed integer (`torch.int64`): class labels and indices.
    I64,
    /// 32-bit signed integer (`torch.int32`).
    I32,
    /// 8-bit unsigned integer (`torch.uint8`): images as stored, positions in a pooling window.
    U8,
}

impl DType {
    /// Every element type, in a fixed order.
    pub const ALL: [DType; 4] = [DType::F32, DType::I64, DType::I32, DType::U8];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::U8 => 1,
        }
    }

    /// Whether gradients can flow through elements of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32)
    }

    /// PyTorch's name: `float32`, `int64`, `int32`, `uint8`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "float32",
            DType::I64 => "int64",
            DType::I32 => "int32",
            DType::U8 => "uint8",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be a tensor's element. Sealed: the set is [`DType::ALL`].
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + fmt::Debug {
    /// The tag of this type.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
element!(f32 => F32, i64 => I64, i32 => I32, u8 => U8);

/// Evaluates a body with a type's name bound to the Rust type of a [`DType`].
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            crate::dtype::DType::F32 => {
                type $t = f32;
                $body
            }
            crate::dtype::DType::I64 => {
                type $t = i64;
                $body
            }
            crate::dtype::DType::I32 => {
                type $t = i32;
                $body
            }
            crate::dtype::DType::U8 => {
                type $t = u8;
                $body
            }
        }
    };
}
pub(crate) use by_dtype;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_pytorchs() {
        let got: Vec<_> = DType::ALL.iter().map(|d| (d.name(), d.size())).collect();
        assert_eq!(got, [("float32", 4), ("int64", 8), ("int32", 4), ("uint8", 1)]);
    }
}
