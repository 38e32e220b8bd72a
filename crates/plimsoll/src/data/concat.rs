//! Several data sets as one.

use std::sync::Arc;

use super::dataset::check_index;
use super::{DataError, Dataset, Field, Sample};

/// The samples of several data sets, one set after the other. In PyTorch: `torch.utils.data.ConcatDataset`.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{ConcatDataset, Dataset, Digits};
/// let both = ConcatDataset::new(vec![Arc::new(Digits::new(1, 300)), Arc::new(Digits::new(2, 200))])?;
/// assert_eq!(both.len(), 500);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
pub struct ConcatDataset {
    parts: Vec<Arc<dyn Dataset>>,
    /// For each part, the number of samples up to its end.
    ends: Vec<usize>,
    fields: Vec<Field>,
}

impl ConcatDataset {
    /// All samples of these data sets, in this order. Without data sets, there are no samples and no fields.
    ///
    /// # Errors
    /// If the data sets have different fields.
    pub fn new(parts: Vec<Arc<dyn Dataset>>) -> Result<Self, DataError> {
        let fields = parts.first().map(|part| part.fields()).unwrap_or_default();
        for (part, dataset) in parts.iter().enumerate() {
            let found = dataset.fields();
            if found != fields {
                let named = |field: &Field| format!("{} {} {:?}", field.name, field.dtype, field.shape);
                let [found, first] = [found, fields].map(|of| of.iter().map(named).collect());
                return Err(DataError::OtherFields { part, found, first });
            }
        }
        let add = |end: &mut usize, part: &Arc<dyn Dataset>| {
            *end += part.len();
            Some(*end)
        };
        let ends = parts.iter().scan(0, add).collect();
        Ok(Self { parts, ends, fields })
    }
}

impl Dataset for ConcatDataset {
    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.len())?;
        let part = self.ends.partition_point(|&end| end <= index);
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        self.parts[part].write(index - start, out)
    }

    fn resident_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.resident_bytes()).sum()
    }
}
