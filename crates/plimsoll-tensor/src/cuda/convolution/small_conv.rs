//! Convolution of small images in TF32, as in a network for digits. On these, cuDNN's kernels leave most of a large GPU idle, and
//! its weight gradients consist of many small launches. The choice of kernel depends on sizes, layouts and the compute
//! capability.
//!
//! This file has the forward pass, the gradient of images, and the code that all passes share: when they apply, and how images
//! are divided. `small_conv_weight.rs` has the gradient of filters.

use plimsoll_cuda::{Args, ConvolutionPass, Launch, Source, Step};

use super::images::{Sizes, strides};
use crate::cuda::{CudaCall, Placed};
use crate::dtype::DType;
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::layout::Layout;

const TEXT: &str = concat!(include_str!("tf32.cu"), include_str!("small_conv.cu"));

/// The number of positions in a block's results, 32 for each warp.
const PLACES: usize = 128;
/// The maximum number of multiplications of a pass, and the fewest elements of a window. cuDNN's kernels are efficient for larger
/// convolutions, and a convolution with a window of one element is a matrix product.
const MOST_PRODUCTS: usize = 1 << 30;
const FEWEST_TAPS: usize = 2;
/// The maximum number of bytes of filters that all blocks read: with many channels and small images, the filters would be read
/// too often.
const MOST_FILTER_BYTES: usize = 128 << 20;
/// Shared memory that a block can have on every GPU from compute capability 8.0 on.
pub(super) const MOST_SHARED_BYTES: usize = 96 << 10;

/// The sizes of a convolution with two spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plane {
    pub(super) batch: usize,
    /// The channels of images and of results.
    pub(super) channels: [usize; 2],
    /// For height and width: the sizes of images, results and window, then stride, padding and dilation.
    pub(super) input: [usize; 2],
    pub(super) output: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) stride: [usize; 2],
    /// Negative if rows or columns of the images are left out.
    pub(super) padding: [i64; 2],
    pub(super) dilation: [usize; 2],
}

impl Plane {
    /// The convolution that a pass computes, if these kernels apply. `layouts` are those of images, filters and results.
    pub(super) fn of(
        sizes: &Sizes,
        dtype: DType,
        layouts: [&Layout; 3],
        facts: DeviceFacts,
    ) -> Option<Plane> {
        let flat = |[depth, height, width]: [usize; 3]| (depth, [height, width]);
        let [input, output, kernel, stride, padding, dilation] = sizes.axes.map(flat);
        let has_depth = [input.0, output.0, kernel.0].into_iter().any(|size| size != 1) || padding.0 != 0;
        let applies = dtype == DType::F32
            && sizes.tf32
            && facts.capability.is_some_and(|capability| capability >= (8, 0))
            && sizes.groups == 1
            && !has_depth
            && layouts.iter().all(|layout| !layout.is_empty());
        if !applies {
            return None;
        }
        let (stride, dilation, kernel) = (stride.1, dilation.1, kernel.1);
        let own = [sizes.in_channels, sizes.out_channels];
        let padding = padding.1.map(|padding| i64::try_from(padding).unwrap_or(i64::MAX));
        let plane = match sizes.pass {
            ConvolutionPass::ToInput if stride != [1, 1] => return None,
            ConvolutionPass::ToInput => Plane {
                batch: sizes.batch,
                channels: [own[1], own[0]],
                input: output.1,
                output: input.1,
                kernel,
                stride,
                // The padding of the flipped convolution.
                padding: std::array::from_fn(|i| (dilation[i] * (kernel[i] - 1)) as i64 - padding[i]),
                dilation,
            },
            _ => Plane {
                batch: sizes.batch,
                channels: own,
                input: input.1,
                output: output.1,
                kernel,
                stride,
                padding,
                dilation,
            },
        };
        let mut products = plane.output.iter().chain(&plane.channels).chain(&plane.kernel);
        let products = products.try_fold(plane.batch, |all, &size| all.checked_mul(size))?;
        let fits = products <= MOST_PRODUCTS && plane.taps() >= FEWEST_TAPS && plane.output[1] <= PLACES;
        fits.then_some(plane)
    }

    pub(super) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// The number of result rows per block, and the number of blocks per image.
    pub(super) fn rows(&self) -> (usize, usize) {
        let [height, width] = self.output;
        let most = (PLACES / width).clamp(1, height);
        let rows = height.div_ceil(height.div_ceil(most));
        (rows, height.div_ceil(rows))
    }

    /// The number of image channels that are processed at a time.
    pub(super) fn chunk(&self) -> usize {
        match self.channels[0] {
            few @ ..=8 => few,
            _ if self.taps() <= 12 => 16,
            _ => 8,
        }
    }

    /// The number of elements of a channel on which this many rows of results depend.
    pub(super) fn patch(&self, rows: usize) -> usize {
        let seen = |i: usize, count: usize| {
            (count - 1) * self.stride[i] + (self.kernel[i] - 1) * self.dilation[i] + 1
        };
        seen(0, rows) * seen(1, self.output[1])
    }

    /// Defines the sizes in a kernel text.
    pub(super) fn define(&self, source: Source) -> Source {
        let sizes = [
            (["IN_H", "IN_W"], self.input),
            (["OUT_H", "OUT_W"], self.output),
            (["KERNEL_H", "KERNEL_W"], self.kernel),
            (["STRIDE_H", "STRIDE_W"], self.stride),
            (["DILATION_H", "DILATION_W"], self.dilation),
            (["IN", "OUT"], self.channels),
        ];
        let source = sizes.into_iter().fold(source, |source, ([first, second], [a, b])| {
            source.with(first, a.to_string()).with(second, b.to_string())
        });
        let [first, second] = self.padding.map(|padding| format!("({padding})"));
        source.with("PADDING_H", first).with("PADDING_W", second)
    }
}

/// The distance between channels of a patch that is stored row by row, chosen so that neighbouring rows of a tile are in
/// different banks.
pub(super) fn patch_pitch(patch: usize) -> usize {
    (patch + 23) / 32 * 32 + 8
}

/// The strides of images along image, channel, row and column.
pub(super) fn image_strides(x: &Placed<'_>) -> [u64; 4] {
    let [image, channel, _, row, column] = strides(x);
    [image, channel, row, column]
}

pub(super) fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// How many numbers are copied at once: four if the address is a multiple of 16 and the distances are multiples of four,
/// otherwise one.
pub(super) fn side(address: u64, multiples_of_four: &[usize]) -> usize {
    let fits = address.is_multiple_of(16) && multiples_of_four.iter().all(|n| n.is_multiple_of(4));
    if fits { 4 } else { 1 }
}

/// Queues one of the kernels.
pub(super) fn launch(
    call: &mut CudaCall<'_>,
    source: Source,
    [x, y, threads]: [usize; 3],
    shared_bytes: usize,
    args: Args,
) -> Result<()> {
    let [x, y, block, shared_bytes] =
        [x, y, threads, shared_bytes].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    call.push(Step::Launch(Launch { source, grid: [x, y, 1], block, shared_bytes, args }));
    Ok(())
}

/// The division of the results of a forward pass or of a gradient of images.
struct Tiling {
    threads: usize,
    rows: usize,
    row_blocks: usize,
    /// Result channels per block.
    columns: usize,
    chunk: usize,
    /// The number of parts into which the terms of a chunk are split.
    split: usize,
    /// The distances in shared memory between positions and between channels of a patch.
    patch: [usize; 2],
    filters: Runs,
    /// The floats of a chunk in shared memory, for images and for filters.
    floats: [usize; 2],
    shared_bytes: usize,
}

/// Whether the filters' channels are contiguous, and whether the filters are flipped.
#[derive(Clone, Copy)]
struct Filters {
    last: bool,
    flipped: bool,
}

/// The copy of a chunk of filters: `count` filters or channels, each with `runs` runs of `run` contiguous numbers.
struct Runs {
    count: usize,
    runs: usize,
    run: usize,
    /// The distances between filters or channels, and between runs, in memory and in shared memory.
    from: [usize; 2],
    to: [usize; 2],
    /// The distances in shared memory between columns, between terms, and from the last term of a channel to the first of the
    /// next.
    column: usize,
    term: usize,
    skip: usize,
    floats: usize,
    /// The floats from one chunk or block of columns to the next, and in total.
    step: usize,
    all: usize,
}

impl Runs {
    /// Chooses the distances so that the threads that multiply read (almost) all 32 banks at once.
    fn of(plane: &Plane, chunk: usize, columns: usize, filters: Filters) -> Runs {
        let (taps, [channels, results]) = (plane.taps(), plane.channels);
        let terms = (chunk * taps).next_multiple_of(8) + 4;
        let by_term = columns + if columns.is_multiple_of(16) { 8 } else { 0 };
        let own = Runs {
            count: columns,
            runs: 1,
            run: chunk * taps,
            from: [channels * taps, 0],
            to: [terms, 0],
            column: terms,
            term: 1,
            skip: 0,
            floats: columns * terms,
            step: if channels > chunk { chunk * taps } else { 0 },
            all: channels * taps,
        };
        match (filters.flipped, filters.last) {
            (false, false) => own,
            (false, true) => Runs {
                runs: taps,
                run: chunk,
                from: [channels * taps, channels],
                to: [terms, chunk],
                step: own.step / taps,
                all: channels,
                ..own
            },
            (true, false) => {
                let channel = (columns * taps).next_multiple_of(4);
                Runs {
                    count: chunk,
                    run: columns * taps,
                    from: [results * taps, 0],
                    to: [channel, 0],
                    column: taps,
                    skip: channel - taps,
                    floats: chunk * channel,
                    step: 0,
                    all: results * taps,
                    ..own
                }
            }
            (true, true) => Runs {
                count: chunk,
                runs: taps,
                run: columns,
                from: [results * taps, results],
                to: [by_term, chunk * by_term],
                column: 1,
                term: by_term,
                floats: chunk * taps * by_term,
                step: 0,
                all: results,
                ..own
            },
        }
    }

    fn side(&self, address: u64) -> usize {
        let [from, run] = self.from;
        let [to, to_run] = self.to;
        side(address, &[self.run, from, run, to, to_run, self.step, self.all])
    }
}

impl Tiling {
    fn of(plane: &Plane, images_last: bool, filters: Filters) -> Option<Tiling> {
        let (rows, row_blocks) = plane.rows();
        let chunk = plane.chunk();
        let columns = plane.channels[1].next_multiple_of(8).min(32);
        let groups = (rows * plane.output[1]).div_ceil(32).next_power_of_two();
        // With few terms, a block with all warps would spend most of its time adding partial sums.
        let steps = plane.channels[0].div_ceil(chunk) * (chunk * plane.taps()).div_ceil(8);
        let threads = if steps >= 16 { 512 } else { 256 };
        let (split, seen) = (threads / 32 / groups, plane.patch(rows));
        let (patch, images) = match images_last {
            true => {
                let pitch = if chunk.is_multiple_of(8) { chunk + 4 } else { chunk };
                ([pitch, 1], seen * pitch)
            }
            false => ([1, patch_pitch(seen)], chunk * patch_pitch(seen)),
        };
        let filters = Runs::of(plane, chunk, columns, filters);
        let floats = [images, filters.floats].map(|floats| floats.next_multiple_of(4));
        let stages = if plane.channels[0] > chunk { 2 } else { 1 };
        let parts = (split - 1) * columns * (threads / split);
        let shared_bytes = (stages * (floats[0] + floats[1])).max(parts) * 4;
        let read = plane.batch * row_blocks * plane.channels[1].next_multiple_of(columns) * 4;
        let filter_bytes = read * plane.channels[0] * plane.taps();
        let fits = shared_bytes <= MOST_SHARED_BYTES
            && filter_bytes <= MOST_FILTER_BYTES
            && plane.channels[1].div_ceil(columns) < 1 << 16;
        fits.then_some(Tiling {
            threads,
            rows,
            row_blocks,
            columns,
            chunk,
            split,
            patch,
            filters,
            floats,
            shared_bytes,
        })
    }
}

/// A pass that these kernels run.
struct Pass {
    plane: Plane,
    tiling: Tiling,
    images_last: bool,
    filters: Filters,
}

impl Pass {
    /// The pass, if these kernels apply. `layouts` are those of images, filters and results.
    fn of(sizes: &Sizes, dtype: DType, layouts: [&Layout; 3], facts: DeviceFacts) -> Option<Pass> {
        let plane = match sizes.pass {
            ConvolutionPass::ToWeight => return None,
            _ => Plane::of(sizes, dtype, layouts, facts)?,
        };
        let [images, filters, results] = layouts.map(|layout| !layout.is_contiguous());
        let flipped = sizes.pass == ConvolutionPass::ToInput;
        let images_last = if flipped { results } else { images };
        let filters = Filters { last: filters, flipped };
        let tiling = Tiling::of(&plane, images_last, filters)?;
        Some(Pass { plane, tiling, images_last, filters })
    }
}

/// Whether these kernels run a pass. It then needs no scratch memory.
pub(super) fn applies(sizes: &Sizes, dtype: DType, layouts: [&Layout; 3], facts: DeviceFacts) -> bool {
    Pass::of(sizes, dtype, layouts, facts).is_some()
}

/// Queues a forward pass or a gradient of images; returns `false` if these kernels do not apply. `tensors` are images, filters
/// and results.
pub(super) fn run(
    call: &mut CudaCall<'_>,
    sizes: &Sizes,
    tensors: [Placed<'_>; 3],
    bias: Option<Placed<'_>>,
) -> Result<bool> {
    let layouts = tensors.map(|tensor| tensor.layout);
    let Some(pass) = Pass::of(sizes, tensors[0].dtype, layouts, call.facts) else { return Ok(false) };
    let Pass { plane, tiling, images_last, filters } = pass;
    let flipped = filters.flipped;
    let (from, to) = if flipped { (tensors[2], tensors[0]) } else { (tensors[0], tensors[2]) };
    let runs = &tiling.filters;
    let images_side = match images_last {
        true => side(from.address, &[tiling.chunk, plane.channels[0], tiling.patch[0]]),
        false => 1,
    };
    let source = plane.define(call.source(TEXT));
    let source = [
        ("THREADS", tiling.threads),
        ("ROWS", tiling.rows),
        ("COLUMNS", tiling.columns),
        ("CHANNELS", tiling.chunk),
        ("SPLIT", tiling.split),
        ("X_SIDE", images_side),
        ("W_SIDE", runs.side(tensors[1].address)),
        ("X_PLACE", tiling.patch[0]),
        ("X_CHANNEL", tiling.patch[1]),
        ("W_COLUMN", runs.column),
        ("W_TERM", runs.term),
        ("W_SKIP", runs.skip),
        ("X_FLOATS", tiling.floats[0]),
        ("W_FLOATS", tiling.floats[1]),
        ("COUNT", runs.count),
        ("RUNS", runs.runs),
        ("RUN", runs.run),
        ("FROM_COUNT", runs.from[0]),
        ("FROM_RUN", runs.from[1]),
        ("TO_COUNT", runs.to[0]),
        ("TO_RUN", runs.to[1]),
    ]
    .into_iter()
    .fold(source, |source, (name, value)| source.with(name, value.to_string()))
    .with("FLIP", flag(flipped))
    .with("TAPS_INNER", flag(!filters.last))
    .with("X_LAST", flag(images_last));
    let words = [image_strides(&from), image_strides(&to)].concat();
    let args = Args::new().address(to.address).address(from.address).address(tensors[1].address);
    let args = args.address(bias.map_or(0, |bias| bias.address)).words(&words);
    let blocks = [plane.batch * tiling.row_blocks, plane.channels[1].div_ceil(tiling.columns)];
    launch(call, source, [blocks[0], blocks[1], tiling.threads], tiling.shared_bytes, args)?;
    Ok(true)
}
