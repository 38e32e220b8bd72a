//! The gradient of a convolution with a small weight, such as the first layer of a network for digits. cuDNN splits it into
//! many small launches. Here one kernel computes partial sums over all positions, and a second adds them.

use plimsoll_cuda::{Args, ConvolutionPass};

use super::images::{Sizes, strides};
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;

const FEW_FILTERS: &str = include_str!("few_filters.cu");

/// The maximum number of elements of a weight: four for each thread of a block.
const MOST_ELEMENTS: usize = 1024;
/// The maximum number of positions of results over all images, which limits the number of parts.
const MOST_PLACES: usize = 1 << 18;
/// The maximum number of floats in shared memory.
const SHARED: usize = 12_000;

/// The division of the sums into parts.
struct Parts {
    out: usize,
    /// The number of elements of a filter.
    taps: usize,
    /// The number of positions per block.
    places: usize,
    blocks: usize,
}

/// The parts for a gradient, if these kernels apply. `layouts` are those of images, filters and results.
fn parts(pass: ConvolutionPass, dtype: DType, layouts: [&Layout; 3]) -> Option<Parts> {
    let [images, filters, results] = layouts.map(Layout::shape);
    let out = filters[0];
    let taps: usize = filters[1..].iter().product();
    let all: usize = results.iter().product::<usize>().checked_div(out)?;
    let applies = pass == ConvolutionPass::ToWeight
        && dtype == DType::F32
        && images[1] == filters[1]
        && (1..=MOST_ELEMENTS).contains(&(out * taps))
        && (1..=MOST_PLACES).contains(&all);
    let places = (SHARED / (out + taps + 2)).min(128);
    (applies && places > 0).then(|| Parts { out, taps, places, blocks: all.div_ceil(places) })
}

/// Bytes of scratch memory, if these kernels apply.
pub(super) fn scratch(pass: ConvolutionPass, dtype: DType, layouts: [&Layout; 3]) -> Option<u64> {
    parts(pass, dtype, layouts).map(|parts| (parts.blocks * parts.out * parts.taps * dtype.size()) as u64)
}

/// Queues the gradient; returns `false` if these kernels do not apply. `tensors` are images, filters and results.
pub(super) fn run(call: &mut CudaCall<'_>, sizes: &Sizes, tensors: [Placed<'_>; 3]) -> Result<bool> {
    let [images, filters, results] = tensors;
    let dtype = filters.dtype;
    let Some(parts) = parts(sizes.pass, dtype, tensors.map(|tensor| tensor.layout)) else {
        return Ok(false);
    };
    let source = call
        .source(FEW_FILTERS)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("OUT", parts.out.to_string())
        .with("TAPS", parts.taps.to_string())
        .with("PLACES", parts.places.to_string())
        .with("EACH", (parts.out * parts.taps).div_ceil(256).to_string());
    let scratch = call.scratch_address();
    let all = results.len() / parts.out;
    let shape = std::iter::once(all).chain(sizes.axes.concat()).map(|n| n as u64);
    let shape: Vec<u64> = shape.chain(strides(&images)).chain(strides(&results)).collect();
    let args = Args::new().address(scratch).address(results.address).address(images.address).words(&shape);
    call.launch(source.clone().with("PASS", "0"), [parts.blocks, 1, 1], 256, args)?;
    let [_, _, kernel, ..] = sizes.axes;
    let words: Vec<u64> = kernel.map(|n| n as u64).into_iter().chain(strides(&filters)).collect();
    let args = Args::new().address(filters.address).address(scratch).size(parts.blocks).words(&words);
    call.launch(source.with("PASS", "1"), [(parts.out * parts.taps).div_ceil(8), 1, 1], 256, args)?;
    Ok(true)
}
