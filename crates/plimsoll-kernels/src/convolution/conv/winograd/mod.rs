//! Winograd's F(2 × 2, 3 × 3): dense convolutions of 3 × 3 with 16 products for a square of 2 × 2 results, where sums over windows
//! take 36.
//!
//! Results are cut into squares of 2 × 2, each of which sees 4 × 4 elements (`grid.rs`). Small linear maps (`lines.rs`) turn those,
//! channel by channel, into 16 numbers, and the filters into 16, too; 16 matrix products over the channels follow, and another
//! map turns their results into the square (`gather.rs`). Backward to the weight the products run over squares (`weight.rs`).
//! Some squares are worked on at a time, so all that is between the maps stays in a near cache. Squares are those of channels-last
//! images; row-major ones are turned, some at a time (`blocks.rs`).
//!
//! The maps only add and halve, so results are as close to the true ones as those of sums over windows.

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

/// Products of a square.
const SQUARE: usize = 16;
/// Channels from which the maps cost less than they save.
const CHANNELS: usize = 32;

/// Floats of scratch of all workers, about, where four have room in it.
const OWN: usize = 1 << 21;

/// Squares down and across results of such a size, for the shapes and layouts that pay.
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
    // Those at the border may be half empty. A product costs as much as before; the maps take a tenth or two.
    let pays = squares[0] * squares[1] * SQUARE * 4 < height * width * 9 * 3;
    pays.then_some(squares)
}

/// The distance between the 16 matrices of a block: whole pages and a line, or the same row of each would be in one set of the cache.
fn apart(len: usize) -> usize {
    len.next_multiple_of(1024) + 16
}

/// Workers that scratch has room for, where each takes this many floats.
fn workers(chunks: usize, own_len: usize) -> usize {
    scratch_workers(chunks).min((OWN / own_len).max(4))
}
