//! Random changes to training images: [`Augmented`].
//!
//! Random choices are drawn from the sample's seed ([`Sample::seed`]), so an epoch is the same for any number of workers, and a
//! resumed epoch continues unchanged.

use std::sync::Arc;

use super::random::{Purpose, Stream};
use super::{DataError, Dataset, Field, Sample};

/// The name of the field that is changed: f32 of shape `[C, H, W]`.
const IMAGES: &str = "images";

/// The changes made to an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augment {
    /// Half of the images are mirrored, left to right. As torchvision: `RandomHorizontalFlip`.
    pub flip: bool,
    /// Images are shifted by up to this many pixels in both directions. Pixels shifted in are 0: black, or the mean of normalised
    /// images. As torchvision: `RandomCrop(size, padding)`, after `Normalize`.
    pub padding: usize,
}

/// A data set whose `images` are changed at random.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{Augment, Augmented, DataLoader, Digits};
/// let digits = Augmented::new(Arc::new(Digits::new(1, 100)), Augment { flip: false, padding: 3 });
/// let loader = DataLoader::new(Arc::new(digits), 10)?.shuffle(1);
/// let first = |epoch| loader.epoch(epoch).next().unwrap();
/// assert_eq!(first(0)?, first(0)?);
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
pub struct Augmented {
    images: Arc<dyn Dataset>,
    augment: Augment,
}

impl Augmented {
    /// The images of a data set, changed at random.
    pub fn new(images: Arc<dyn Dataset>, augment: Augment) -> Self {
        Self { images, augment }
    }
}

impl Dataset for Augmented {
    fn len(&self) -> usize {
        self.images.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.images.fields()
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        self.images.write(index, out)?;
        let Some(sides) = self.fields().iter().find(|field| field.name == IMAGES).and_then(sides_of) else {
            return Ok(());
        };
        let mut random = Stream::new(out.seed(), Purpose::Augment, 0);
        let is_flipped = random.below(2) == 1;
        let [down, right] = [(); 2].map(|()| random.below(2 * self.augment.padding + 1));
        let shift = Shift { down, right, padding: self.augment.padding };
        let pixels = out.slot::<f32>(IMAGES)?;
        for channel in pixels.chunks_exact_mut(sides.rows * sides.columns) {
            if self.augment.flip && is_flipped {
                channel.chunks_exact_mut(sides.columns).for_each(<[f32]>::reverse);
            }
            if self.augment.padding > 0 {
                shift.apply(channel, sides.columns);
            }
        }
        Ok(())
    }

    fn resident_bytes(&self) -> u64 {
        self.images.resident_bytes()
    }
}

/// Rows and columns of an image; neither is 0.
struct Sides {
    rows: usize,
    columns: usize,
}

fn sides_of(field: &Field) -> Option<Sides> {
    match field.shape[..] {
        [_, rows, columns] if rows * columns > 0 => Some(Sides { rows, columns }),
        _ => None,
    }
}

/// The position of a window of the image's size in the zero-padded image; an offset of `padding` is no shift.
struct Shift {
    down: usize,
    right: usize,
    padding: usize,
}

impl Shift {
    fn apply(&self, channel: &mut [f32], columns: usize) {
        let from = channel.to_vec();
        let rows = channel.len() / columns;
        for (row, to) in channel.chunks_exact_mut(columns).enumerate() {
            let source = (row + self.down).checked_sub(self.padding).filter(|&row| row < rows);
            for (column, to) in to.iter_mut().enumerate() {
                let at = (column + self.right).checked_sub(self.padding).filter(|&column| column < columns);
                *to = source.zip(at).map_or(0.0, |(row, column)| from[row * columns + column]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_tensor::DType;

    use super::super::DataLoader;
    use super::*;

    /// The same 2 × 3 image, many times.
    struct Same(usize);

    impl Dataset for Same {
        fn len(&self) -> usize {
            self.0
        }

        fn fields(&self) -> Vec<Field> {
            vec![Field { name: IMAGES, dtype: DType::F32, shape: vec![1, 2, 3] }]
        }

        fn write(&self, _: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
            out.slot::<f32>(IMAGES)?.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            Ok(())
        }
    }

    fn all(augment: Augment, workers: usize, epoch: u64) -> Vec<Vec<f32>> {
        let images = Augmented::new(Arc::new(Same(200)), augment);
        let loader = DataLoader::new(Arc::new(images), 8).unwrap().seed(3).workers(workers);
        let batches = loader.epoch(epoch).map(|batch| batch.unwrap());
        batches
            .flat_map(|batch| {
                let pixels = batch.array(IMAGES).unwrap().as_slice::<f32>().unwrap().to_vec();
                pixels.chunks(6).map(<[f32]>::to_vec).collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn about_half_of_the_images_are_mirrored_and_none_otherwise_changed() {
        let images = all(Augment { flip: true, padding: 0 }, 0, 0);
        let mirrored = images.iter().filter(|image| image[..] == [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]).count();
        let same = images.iter().filter(|image| image[..] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).count();
        assert_eq!(mirrored + same, 200);
        assert!((70..=130).contains(&mirrored), "{mirrored}");
    }

    #[test]
    fn a_shifted_image_is_a_window_of_the_image_with_zeros_around_it() {
        let images = all(Augment { flip: false, padding: 1 }, 0, 0);
        let mut kinds: Vec<Vec<u8>> =
            images.iter().map(|image| image.iter().map(|&pixel| pixel as u8).collect()).collect();
        kinds.sort();
        kinds.dedup();
        assert_eq!(kinds.len(), 9, "three places in each direction");
        assert!(kinds.contains(&vec![0, 0, 0, 0, 1, 2]) && kinds.contains(&vec![5, 6, 0, 0, 0, 0]));
    }

    #[test]
    fn changes_depend_on_the_seed_and_the_epoch_and_not_on_workers() {
        let both = Augment { flip: true, padding: 1 };
        assert_eq!(all(both, 0, 0), all(both, 3, 0));
        assert_ne!(all(both, 0, 0), all(both, 0, 1));
        let none = all(Augment::default(), 0, 0);
        assert!(none.iter().all(|image| image[..] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    }
}
