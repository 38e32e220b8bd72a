//! Winograd's F(2 × 2, 3 × 3): dense 3 × 3 convolutions that need 16 products for a square of 2 × 2 results, where sums
//! over windows need 36.
//!
//! Results are divided into squares of 2 × 2, each of which depends on 4 × 4 elements (`grid.rs`). Small linear transforms
//! (`lines.rs`) turn these elements into 16 numbers for each channel, and do the same with the filters. Next come 16
//! matrix products over the channels, and another transform turns their results into the square (`gather.rs`). For the
//! gradient of the weight, the products sum over squares (`weight.rs`). Only some squares are processed at a time, so
//! all intermediates stay in a nearby cache. Images must be channels-last; row-major images are converted a few at a
//! time (`blocks.rs`).
//!
//! The transforms only add and halve, so results are as accurate as those of sums over windows.

mod blocks;
mod gather;
mod grid;
mod lines;
mod weight;

use super::shape::{ConvShape, Format, Formats};
use crate::parallel::scratch_workers;

pub(super) use blocks::{WinogradBlocks, WinogradWeightBlocks};
use gather::Winograd;
use weight::WinogradWeight;

/// The number of products for a square.
const SQUARE: usize = 16;
/// The smallest number of channels for which the transforms cost less than they save.
const CHANNELS: usize = 32;

/// The approximate number of floats of scratch memory for all workers, if four fit in it.
const OWN: usize = 1 << 21;

/// The number of squares, vertically and horizontally, in results of this size; `None` if the transforms are not
/// worthwhile for the shape and layouts.
fn squares(s: &ConvShape, formats: Formats, result: [usize; 3]) -> Option<[usize; 2]> {
    let last = Format::ChannelsLast;
    let flat = s.kernel == [1, 3, 3] && s.input[0] == 1 && s.output[0] == 1 && s.padding[0] == 0;
    let dense = s.stride == [1; 3] && s.dilation == [1; 3] && s.groups == 1;
    let lies = formats.input == last && formats.output == last;
    let channels = s.in_channels.min(s.out_channels) >= CHANNELS && s.batch > 0;
    if !(flat && dense && lies && channels && s.padding[1].max(s.padding[2]) <= 2) {
        return None;
    }
    let [_, height, width] = result;
    let squares = [height.div_ceil(2), width.div_ceil(2)];
    // Squares at the border may be half empty, at the full cost of their products; the transforms take 10 to 20 % of the time.
    let pays = squares[0] * squares[1] * SQUARE * 4 < height * width * 9 * 3;
    pays.then_some(squares)
}

/// The distance between the 16 matrices of a block: complete pages plus a cache line; otherwise, the same row of each
/// matrix would be in the same cache set.
fn apart(len: usize) -> usize {
    len.next_multiple_of(1024) + 16
}

/// The number of workers that fit in scratch memory, if each needs this many floats.
fn workers(chunks: usize, own_len: usize) -> usize {
    scratch_workers(chunks).min((OWN / own_len).max(4))
}
