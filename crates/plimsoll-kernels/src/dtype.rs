//! Element types, and the promotion of two types to one.
//!
//! [`DType`] is the run-time tag; [`Element`] ties a Rust type to its tag so that values are copied to and from tensors
//! without a cast. Promotion is PyTorch's ([`promote`], [`result_type`]).

use std::fmt;

pub use half::{bf16, f16};

/// The type of a tensor's elements, by PyTorch's names.
///
/// ```
/// use plimsoll_kernels::dtype::{DType, promote};
/// assert_eq!((DType::BF16.size(), DType::BF16.to_string()), (2, "bfloat16".to_owned()));
/// assert_eq!(promote(DType::BF16, DType::I64), DType::BF16);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// 64-bit floating point (`torch.float64`).
    F64,
    /// 32-bit floating point (`torch.float32`).
    F32,
    /// 16-bit floating point with 5 bits of exponent (`torch.float16`).
    F16,
    /// 16-bit floating point with 8 bits of exponent, the range of `float32` (`torch.bfloat16`).
    BF16,
    /// 64-bit signed integer (`torch.int64`): class labels and indices.
    I64,
    /// 32-bit signed integer (`torch.int32`).
    I32,
    /// 16-bit signed integer (`torch.int16`).
    I16,
    /// 8-bit unsigned integer (`torch.uint8`): images as stored, positions in a pooling window.
    U8,
    /// Boolean, stored as a byte of 1 or 0 (`torch.bool`).
    Bool,
}

impl DType {
    /// Every element type, in a fixed order.
    pub const ALL: [DType; 9] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::U8,
        DType::Bool,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 | DType::I16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether elements are floating-point numbers, so that gradients can flow through them.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether elements are integers; `bool` is not.
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::I16 | DType::U8)
    }

    /// The compute type of kernels for elements of this type: `float32` for 16-bit floats, `int64` for integers and booleans.
    /// Results are rounded to the type of the output once, at the end.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            DType::I64 | DType::I32 | DType::I16 | DType::U8 | DType::Bool => DType::I64,
        }
    }

    /// The result type of a function whose results are not integers, such as a logarithm: the type itself if it is floating
    /// point, else `float32`, PyTorch's default.
    pub const fn or_float(self) -> DType {
        if self.is_float() { self } else { DType::F32 }
    }

    /// PyTorch's name, such as `float32` or `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "float64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I64 => "int64",
            DType::I32 => "int32",
            DType::I16 => "int16",
            DType::U8 => "uint8",
            DType::Bool => "bool",
        }
    }

    /// The type with one of PyTorch's names.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Booleans, integers, floating point: the higher category decides a result's type.
    const fn category(self) -> u8 {
        match self {
            DType::Bool => 0,
            DType::I64 | DType::I32 | DType::I16 | DType::U8 => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The smallest type that can hold the values of both, like `torch.promote_types`.
///
/// ```
/// use plimsoll_kernels::dtype::{DType, promote};
/// assert_eq!(promote(DType::F16, DType::BF16), DType::F32);
/// assert_eq!(promote(DType::U8, DType::I16), DType::I16);
/// assert_eq!(promote(DType::I64, DType::F16), DType::F16);
/// ```
pub const fn promote(a: DType, b: DType) -> DType {
    use DType::{BF16, F16, F32, F64, I16, I32, I64, U8};
    if a as u8 == b as u8 {
        return a;
    }
    if a.category() != b.category() {
        return if a.category() > b.category() { a } else { b };
    }
    match (a, b) {
        (F64, _) | (_, F64) => F64,
        (F32, _) | (_, F32) | (F16, BF16) | (BF16, F16) => F32,
        (I64, _) | (_, I64) => I64,
        (I32, _) | (_, I32) => I32,
        (I16, _) | (_, I16) => I16,
        _ => U8,
    }
}

/// The result type of an operation on tensors of these types, like `torch.result_type`. Tensors without dimensions count
/// only if their category (boolean, integer, floating point) is higher than that of the others.
///
/// Each entry is a tensor's type, and whether the tensor has dimensions.
pub fn result_type(tensors: impl IntoIterator<Item = (DType, bool)>) -> Option<DType> {
    let (mut shaped, mut scalar): (Option<DType>, Option<DType>) = (None, None);
    for (dtype, has_dims) in tensors {
        let side = if has_dims { &mut shaped } else { &mut scalar };
        *side = Some(side.map_or(dtype, |other| promote(other, dtype)));
    }
    match (shaped, scalar) {
        (Some(shaped), Some(scalar)) if scalar.category() > shaped.category() => {
            Some(promote(shaped, scalar))
        }
        (Some(shaped), _) => Some(shaped),
        (None, scalar) => scalar,
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that can be a tensor's element. Sealed: the set is [`DType::ALL`], with the `f16` and `bf16` of this module.
pub trait Element: sealed::Sealed + Copy + PartialEq + Send + Sync + fmt::Debug + 'static {
    /// Its representation in memory: the type itself, except for `bool`, which is a byte of 1 or 0.
    type Stored: Stored;
    /// The tag of this type.
    const DTYPE: DType;
    /// Converts to the representation in memory.
    fn to_stored(self) -> Self::Stored;
    /// Converts from the representation in memory.
    fn from_stored(stored: Self::Stored) -> Self;
    /// Converts from a 64-bit float: rounds to nearest for floating point; rounds towards zero and clamps for integers (for
    /// `uint8`, takes the lowest byte of the integer, as in PyTorch); true if not zero.
    fn from_f64(value: f64) -> Self;
    /// Converts to a 64-bit float.
    fn to_f64(self) -> f64;
    /// The bytes of contiguous values.
    fn bytes_of(values: &[Self]) -> &[u8];
    /// The values in such bytes.
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
}

/// The representation of elements in memory: a Rust number type; a byte is a `uint8` or a boolean. Sealed, like
/// [`Element`].
pub trait Stored: sealed::Sealed + bytemuck::Pod + Send + Sync + fmt::Debug {
    /// Whether elements of a type have this representation.
    fn holds(dtype: DType) -> bool;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident, $from:expr, $to:expr);* $(;)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Stored for $rust {
            fn holds(dtype: DType) -> bool {
                dtype == DType::$dtype || (DType::$dtype == DType::U8 && dtype == DType::Bool)
            }
        }
        impl Element for $rust {
            type Stored = $rust;
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn to_stored(self) -> $rust {
                self
            }
            #[inline(always)]
            fn from_stored(stored: $rust) -> $rust {
                stored
            }
            #[inline(always)]
            fn from_f64(value: f64) -> $rust {
                $from(value)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                $to(self)
            }
            fn bytes_of(values: &[$rust]) -> &[u8] {
                bytemuck::cast_slice(values)
            }
            fn from_bytes(bytes: &[u8]) -> Vec<$rust> {
                bytemuck::pod_collect_to_vec(bytes)
            }
        }
    )*};
}
element! {
    f64 => F64, |x| x, |x| x;
    f32 => F32, |x| x as f32, f64::from;
    f16 => F16, f16::from_f64, f16::to_f64;
    bf16 => BF16, bf16::from_f64, bf16::to_f64;
    i64 => I64, |x| x as i64, |x| x as f64;
    i32 => I32, |x| x as i32, f64::from;
    i16 => I16, |x| x as i16, f64::from;
    u8 => U8, |x| x as i64 as u8, f64::from;
}

impl sealed::Sealed for bool {}
impl Element for bool {
    type Stored = u8;
    const DTYPE: DType = DType::Bool;
    fn to_stored(self) -> u8 {
        u8::from(self)
    }
    fn from_stored(stored: u8) -> bool {
        stored != 0
    }
    fn from_f64(value: f64) -> bool {
        value != 0.0
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn bytes_of(values: &[bool]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
    fn from_bytes(bytes: &[u8]) -> Vec<bool> {
        bytes.iter().map(|&byte| byte != 0).collect()
    }
}

/// A number as the other operand of a tensor. As in PyTorch, an integer keeps the type of an integer tensor; a floating-point
/// number promotes it to `float32`.
///
/// ```
/// use plimsoll_kernels::dtype::{DType, Scalar};
/// assert_eq!(Scalar::from(2).result_type(DType::I64), DType::I64);
/// assert_eq!(Scalar::from(0.5).result_type(DType::I64), DType::F32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
}

impl Scalar {
    /// Its value as a 64-bit float.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Int(value) => value as f64,
            Scalar::Float(value) => value,
        }
    }

    /// The result type of an operation on a tensor of `dtype` and this number.
    pub fn result_type(self, dtype: DType) -> DType {
        match self {
            Scalar::Float(_) => dtype.or_float(),
            Scalar::Int(_) if dtype == DType::Bool => DType::I64,
            Scalar::Int(_) => dtype,
        }
    }
}

macro_rules! scalar {
    ($($from:ty => $kind:ident),*) => {$(
        impl From<$from> for Scalar {
            fn from(value: $from) -> Scalar {
                Scalar::$kind(value.into())
            }
        }
    )*};
}
scalar!(f64 => Float, f32 => Float, i64 => Int, i32 => Int, u8 => Int);

/// Evaluates a body in which a name stands for the Rust type of a [`DType`].
#[doc(hidden)]
#[macro_export]
macro_rules! by_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        $crate::dtype::by_dtype!(@ $dtype, $t => $body, F64 f64, F32 f32, F16 $crate::dtype::f16, BF16 $crate::dtype::bf16, I64 i64, I32 i32,
            I16 i16, U8 u8, Bool bool)
    };
    (@ $dtype:expr, $t:ident => $body:expr, $($variant:ident $rust:ty),*) => {
        match $dtype {
            $($crate::dtype::DType::$variant => {
                type $t = $rust;
                $body
            })*
        }
    };
}
#[doc(hidden)]
pub use by_dtype;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_are_pytorchs() {
        let got: Vec<_> = DType::ALL.iter().map(|d| (d.name(), d.size())).collect();
        let expected = [
            ("float64", 8),
            ("float32", 4),
            ("float16", 2),
            ("bfloat16", 2),
            ("int64", 8),
            ("int32", 4),
            ("int16", 2),
            ("uint8", 1),
            ("bool", 1),
        ];
        assert_eq!(got, expected);
        assert!(DType::ALL.iter().all(|&d| DType::from_name(d.name()) == Some(d)));
    }

    /// The table has `torch.promote_types` of every pair, in the order of [`DType::ALL`].
    #[test]
    fn promotion_is_pytorchs() {
        const TABLE: [&str; 9] = [
            "F64 F64 F64 F64 F64 F64 F64 F64 F64",
            "F64 F32 F32 F32 F32 F32 F32 F32 F32",
            "F64 F32 F16 F32 F16 F16 F16 F16 F16",
            "F64 F32 F32 BF16 BF16 BF16 BF16 BF16 BF16",
            "F64 F32 F16 BF16 I64 I64 I64 I64 I64",
            "F64 F32 F16 BF16 I64 I32 I32 I32 I32",
            "F64 F32 F16 BF16 I64 I32 I16 I16 I16",
            "F64 F32 F16 BF16 I64 I32 I16 U8 U8",
            "F64 F32 F16 BF16 I64 I32 I16 U8 Bool",
        ];
        for (a, row) in DType::ALL.into_iter().zip(TABLE) {
            let got: Vec<String> = DType::ALL.iter().map(|&b| format!("{:?}", promote(a, b))).collect();
            assert_eq!(got.join(" "), row, "{a}");
        }
    }

    #[test]
    fn a_tensor_without_dimensions_counts_by_its_category() {
        let of = |tensors: &[(DType, bool)]| result_type(tensors.iter().copied()).unwrap();
        assert_eq!(of(&[(DType::F32, true), (DType::F64, false)]), DType::F32);
        assert_eq!(of(&[(DType::I64, true), (DType::F64, false)]), DType::F64);
        assert_eq!(of(&[(DType::U8, true), (DType::I64, false)]), DType::U8);
        assert_eq!(of(&[(DType::F16, false), (DType::F64, false)]), DType::F64);
        assert_eq!(Scalar::from(2.0).result_type(DType::I32), DType::F32);
        assert_eq!(Scalar::from(2).result_type(DType::Bool), DType::I64);
        assert_eq!(Scalar::from(2.0).result_type(DType::BF16), DType::BF16);
    }
}
