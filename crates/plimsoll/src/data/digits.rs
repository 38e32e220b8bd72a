//! Synthetic handwritten digits: a data set that needs no download.
//!
//! It replaces MNIST: same fields, same size, and similar difficulty. PyTorch's LeNet (batch 64,
//! SGD at 0.01 with momentum 0.9, the first 9,000 of seed 1) classified 98.2 % of the last 1,000 after five epochs,
//! with 99.1 % at best; trained this way, it also classified 82 % of 2,000 unseen MNIST digits.
//!
//! A drawing is a pure function of (seed, index): strokes from a table (`digits/glyphs.rs`), distorted
//! at random (`digits/hand.rs`), rendered to 28×28 pixels (`digits/page.rs`).
//!
//! Note [Same pixels everywhere]: all arithmetic from seed to pixel is `+ - * /`, `sqrt`, comparison and
//! rounding, which IEEE 754 defines to the last bit; no sine, exponential or logarithm, which differ between
//! machines. So the golden checksums in the tests hold on any machine.

mod glyphs;
mod hand;
mod page;

use super::dataset::check_index;
use super::random::{Purpose, Stream};
use super::{DataError, Dataset, Field, Sample, grey};
use hand::Hand;
use page::{PIXELS, Page, SIDE};

/// Synthetic digits, 28×28, white on black, as in MNIST.
///
/// Each group of ten consecutive samples has each digit once, in a random order. Nothing is kept in memory: a sample is drawn
/// when it is read, which takes about 10 µs (a release build, one core of a cloud machine).
///
/// ```
/// # use plimsoll::data::Digits;
/// let digits = Digits::new(7, 1000);
/// let (pixels, label) = digits.draw(123);
/// assert_eq!((pixels, label), Digits::new(7, 500).draw(123));
/// assert!(label <= 9 && pixels.iter().any(|&ink| ink == 255));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Digits {
    seed: u64,
    count: usize,
}

impl Digits {
    /// `count` digits of this seed. A larger count starts with the same digits.
    #[must_use]
    pub const fn new(seed: u64, count: usize) -> Self {
        Self { seed, count }
    }

    /// Draws one digit: its pixels, row by row from the top, 0 for black, and its label. Any index can be
    /// drawn, even beyond the count.
    #[must_use]
    pub fn draw(&self, index: usize) -> ([u8; PIXELS], u8) {
        let label = self.label(index);
        let mut random = Stream::new(self.seed, Purpose::DigitStrokes, index as u64);
        let glyph = glyphs::choose(label, &mut random);
        let mut page = Page::blank();
        Hand::new(&mut random).write(glyph, &mut page, &mut random);
        (page.develop(&mut random), label)
    }

    /// Every ten samples are a permutation of the ten digits.
    fn label(&self, index: usize) -> u8 {
        let mut ten = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        Stream::new(self.seed, Purpose::DigitLabels, (index / 10) as u64).shuffle(&mut ten);
        ten[index % 10]
    }
}

impl Dataset for Digits {
    fn len(&self) -> usize {
        self.count
    }

    fn fields(&self) -> Vec<Field> {
        grey::fields(SIDE, SIDE)
    }

    fn write(&self, index: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        check_index(index, self.count)?;
        let (pixels, label) = self.draw(index);
        grey::write(&pixels, label, out)
    }
}

#[cfg(test)]
#[path = "digits/tests.rs"]
mod tests;
