//! The gradient of the filters for small images, in TF32: blocks compute partial sums over all positions, and a second launch
//! adds them in a fixed order.

use plimsoll_cuda::{Args, ConvolutionPass};

use super::images::{Sizes, strides};
use super::small_conv::{MOST_SHARED_BYTES, Plane, flag, image_strides, launch, patch_pitch, side};
use crate::cuda::{CudaCall, Placed};
use crate::dtype::DType;
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::layout::Layout;

const TEXT: &str = concat!(include_str!("tf32.cu"), include_str!("small_conv_weight.cu"));

/// The approximate number of warps that keeps a large GPU busy.
const WARPS: usize = 2112;
/// The maximum number of bytes of partial sums.
const MOST_PARTS_BYTES: usize = 4 << 20;
/// The maximum number of tiles of terms per warp.
const MOST_TILES: usize = 8;

/// The division of the sums into parts.
struct Tiling {
    plane: Plane,
    threads: usize,
    rows: usize,
    /// The filters and channels per block, and the number of such blocks.
    filters: usize,
    chunk: usize,
    blocks: usize,
    /// The tiles of terms per warp, and the number of parts into which a block's positions are split.
    wide: usize,
    split: usize,
    /// The units (groups of rows of an image) that a block sums, and the total number of parts.
    units: usize,
    parts: usize,
    /// The number of elements of a part.
    elements: usize,
    images_last: bool,
    results_last: bool,
    /// The distances in shared memory between positions and channels of a patch, and between positions and filters of results.
    patch: [usize; 2],
    results: [usize; 2],
    floats: [usize; 2],
    shared_bytes: usize,
}

impl Tiling {
    /// The tiling, if these kernels apply. `layouts` are those of images, filters and results.
    fn of(sizes: &Sizes, dtype: DType, layouts: [&Layout; 3], facts: DeviceFacts) -> Option<Tiling> {
        let plane = match sizes.pass {
            ConvolutionPass::ToWeight => Plane::of(sizes, dtype, layouts, facts)?,
            _ => return None,
        };
        let [images_last, _, results_last] = layouts.map(|layout| !layout.is_contiguous());
        let (rows, row_blocks) = plane.rows();
        let (chunk, seen) = (plane.chunk(), plane.patch(rows));
        let filters = plane.channels[1].next_multiple_of(16).min(32);
        let (terms, chunks) = (chunk * plane.taps(), plane.channels[0].div_ceil(chunk));
        let tiles = terms.div_ceil(8);
        let groups = [1, 2, 4].into_iter().find(|&groups| tiles.div_ceil(groups) <= 4).unwrap_or(8);
        let threads = if groups == 8 { 512 } else { 256 };
        let (wide, split) = (tiles.div_ceil(groups), threads / 32 / groups);
        let (patch, images) = match images_last {
            true => {
                let pitch = chunk + if chunk.is_multiple_of(16) { 8 } else { 0 };
                ([pitch, 1], seen * pitch)
            }
            false => ([1, patch_pitch(seen)], chunk * patch_pitch(seen)),
        };
        let places = (rows * plane.output[1]).next_multiple_of(8);
        let (results, of_results) = match results_last {
            true => ([filters + 8, 1], places * (filters + 8)),
            false => ([1, places + 4], filters * (places + 4)),
        };
        let floats = [images.next_multiple_of(4), of_results];
        let blocks = chunks * plane.channels[1].div_ceil(filters);
        let elements = plane.channels[1] * chunks * terms;
        let all = plane.batch * row_blocks;
        let most =
            (WARPS / (threads / 32) / blocks).min(MOST_PARTS_BYTES / (elements * dtype.size())).clamp(1, all);
        let units = all.div_ceil(most);
        let parts = all.div_ceil(units);
        let stages = if units > 1 { 2 } else { 1 };
        let sums = (split - 1) * (filters / 16 * wide * 4) * (threads / split);
        let shared_bytes = (stages * (floats[0] + floats[1])).max(sums) * 4;
        let fits = wide <= MOST_TILES
            && shared_bytes <= MOST_SHARED_BYTES
            && elements * dtype.size() <= MOST_PARTS_BYTES;
        fits.then_some(Tiling {
            plane,
            threads,
            rows,
            filters,
            chunk,
            blocks,
            wide,
            split,
            units,
            parts,
            elements,
            images_last,
            results_last,
            patch,
            results,
            floats,
            shared_bytes,
        })
    }
}

/// Bytes of scratch memory, if these kernels apply.
pub(super) fn scratch(sizes: &Sizes, dtype: DType, layouts: [&Layout; 3], facts: DeviceFacts) -> Option<u64> {
    let tiling = Tiling::of(sizes, dtype, layouts, facts)?;
    Some((tiling.parts * tiling.elements * dtype.size()) as u64)
}

/// Queues the gradient; returns `false` if these kernels do not apply. `tensors` are images, filters and results.
pub(super) fn run(call: &mut CudaCall<'_>, sizes: &Sizes, tensors: [Placed<'_>; 3]) -> Result<bool> {
    let [images, filters, results] = tensors;
    let layouts = tensors.map(|tensor| tensor.layout);
    let Some(tiling) = Tiling::of(sizes, filters.dtype, layouts, call.facts) else { return Ok(false) };
    let source = tiling.plane.define(call.source(TEXT));
    let Plane { channels, output: [height, width], .. } = tiling.plane;
    let images_side = match tiling.images_last {
        true => side(images.address, &[tiling.chunk, channels[0], tiling.patch[0]]),
        false => 1,
    };
    let results_side = match tiling.results_last {
        true => side(results.address, &[channels[1]]),
        false => side(results.address, &[tiling.rows * width, height * width]),
    };
    let source = [
        ("THREADS", tiling.threads),
        ("X_SIDE", images_side),
        ("Y_SIDE", results_side),
        ("BATCH", tiling.plane.batch),
        ("ROWS", tiling.rows),
        ("FILTERS", tiling.filters),
        ("CHANNELS", tiling.chunk),
        ("SPLIT", tiling.split),
        ("WIDE", tiling.wide),
        ("UNITS", tiling.units),
        ("X_PLACE", tiling.patch[0]),
        ("X_CHANNEL", tiling.patch[1]),
        ("Y_PLACE", tiling.results[0]),
        ("Y_FILTER", tiling.results[1]),
        ("X_FLOATS", tiling.floats[0]),
        ("Y_FLOATS", tiling.floats[1]),
    ]
    .into_iter()
    .fold(source, |source, (name, value)| source.with(name, value.to_string()))
    .with("TAPS_INNER", flag(!tiling.images_last))
    .with("X_LAST", flag(tiling.images_last))
    .with("Y_LAST", flag(tiling.results_last));
    let scratch = call.scratch_address();
    let words = [image_strides(&images), image_strides(&results)].concat();
    let args = Args::new().address(scratch).address(results.address).address(images.address).words(&words);
    let first = source.clone().with("PASS", "0");
    launch(call, first, [tiling.parts, tiling.blocks, tiling.threads], tiling.shared_bytes, args)?;
    let [filter, channel, _, row, column] = strides(&filters);
    // The stride of a dimension of size 1 is meaningless.
    let tap = if filters.cols() > 1 { column } else { row };
    let args = Args::new().address(filters.address).address(scratch).size(tiling.parts);
    let args = args.words(&[filter, channel, tap]);
    launch(call, source.with("PASS", "1"), [tiling.elements.div_ceil(32), 1, 256], 0, args)?;
    Ok(true)
}
