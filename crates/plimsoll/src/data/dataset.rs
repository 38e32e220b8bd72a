//! The [`Dataset`] trait, and views of a data set.
//!
//! A [`Dataset`] declares its [`Field`]s once, then writes sample `i` into a [`Sample`], a slot of the
//! current batch: a worker fills its batch in place, without an allocation per sample.
//! To add a data set, implement the trait; the loader does everything else.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_tensor::DType;

use super::random::{Purpose, Stream};
use super::{DataError, HostElement, HostField, Order, RandomSampler, Sampler};

/// A collection of samples, by index.
///
/// ```
/// # use plimsoll::{DType, data::{DataError, Dataset, Field, Sample}};
/// /// The squares.
/// struct Squares(usize);
///
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         self.0
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field { name: "square", dtype: DType::F32, shape: vec![] }]
///     }
///     fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
///         out.slot::<f32>("square")?[0] = (index * index) as f32;
///         Ok(())
///     }
/// }
/// ```
pub trait Dataset: Send + Sync {
    /// The number of samples.
    fn len(&self) -> usize;

    /// The fields of each sample. They never change.
    fn fields(&self) -> Vec<Field>;

    /// Writes one sample. The same index must always give the same values, on any thread, except for randomness drawn from
    /// [`Sample::seed`].
    ///
    /// # Errors
    /// If the sample cannot be read; [`DataError::Custom`] wraps your own error.
    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError>;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Host bytes that the data set keeps in memory, for the row "outside the allocator".
    fn resident_bytes(&self) -> u64 {
        0
    }
}

/// One field of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name, such as `images`.
    pub name: &'static str,
    /// Its element type.
    pub dtype: DType,
    /// Its shape in one sample; a batch adds the number of samples as the first dimension.
    pub shape: Vec<usize>,
}

/// The slot of one sample in a batch.
pub struct Sample<'a> {
    batch: &'a mut [HostField],
    slot: usize,
    seed: SampleSeed,
    shape_rule: ShapeRule,
}

/// The numbers that the seed of a sample is computed from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SampleSeed {
    /// The loader's seed.
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) batch: usize,
    pub(super) slot: usize,
}

/// Whether a sample's shape may differ from the declared one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShapeRule {
    /// The declared shape: the sample is one of several in a batch.
    Declared,
    /// Any shape: the sample is the only one in its batch.
    Any,
}

impl<'a> Sample<'a> {
    /// Slot `slot` of a batch whose arrays have samples as the first dimension.
    pub(super) const fn new(batch: &'a mut [HostField], slot: usize, seed: SampleSeed) -> Self {
        Self { batch, slot, seed, shape_rule: ShapeRule::Declared }
    }

    /// The only sample of a batch of one.
    pub(super) const fn alone(batch: &'a mut [HostField], seed: SampleSeed) -> Self {
        Self { batch, slot: 0, seed, shape_rule: ShapeRule::Any }
    }

    /// A seed for the random choices in this sample, such as a crop or a flip. It depends on the loader's seed, the epoch and the
    /// position in the epoch. The number of workers does not change it.
    #[must_use]
    pub fn seed(&self) -> u64 {
        let SampleSeed { seed, epoch, batch, slot } = self.seed;
        let place = (batch as u64) << 32 | slot as u64;
        Stream::at(seed, Purpose::SampleSeeds, epoch, place).word()
    }

    /// Gives a field of this sample a shape other than the declared one, filled with zeros. The loader then needs a
    /// [`collate`](super::DataLoader::collate) function, unless this is the declared shape.
    ///
    /// # Errors
    /// If the data set declared no such field; without a collate function, if it declared a different shape; out of host
    /// memory.
    pub fn resize(&mut self, name: &str, shape: &[usize]) -> Result<(), DataError> {
        let shape_rule = self.shape_rule;
        let HostField { name, array } = self.field(name)?;
        if array.shape[1..] == *shape {
            return Ok(());
        }
        if shape_rule == ShapeRule::Declared {
            let declared = array.shape[1..].to_vec();
            return Err(DataError::SampleShape { name, declared, found: shape.to_vec() });
        }
        array.shape = std::iter::once(1).chain(shape.iter().copied()).collect();
        array.zero(&format!("a sample's `{name}`"))
    }

    fn field(&mut self, name: &str) -> Result<&mut HostField, DataError> {
        let Some(at) = self.batch.iter().position(|field| field.name == name) else {
            let declared = self.batch.iter().map(|field| field.name).collect();
            return Err(DataError::NoField { name: name.to_owned(), declared });
        };
        Ok(&mut self.batch[at])
    }

    /// The elements of a field of this sample, mutable; initially zero.
    ///
    /// # Errors
    /// If the data set declared no such field, or with a different type.
    pub fn slot<T: HostElement>(&mut self, name: &str) -> Result<&mut [T], DataError> {
        let slot = self.slot;
        let HostField { name, array } = self.field(name)?;
        let each: usize = array.shape[1..].iter().product();
        let declared = array.dtype;
        let wrong_type = DataError::FieldType { name, declared, asked: T::DTYPE };
        array.as_mut_slice().map(|all| &mut all[slot * each..][..each]).ok_or(wrong_type)
    }
}

/// Some samples of another data set: a range, or an arbitrary selection. In PyTorch: `torch.utils.data.Subset`.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{Dataset, Digits, Subset};
/// let last = Subset::new(Arc::new(Digits::new(1, 10_000)), 9_000..10_000)?;
/// assert_eq!(last.len(), 1_000);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
pub struct Subset {
    whole: Arc<dyn Dataset>,
    samples: Order,
}

impl Subset {
    /// The samples `range` of `whole`, renumbered from 0.
    ///
    /// # Errors
    /// If the range is not inside the data set.
    pub fn new(whole: Arc<dyn Dataset>, range: Range<usize>) -> Result<Self, DataError> {
        if range.start > range.end || range.end > whole.len() {
            return Err(DataError::BadSubset { start: range.start, end: range.end, len: whole.len() });
        }
        Ok(Self { whole, samples: Order::computed(range.len(), move |index| range.start + index) })
    }

    /// These samples of `whole`, renumbered from 0.
    ///
    /// # Errors
    /// If an index is outside the data set.
    pub fn of(whole: Arc<dyn Dataset>, indices: Vec<usize>) -> Result<Self, DataError> {
        indices.iter().try_for_each(|&index| check_index(index, whole.len()))?;
        Ok(Self { whole, samples: Order::list(indices) })
    }
}

impl Dataset for Subset {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.whole.fields()
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.len())?;
        self.whole.write(self.samples.index(index), out)
    }

    /// The bytes of the complete data set, because a view keeps all of it in memory.
    fn resident_bytes(&self) -> u64 {
        self.whole.resident_bytes()
    }
}

/// A training part and a test part.
#[derive(Clone)]
pub struct Split {
    /// The training part.
    pub train: Arc<dyn Dataset>,
    /// The test part.
    pub test: Arc<dyn Dataset>,
}

impl Split {
    /// Splits off the first `train` samples for training; the rest is the test part.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use plimsoll::data::{Dataset, Digits, Split};
    /// let split = Split::at(Arc::new(Digits::new(1, 10_000)), 9_000)?;
    /// assert_eq!((split.train.len(), split.test.len()), (9_000, 1_000));
    /// # Ok::<(), plimsoll::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If the data set has fewer samples than `train`.
    pub fn at(whole: Arc<dyn Dataset>, train: usize) -> Result<Self, DataError> {
        let len = whole.len();
        Ok(Self {
            train: Arc::new(Subset::new(Arc::clone(&whole), 0..train)?),
            test: Arc::new(Subset::new(whole, train..len)?),
        })
    }

    /// Chooses `train` samples at random for training, from `seed`; the others are the test part. Use it for data
    /// that is sorted by class. In PyTorch: `torch.utils.data.random_split`.
    ///
    /// # Errors
    /// If the data set has fewer samples than `train`; out of host memory.
    pub fn random(whole: Arc<dyn Dataset>, train: usize, seed: u64) -> Result<Self, DataError> {
        let len = whole.len();
        if train > len {
            return Err(DataError::BadSubset { start: 0, end: train, len });
        }
        let mut train_part = RandomSampler::new(len, seed).order(0)?.to_vec();
        let test_part = train_part.split_off(train);
        Ok(Self {
            train: Arc::new(Subset::of(Arc::clone(&whole), train_part)?),
            test: Arc::new(Subset::of(whole, test_part)?),
        })
    }

    /// The last tenth, rounded up, is the test part; the rest is the training part. This is the rule for data sets that come
    /// without a test part. Two samples are split one each; a single sample is the test part.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use plimsoll::data::{Dataset, Digits, Split};
    /// let split = Split::nine_to_one(Arc::new(Digits::new(1, 101)))?;
    /// assert_eq!((split.train.len(), split.test.len()), (90, 11));
    /// # Ok::<(), plimsoll::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// None at present; it returns a `Result` like [`Split::at`].
    pub fn nine_to_one(whole: Arc<dyn Dataset>) -> Result<Self, DataError> {
        let len = whole.len();
        Self::at(whole, len - len.div_ceil(10))
    }
}

/// A data set with a length and fields but no values. For simulated devices, with
/// [`DataLoader::shapes_only`](super::DataLoader::shapes_only).
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::{DType, data::{DataLoader, Field, Shapes}};
/// let photo = Field { name: "images", dtype: DType::F32, shape: vec![3, 224, 224] };
/// let photos = Shapes { len: 1_281_167, fields: vec![photo] };
/// let loader = DataLoader::new(Arc::new(photos), 256)?.shapes_only();
/// let bytes = loader.epoch(0).next().transpose()?.map(|batch| batch.bytes());
/// assert_eq!(bytes, Some(256 * 3 * 224 * 224 * 4));
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shapes {
    /// The number of samples.
    pub len: usize,
    /// The fields of each sample.
    pub fields: Vec<Field>,
}

impl Dataset for Shapes {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    /// Always fails: there are no values.
    fn write(&self, _: usize, _: &mut Sample<'_>) -> Result<(), DataError> {
        Err(DataError::ShapesOnly)
    }
}

/// The bounds check for every data set here.
pub(super) fn check_index(index: usize, len: usize) -> Result<(), DataError> {
    if index < len { Ok(()) } else { Err(DataError::OutOfRange { index, len }) }
}

#[cfg(test)]
mod tests {
    use super::super::HostArray;
    use super::*;

    fn shapes(len: usize) -> Arc<dyn Dataset> {
        Arc::new(Shapes { len, fields: vec![] })
    }

    #[test]
    fn a_subset_stays_inside_its_data_set() {
        assert_eq!(Subset::new(shapes(10), 3..10).map(|s| s.len()).ok(), Some(7));
        assert!(matches!(Subset::new(shapes(10), 3..11), Err(DataError::BadSubset { end: 11, len: 10, .. })));
        #[expect(clippy::reversed_empty_ranges, reason = "a caller may compute one")]
        let reversed = Subset::new(shapes(10), 5..4);
        assert!(matches!(reversed, Err(DataError::BadSubset { start: 5, end: 4, .. })));
    }

    #[test]
    fn a_subset_does_not_reach_its_neighbours() {
        let subset = Subset::new(shapes(10), 0..4).unwrap();
        let end = subset.write(4, &mut Sample::new(&mut [], 0, SampleSeed::default()));
        assert!(matches!(end, Err(DataError::OutOfRange { index: 4, len: 4 })));
    }

    #[test]
    fn a_split_may_be_one_sided() {
        let split = Split::at(shapes(10), 10).unwrap();
        assert!(!split.train.is_empty() && split.test.is_empty());
        assert!(Split::at(shapes(10), 11).is_err());
    }

    #[test]
    fn nine_to_one_tests_on_the_last_tenth_rounded_up() {
        for (len, expected) in
            [(0, (0, 0)), (1, (0, 1)), (2, (1, 1)), (10, (9, 1)), (11, (9, 2)), (60, (54, 6))]
        {
            let split = Split::nine_to_one(shapes(len)).unwrap();
            assert_eq!((split.train.len(), split.test.len()), expected, "of {len}");
        }
    }

    #[test]
    fn a_sample_is_one_row_of_each_field() {
        let mut batch = [HostField { name: "xy", array: HostArray::new(vec![2, 2], vec![1i32, 2, 3, 4]) }];
        let mut sample = Sample::new(&mut batch, 1, SampleSeed::default());
        assert_eq!(sample.slot::<i32>("xy").unwrap(), [3, 4]);
        assert!(matches!(sample.slot::<u8>("xy"), Err(DataError::FieldType { name: "xy", .. })));
        let message = sample.slot::<u8>("z").unwrap_err().to_string();
        assert_eq!(message, "no field `z`; the data set declares [\"xy\"]");
    }
}
