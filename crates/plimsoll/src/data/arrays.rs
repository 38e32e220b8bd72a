//! Arrays in memory as a data set: sample i is the i-th part of each.

use super::dataset::check_index;
use super::{DataError, Dataset, Field, HostArray, HostElement, HostValues, Sample};

/// Named arrays with the same number of samples. In PyTorch: `torch.utils.data.TensorDataset`.
///
/// ```
/// # use plimsoll::data::{Arrays, Dataset, HostArray};
/// let x = HostArray::new(vec![3, 2], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// let y = HostArray::new(vec![3], vec![0i64, 1, 0]);
/// let data = Arrays::new([("x", x), ("y", y)])?;
/// assert_eq!((data.len(), data.fields()[0].shape.clone()), (3, vec![2]));
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Arrays {
    arrays: Vec<(&'static str, HostArray)>,
    len: usize,
}

impl Arrays {
    /// A data set of these fields; the first dimension of each array counts the samples.
    ///
    /// # Errors
    /// If an array has no dimension, or their numbers of samples differ.
    pub fn new(arrays: impl IntoIterator<Item = (&'static str, HostArray)>) -> Result<Self, DataError> {
        let arrays: Vec<(&'static str, HostArray)> = arrays.into_iter().collect();
        let len = arrays.first().and_then(|(_, array)| array.shape.first().copied()).unwrap_or(0);
        for (name, array) in &arrays {
            if array.shape.first() != Some(&len) {
                return Err(DataError::Samples { name, shape: array.shape.clone(), samples: len });
            }
        }
        Ok(Self { arrays, len })
    }
}

impl Dataset for Arrays {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        let field = |(name, array): &(&'static str, HostArray)| Field {
            name,
            dtype: array.dtype,
            shape: array.shape[1..].to_vec(),
        };
        self.arrays.iter().map(field).collect()
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.len)?;
        for (name, array) in &self.arrays {
            match &array.values {
                HostValues::Absent => return Err(DataError::ShapesOnly),
                HostValues::F64(values) => copy(name, values, index, out)?,
                HostValues::F32(values) => copy(name, values, index, out)?,
                HostValues::F16(values) => copy(name, values, index, out)?,
                HostValues::BF16(values) => copy(name, values, index, out)?,
                HostValues::I64(values) => copy(name, values, index, out)?,
                HostValues::I32(values) => copy(name, values, index, out)?,
                HostValues::I16(values) => copy(name, values, index, out)?,
                HostValues::U8(values) => copy(name, values, index, out)?,
                HostValues::Bool(values) => copy(name, values, index, out)?,
            }
        }
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        self.arrays.iter().map(|(_, array)| array.bytes()).sum()
    }
}

fn copy<T: HostElement>(
    name: &str,
    values: &[T],
    index: usize,
    out: &mut Sample<'_>,
) -> Result<(), DataError> {
    let to = out.slot::<T>(name)?;
    to.copy_from_slice(&values[index * to.len()..][..to.len()]);
    Ok(())
}
