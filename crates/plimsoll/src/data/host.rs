//! One array in ordinary host memory, or only its shape.
//!
//! A real device wants values to copy; a simulated one wants the shape and the byte count. [`HostArray`] is
//! both: `values` may be [`HostValues::Absent`], and [`HostArray::bytes`] answers the same either way.
//! Arrays are dense and row-major. No arithmetic lives here.

use plimsoll_tensor::{DType, Element};

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
    /// None: the array is a shape.
    Absent,
    /// Of [`DType::F32`].
    F32(Vec<f32>),
    /// Of [`DType::I64`].
    I64(Vec<i64>),
    /// Of [`DType::I32`].
    I32(Vec<i32>),
    /// Of [`DType::U8`].
    U8(Vec<u8>),
}

impl HostArray {
    /// An array of these values.
    ///
    /// # Panics
    /// If `shape` does not hold as many elements as `values`.
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
    #[must_use]
    pub fn zeros(dtype: DType, shape: Vec<usize>) -> Self {
        let mut array = Self::absent(dtype, shape);
        array.zero();
        array
    }

    /// How many elements the shape holds.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of the elements, present or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.elements() * self.dtype.size()) as u64
    }

    /// The elements, unless they are absent or of another type.
    #[must_use]
    pub fn as_slice<T: HostElement>(&self) -> Option<&[T]> {
        T::values(&self.values)
    }

    /// The elements to write, unless they are absent or of another type.
    pub fn as_mut_slice<T: HostElement>(&mut self) -> Option<&mut [T]> {
        T::values_mut(&mut self.values)
    }

    /// Makes the values as many zeros as the shape holds, keeping their memory where it suffices.
    pub(super) fn zero(&mut self) {
        let elements = self.elements();
        match self.dtype {
            DType::F32 => f32::zeroed(&mut self.values, elements),
            DType::I64 => i64::zeroed(&mut self.values, elements),
            DType::I32 => i32::zeroed(&mut self.values, elements),
            DType::U8 => u8::zeroed(&mut self.values, elements),
        }
    }
}

/// A Rust type that a [`HostArray`] can hold: f32, i64, i32, u8.
pub trait HostElement: Element {
    /// Wraps elements.
    fn into_values(elements: Vec<Self>) -> HostValues;
    /// The elements, if they are of this type.
    fn values(values: &HostValues) -> Option<&[Self]>;
    /// The elements to write, if they are of this type.
    fn values_mut(values: &mut HostValues) -> Option<&mut [Self]>;
    /// Makes `values` that many zeros of this type.
    fn zeroed(values: &mut HostValues, elements: usize);
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

            fn zeroed(values: &mut HostValues, elements: usize) {
                if let HostValues::$variant(old) = values {
                    old.clear();
                    old.resize(elements, Self::default());
                } else {
                    *values = HostValues::$variant(vec![Self::default(); elements]);
                }
            }
        }
    };
}

element!(f32, F32);
element!(i64, I64);
element!(i32, I32);
element!(u8, U8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_do_not_depend_on_values() {
        for (dtype, bytes) in [(DType::U8, 6), (DType::I32, 24), (DType::F32, 24), (DType::I64, 48)] {
            assert_eq!(HostArray::absent(dtype, vec![2, 3]).bytes(), bytes);
            assert_eq!(HostArray::zeros(dtype, vec![2, 3]).bytes(), bytes);
        }
    }

    #[test]
    fn a_scalar_has_one_element() {
        assert_eq!(HostArray::zeros(DType::F32, vec![]).as_slice::<f32>(), Some(&[0.0][..]));
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
        array.zero();
        assert_eq!(array, HostArray::zeros(DType::U8, vec![1, 2]));
    }

    #[test]
    #[should_panic(expected = "shape [2] holds 2 elements, not 3")]
    fn a_shape_must_fit_its_values() {
        let _ = HostArray::new(vec![2], vec![1.0f32; 3]);
    }
}
