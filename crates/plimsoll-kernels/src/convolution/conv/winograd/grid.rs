//! Divides channels-last images into squares that start two elements apart, and transforms the squares.

use std::ops::Range;

use super::lines::{Line, Squares, map};

/// Images, and the squares on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) channels: usize,
    /// Height and width.
    pub(super) size: [usize; 2],
    /// How far before the first element the first square starts; elements outside are 0.
    pub(super) before: [usize; 2],
    /// The number of squares, vertically and horizontally.
    pub(super) squares: [usize; 2],
}

/// Neighbouring squares in a row.
pub(super) struct Run {
    pub(super) image: usize,
    pub(super) y: usize,
    pub(super) xs: Range<usize>,
    /// The number of squares of the range that precede it.
    pub(super) nth: usize,
}

/// The rows of a range of squares. Squares are numbered across all images.
pub(super) fn runs([down, across]: [usize; 2], squares: Range<usize>) -> impl Iterator<Item = Run> {
    (squares.start / across..squares.end.div_ceil(across)).map(move |row| {
        let start = squares.start.max(row * across);
        let xs = start - row * across..squares.end.min((row + 1) * across) - row * across;
        Run { image: row / down, y: row % down, xs, nth: start - squares.start }
    })
}

impl Grid {
    /// Squares of an image.
    pub(super) fn per_image(&self) -> usize {
        self.squares[0] * self.squares[1]
    }

    /// The squares with this side that are completely inside along a dimension.
    fn inside(&self, dim: usize, side: usize) -> Range<usize> {
        let first = self.before[dim].div_ceil(2);
        let end = (self.size[dim] + self.before[dim]).checked_sub(side).map_or(0, |last| last / 2 + 1);
        first..end.max(first)
    }

    /// Transforms the squares of a range, `N` elements wide, for some channels. If there are fewer channels than lanes, the other
    /// lanes are 0. The scratch memory holds one square.
    pub(super) fn map<L: Line<N, 4>, const N: usize>(
        &self,
        (images, channels): (&[f32], Range<usize>),
        squares: Range<usize>,
        (to, to_at, lanes): (&mut [f32], Squares, usize),
        scratch: &mut [f32],
    ) {
        let [height, width] = self.size;
        let (inside_y, inside_x) = (self.inside(0, N), self.inside(1, N));
        let image_len = height * width * self.channels;
        for run in runs(self.squares, squares) {
            let image = &images[run.image * image_len..][..image_len];
            let whole = channels.len() == lanes && inside_y.contains(&run.y);
            let mut x = run.xs.start;
            while x < run.xs.end {
                let nth = run.nth + x - run.xs.start;
                let to = (&mut *to, Squares { first: to_at.first + nth * to_at.next, ..to_at });
                if whole && inside_x.contains(&x) {
                    let count = run.xs.end.min(inside_x.end) - x;
                    let (top, left) = (2 * run.y - self.before[0], 2 * x - self.before[1]);
                    let from_at = Squares {
                        first: (top * width + left) * self.channels + channels.start,
                        row: width * self.channels,
                        column: self.channels,
                        next: 2 * self.channels,
                    };
                    map::<L, N, 4>((image, from_at), to, (count, lanes));
                    x += count;
                    continue;
                }
                let square = &mut scratch[..N * N * lanes];
                self.copy(image, channels.clone(), [run.y, x], (square, N, lanes));
                let from_at = Squares { first: 0, row: N * lanes, column: lanes, next: 0 };
                map::<L, N, 4>((square, from_at), to, (1, lanes));
                x += 1;
            }
        }
    }

    /// Copies the elements of a square, with zeros for elements outside the image.
    fn copy(
        &self,
        image: &[f32],
        channels: Range<usize>,
        at: [usize; 2],
        (square, side, lanes): (&mut [f32], usize, usize),
    ) {
        let [height, width] = self.size;
        for (i, to) in square.chunks_exact_mut(lanes).enumerate() {
            let y = (2 * at[0] + i / side).wrapping_sub(self.before[0]);
            let x = (2 * at[1] + i % side).wrapping_sub(self.before[1]);
            if y >= height || x >= width {
                to.fill(0.0);
                continue;
            }
            let (seen, rest) = to.split_at_mut(channels.len());
            seen.copy_from_slice(&image[(y * width + x) * self.channels..][channels.clone()]);
            rest.fill(0.0);
        }
    }
}
