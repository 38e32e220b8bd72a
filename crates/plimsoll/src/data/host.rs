//! One array in ordinary host memory, or only its shape.
//!
//! A real device needs values to copy; a simulated one needs the shape and the byte count. [`HostArray`] is
//! both: `values` may be [`HostValues::Absent`], and [`HostArray::bytes`] returns the same either way. Arrays are dense and
//! row-major. No arithmetic lives here.

use std::collections::TryReserveError;

use plimsoll_tensor::{DType, Element, bf16, f16};

use super::DataError;

/// One dense row-major array, or only its shape.
///
/// ```
/// # use plimsoll::{DType, data::HostArray};
/// let labels = HostArray::new(vec![3], vec![7i64, 2, 1]);
/// let shape_only = HostArray::absent(DType::I64, vec![3]);
/// assert_eq!(labels.bytes(), shape_only.bytes());
/// assert_eq!(labels.as_slice::<i64>(), Some(&[7, 2, 1][..]));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct HostArray {
    /// Element type.
    pub dtype: DType,
    /// Extent of each dimension, outermost first.
    pub shape: Vec<usize>,
    /// The elements, or their absence.
    pub values: HostValues,
}

/// The elements of a [`HostArray`].
#[derive(Clone, Debug, PartialEq)]
pub enum HostValues {
    /// No values: the array is only a shape.
    Absent,
    /// Of [`DType::F64`].
    F64(Vec<f64>),
    /// Of [`DType::F32`].
    F32(Vec<f32>),
    /// Of [`DType::F16`].
    F16(Vec<f16>),
    /// Of [`DType::BF16`].
    BF16(Vec<bf16>),
    /// Of [`DType::I64`].
    I64(Vec<i64>),
    /// Of [`DType::I32`].
    I32(Vec<i32>),
    /// Of [`DType::I16`].
    I16(Vec<i16>),
    /// Of [`DType::U8`].
    U8(Vec<u8>),
    /// Of [`DType::Bool`].
    Bool(Vec<bool>),
}

impl HostValues {
    /// The elements' bytes, unless they are absent.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        Some(match self {
            HostValues::Absent => return None,
            HostValues::F64(values) => f64::bytes_of(values),
            HostValues::F32(values) => f32::bytes_of(values),
            HostValues::F16(values) => f16::bytes_of(values),
            HostValues::BF16(values) => bf16::bytes_of(values),
            HostValues::I64(values) => i64::bytes_of(values),
            HostValues::I32(values) => i32::bytes_of(values),
            HostValues::I16(values) => i16::bytes_of(values),
            HostValues::U8(values) => u8::bytes_of(values),
            HostValues::Bool(values) => bool::bytes_of(values),
        })
    }
}

impl HostArray {
    /// An array of these values.
    ///
    /// # Panics
    /// If the number of `values` is not the number of elements of `shape`.
    #[must_use]
    pub fn new<T: HostElement>(shape: Vec<usize>, values: Vec<T>) -> Self {
        let elements: usize = shape.iter().product();
        assert!(elements == values.len(), "shape {shape:?} holds {elements} elements, not {}", values.len());
        Self { dtype: T::DTYPE, shape, values: T::into_values(values) }
    }

    /// A shape without values; allocates nothing for them.
    #[must_use]
    pub const fn absent(dtype: DType, shape: Vec<usize>) -> Self {
        Self { dtype, shape, values: HostValues::Absent }
    }

    /// An array of zeros.
    ///
    /// # Errors
    /// If host memory runs out.
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Result<Self, DataError> {
        let mut array = Self::absent(dtype, shape);
        array.zero("an array")?;
        Ok(array)
    }

    /// The number of elements of the shape; `usize::MAX` on overflow.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |elements, &extent| elements.saturating_mul(extent))
    }

    /// Bytes of the elements, present or not; `u64::MAX` on overflow.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.elements() as u64).saturating_mul(self.dtype.size() as u64)
    }

    /// The elements, unless they are absent or of a different type.
    #[must_use]
    pub fn as_slice<T: HostElement>(&self) -> Option<&[T]> {
        T::values(&self.values)
    }

    /// The elements, mutable, unless they are absent or of a different type.
    pub fn as_mut_slice<T: HostElement>(&mut self) -> Option<&mut [T]> {
        T::values_mut(&mut self.values)
    }

    /// Fills the array with zeros, reusing its memory if that is large enough. `what` is this array's name in the error.
    ///
    /// # Errors
    /// If host memory runs out, or the values have been dropped.
    pub(super) fn zero(&mut self, what: &str) -> Result<(), DataError> {
        let elements = self.elements();
        let zeroed = match self.dtype {
            DType::F64 => f64::zeroed(&mut self.values, elements),
            DType::F32 => f32::zeroed(&mut self.values, elements),
            DType::F16 => f16::zeroed(&mut self.values, elements),
            DType::BF16 => bf16::zeroed(&mut self.values, elements),
            DType::I64 => i64::zeroed(&mut self.values, elements),
            DType::I32 => i32::zeroed(&mut self.values, elements),
            DType::I16 => i16::zeroed(&mut self.values, elements),
            DType::U8 => u8::zeroed(&mut self.values, elements),
            DType::Bool => bool::zeroed(&mut self.values, elements),
        };
        zeroed.map_err(|_| DataError::OutOfHostMemory {
            what: format!("{what} of shape {:?}", self.shape),
            bytes: self.bytes(),
            remedy: "try a smaller batch, or fewer workers",
        })
    }
}

impl HostArray {
    /// Drops the elements that the shape no longer has.
    pub(super) fn truncate(&mut self) {
        let elements = self.elements();
        match &mut self.values {
            HostValues::Absent => {}
            HostValues::F64(values) => values.truncate(elements),
            HostValues::F32(values) => values.truncate(elements),
            HostValues::F16(values) => values.truncate(elements),
            HostValues::BF16(values) => values.truncate(elements),
            HostValues::I64(values) => values.truncate(elements),
            HostValues::I32(values) => values.truncate(elements),
            HostValues::I16(values) => values.truncate(elements),
            HostValues::U8(values) => values.truncate(elements),
            HostValues::Bool(values) => values.truncate(elements),
        }
    }
}

/// A Rust type that a [`HostArray`] can hold: one for each [`DType`].
pub trait HostElement: Element {
    /// Wraps elements.
    fn into_values(elements: Vec<Self>) -> HostValues;
    /// The elements, if they are of this type.
    fn values(values: &HostValues) -> Option<&[Self]>;
    /// The elements, mutable, if they are of this type.
    fn values_mut(values: &mut HostValues) -> Option<&mut [Self]>;
    /// Sets `values` to this many zeros of this type, reusing the memory if it is large enough.
    ///
    /// # Errors
    /// If host memory runs out, or `values` have become absent.
    fn zeroed(values: &mut HostValues, elements: usize) -> Result<(), TryReserveError>;
}

macro_rules! element {
    ($rust:ty, $variant:ident) => {
        impl HostElement for $rust {
            fn into_values(elements: Vec<Self>) -> HostValues {
                HostValues::$variant(elements)
            }

            fn values(values: &HostValues) -> Option<&[Self]> {
                if let HostValues::$variant(elements) = values { Some(elements) } else { None }
            }

            fn values_mut(values: &mut HostValues) -> Option<&mut [Self]> {
                if let HostValues::$variant(elements) = values { Some(elements) } else { None }
            }

            fn zeroed(values: &mut HostValues, elements: usize) -> Result<(), TryReserveError> {
                let old = std::mem::replace(values, HostValues::Absent);
                let mut zeros = if let HostValues::$variant(old) = old { old } else { Vec::new() };
                zeros.clear();
                zeros.try_reserve_exact(elements)?;
                zeros.resize(elements, Self::default());
                *values = HostValues::$variant(zeros);
                Ok(())
            }
        }
    };
}

element!(f64, F64);
element!(f32, F32);
element!(f16, F16);
element!(bf16, BF16);
element!(i64, I64);
element!(i32, I32);
element!(i16, I16);
element!(u8, U8);
element!(bool, Bool);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_do_not_depend_on_values() {
        for dtype in DType::ALL {
            let bytes = 6 * dtype.size() as u64;
            assert_eq!(HostArray::absent(dtype, vec![2, 3]).bytes(), bytes);
            assert_eq!(HostArray::zeros(dtype, vec![2, 3]).unwrap().bytes(), bytes);
        }
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(HostArray::zeros(DType::F32, vec![]).unwrap().as_slice::<f32>(), Some(&[0.0][..]));
    }

    #[test]
    fn another_type_gives_nothing() {
        let array = HostArray::new(vec![1], vec![1u8]);
        assert_eq!(array.as_slice::<f32>(), None);
        assert_eq!(HostArray::absent(DType::U8, vec![1]).as_slice::<u8>(), None);
    }

    #[test]
    fn a_zeroed_array_has_forgotten_its_values() {
        let mut array = HostArray::new(vec![2, 2], vec![1u8, 2, 3, 4]);
        array.shape = vec![1, 2];
        array.zero("an array").unwrap();
        assert_eq!(array, HostArray::zeros(DType::U8, vec![1, 2]).unwrap());
    }

    #[test]
    fn no_room_is_an_error_that_says_how_much() {
        let check = |dtype, shape: Vec<usize>, expected: u64| {
            let error = HostArray::zeros(dtype, shape).unwrap_err();
            assert!(
                matches!(error, DataError::OutOfHostMemory { bytes, .. } if bytes == expected),
                "{error}"
            );
        };
        check(DType::U8, vec![1 << 62], 1 << 62);
        check(DType::I64, vec![1 << 59, 2], 1 << 63);
        // An overflow neither wraps nor panics.
        check(DType::F32, vec![1 << 40, 1 << 40], u64::MAX);
        let message = HostArray::zeros(DType::U8, vec![1 << 62]).unwrap_err().to_string();
        assert_eq!(
            message,
            "no host memory for an array of shape [4611686018427387904]: 4611686018427387904 bytes are needed; \
             try a smaller batch, or fewer workers"
        );
    }

    #[test]
    fn an_extent_of_zero_holds_nothing_whatever_the_others_are() {
        let empty = HostArray::zeros(DType::F32, vec![usize::MAX, usize::MAX, 0]).unwrap();
        assert_eq!((empty.elements(), empty.bytes()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "shape [2] holds 2 elements, not 3")]
    fn a_shape_must_fit_its_values() {
        let _ = HostArray::new(vec![2], vec![1.0f32; 3]);
    }
}
