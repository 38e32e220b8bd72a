//! The gradient of a convolution's weight of few elements, such as the first layer's of a network for digits: cuDNN cuts it
//! into many small launches. One kernel adds up parts of all places, a second adds up the parts.

use plimsoll_cuda::{Args, ConvolutionPass};

use super::images::{Sizes, strides};
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Layout;

const FEW_FILTERS: &str = include_str!("few_filters.cu");

/// Elements of the largest weight: four a thread of a block.
const MOST_ELEMENTS: usize = 1024;
/// Places of the most images' results, which bounds the parts.
const MOST_PLACES: usize = 1 << 18;
/// Numbers of shared memory.
const SHARED: usize = 12_000;

/// How the sums are cut.
struct Parts {
    out: usize,
    /// Elements of a filter.
    taps: usize,
    /// Places that a block takes.
    places: usize,
    blocks: usize,
}

/// The parts of a gradient to which this applies. `layouts` are those of images, filters and results.
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

/// Bytes of scratch, where this applies.
pub(super) fn scratch(pass: ConvolutionPass, dtype: DType, layouts: [&Layout; 3]) -> Option<u64> {
    parts(pass, dtype, layouts).map(|parts| (parts.blocks * parts.out * parts.taps * dtype.size()) as u64)
}

/// Asks for the gradient; `false` where this does not apply. `tensors` are images, filters and results.
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
