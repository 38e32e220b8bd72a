//! Convolution: with cuDNN, or with plain kernels if cuDNN is missing or has no plan.
//!
//! cuDNN requires images, filters and results in the same layout: channels-last for 16-bit floats, as tensor cores need it,
//! and any for other types. Tensors in another layout are copied to scratch memory and back. The choice depends only on sizes
//! and layouts, so a simulated device requests the same memory. Tensor cores read 16 bytes of channels at a time, so 16-bit
//! images with fewer channels (RGB) are copied and padded with zero channels. The plain kernels read any layout. Small images
//! and small weights have special kernels.

use plimsoll_cuda::{Args, Convolution, ConvolutionPass, ConvolutionStep, Laid, Step};

use super::images::{Sizes, strides};
use super::{few_filters, small_conv, small_conv_weight};
use crate::cuda::elementwise::expression;
use crate::cuda::matmul::product::float;
use crate::cuda::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::facts::DeviceFacts;
use crate::layout::{Dims, Layout};

const CONV: &str = include_str!("conv.cu");
const PAD_CHANNELS: &str = include_str!("pad_channels.cu");

/// Reorders a pass's `first` and `second` inputs and `out` into images, filters and results.
fn roles<T>(pass: ConvolutionPass, first: T, second: T, out: T) -> [T; 3] {
    match pass {
        ConvolutionPass::Forward => [first, second, out],
        ConvolutionPass::ToInput => [out, second, first],
        ConvolutionPass::ToWeight => [second, out, first],
    }
}

/// The index of a pass's output among images, filters and results.
fn written(pass: ConvolutionPass) -> usize {
    match pass {
        ConvolutionPass::Forward => 2,
        ConvolutionPass::ToInput => 0,
        ConvolutionPass::ToWeight => 1,
    }
}

fn channels_last(shape: &[usize]) -> Layout {
    let rank = shape.len();
    let inner: Dims = [shape[0]].into_iter().chain(shape[2..].iter().copied()).chain([shape[1]]).collect();
    let back: Dims = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
    Layout::contiguous(&inner).permute(&back)
}

fn is_channels_last(layout: &Layout) -> bool {
    let order: Dims = [0].into_iter().chain(2..layout.rank()).chain([1]).collect();
    layout.permute(&order).is_contiguous()
}

/// Whether all three must be channels-last, and which of them do not have the required layout.
fn order(dtype: DType, layouts: [&Layout; 3]) -> (bool, [bool; 3]) {
    let last = dtype.size() == 2 || layouts.iter().any(|layout| !layout.is_contiguous());
    (last, layouts.map(|layout| if last { !is_channels_last(layout) } else { !layout.is_contiguous() }))
}

/// The number of channels of images and filters in the call to cuDNN.
fn seen_channels(channels: usize, groups: usize, dtype: DType) -> usize {
    if groups == 1 && dtype.size() == 2 { channels.next_multiple_of(8) } else { channels }
}

/// The layout in which a pass's images, filters and results are passed to cuDNN.
struct CudnnLayout {
    /// Whether all are channels-last.
    last: bool,
    /// Channels of images, over all groups.
    channels: usize,
    /// The bytes in scratch memory of each tensor that is copied there.
    scratch_bytes: [Option<usize>; 3],
}

fn cudnn_layout(dtype: DType, layouts: [&Layout; 3]) -> CudnnLayout {
    let (last, mut copied) = order(dtype, layouts);
    let (channels, of_group) = (layouts[0].shape()[1], layouts[1].shape()[1]);
    let groups = channels.checked_div(of_group).unwrap_or(1);
    let seen = seen_channels(channels, groups, dtype);
    let mut sizes = layouts.map(Layout::len);
    if seen != channels {
        (copied[0], copied[1]) = (true, true);
        (sizes[0], sizes[1]) = (sizes[0] / channels * seen, sizes[1] / channels * seen);
    }
    // Each begins at a multiple of 512 bytes.
    let bytes = |i: usize| copied[i].then(|| (sizes[i] * dtype.size()).next_multiple_of(512));
    CudnnLayout { last, channels: seen, scratch_bytes: std::array::from_fn(bytes) }
}

/// Bytes of scratch memory, for tensors whose layout cuDNN cannot use, or for partial sums.
pub(crate) fn scratch(
    sizes: &Sizes,
    dtype: DType,
    ins: [&Layout; 2],
    out: &Layout,
    facts: DeviceFacts,
) -> u64 {
    if float(dtype).is_none() || ins.iter().any(|layout| layout.is_empty()) || out.is_empty() {
        return 0;
    }
    let layouts = roles(sizes.pass, ins[0], ins[1], out);
    if small_conv::applies(sizes, dtype, layouts, facts) {
        return 0;
    }
    let parts = small_conv_weight::scratch(sizes, dtype, layouts, facts);
    if let Some(bytes) = parts.or_else(|| few_filters::scratch(sizes.pass, dtype, layouts)) {
        return bytes;
    }
    let given = cudnn_layout(dtype, layouts);
    given.scratch_bytes.into_iter().flatten().sum::<usize>() as u64
}

/// The layout of a tensor in scratch memory with `channels` channels: all channels or, for filters, those of a group.
fn moved_layout(shape: &[usize], channels: usize, last: bool) -> Layout {
    if !last {
        return Layout::contiguous(shape);
    }
    let padded: Dims = shape.iter().enumerate().map(|(i, &n)| if i == 1 { channels } else { n }).collect();
    channels_last(&padded)
}

/// Copies a tensor and appends channels of zeros.
fn pad_channels(call: &mut CudaCall<'_>, from: Placed<'_>, to: u64, padded: usize) -> Result<()> {
    let (shape, steps) = (from.shape(), strides(&from));
    let missing = 5 - shape.len();
    let size = |d: usize| if d < missing { 1 } else { shape[2 + d - missing] };
    let sizes = [shape[0], size(0), size(1), size(2)];
    let together = 16 / from.dtype.size();
    let threads = sizes.iter().product::<usize>() * (padded / together);
    let words = [shape[1], padded].into_iter().chain(sizes).map(|n| n as u64).chain(steps);
    let args = Args::new().address(to).address(from.address).size(threads);
    let source = call.source(PAD_CHANNELS).with("T", name(from.dtype)).with("V", together.to_string());
    call.launch(source, [threads.div_ceil(256), 1, 1], 256, args.words(&words.collect::<Vec<u64>>()))
}

/// A five-dimensional layout without gaps.
fn laid(outer: usize, channels: usize, spatial: [usize; 3], last: bool) -> Laid {
    let sizes = [outer, channels, spatial[0], spatial[1], spatial[2]];
    let order = if last { [1, 4, 3, 2, 0] } else { [4, 3, 2, 1, 0] };
    let (mut strides, mut step) = ([0; 5], 1);
    for dim in order {
        strides[dim] = step;
        step *= sizes[dim];
    }
    Laid { sizes, strides }
}

/// `images, filters[, bias] -> results`, `gradient of results, filters[, bias] -> images`, or `gradient of results, images ->
/// gradient of filters`.
pub(crate) fn convolution(call: &mut CudaCall<'_>, sizes: Sizes) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let [first, second, bias @ ..] = &ins[..] else { return call.missing() };
    if out.is_empty() {
        return Ok(());
    }
    let dtype = out.dtype;
    if ins.iter().any(|x| x.dtype != dtype) {
        return call.missing();
    }
    let tensors = roles(sizes.pass, *first, *second, out);
    if small_conv::run(call, &sizes, tensors, bias.first().copied())?
        || small_conv_weight::run(call, &sizes, tensors)?
        || few_filters::run(call, &sizes, tensors)?
    {
        return Ok(());
    }
    let otherwise = call.apart(|call| plain(call, &sizes, tensors, bias.first().copied()))?;
    let Some(float) = float(dtype).filter(|_| !tensors.iter().any(Placed::is_empty)) else {
        otherwise.into_iter().for_each(|step| call.push(step));
        return Ok(());
    };
    let CudnnLayout { last, channels, scratch_bytes } =
        cudnn_layout(dtype, tensors.map(|tensor| tensor.layout));
    let mut next = call.scratch_address();
    let (mut addresses, mut before, mut after) =
        (tensors.map(|tensor| tensor.address), Vec::new(), Vec::new());
    for (i, tensor) in tensors.iter().enumerate() {
        let Some(bytes) = scratch_bytes[i] else { continue };
        let shape = tensor.shape();
        // Results have their own number of channels; filters have those of a group.
        let padded = if i < 2 && channels != sizes.in_channels { channels } else { shape[1] };
        let layout = moved_layout(shape, padded, last).narrow(1, 0, shape[1]);
        let moved = Placed { address: next, dtype, layout: &layout };
        addresses[i] = next;
        next += bytes as u64;
        if i == written(sizes.pass) {
            after.extend(call.apart(|call| expression::copy(call, moved, *tensor))?);
        } else if padded != shape[1] {
            before.extend(call.apart(|call| pad_channels(call, *tensor, moved.address, padded))?);
        } else {
            before.extend(call.apart(|call| expression::copy(call, *tensor, moved))?);
        }
    }
    if let Some(bias) = bias.first() {
        let mut shape = Dims::from_elem(1, out.shape().len());
        shape[1] = out.shape()[1];
        let layout = Layout::contiguous(&shape);
        let bias = Placed { layout: &layout, ..*bias };
        after.extend(call.apart(|call| expression::change_tensor(call, "y + a", &[bias], out))?);
    }
    let Sizes { pass, tf32, rank, batch, groups, out_channels, axes, .. } = sizes;
    let [input, output, kernel, stride, padding, dilation] = axes;
    let convolution = Convolution {
        pass,
        float,
        tf32,
        rank,
        x: laid(batch, channels, input, last),
        w: laid(out_channels, channels / groups, kernel, last),
        y: laid(batch, out_channels, output, last),
        stride,
        padding,
        dilation,
        addresses,
    };
    call.push(Step::Convolution(Box::new(ConvolutionStep { convolution, before, after, otherwise })));
    Ok(())
}

/// The plain kernel: one thread (for the gradient of filters, one block) computes each output element.
fn plain(
    call: &mut CudaCall<'_>,
    sizes: &Sizes,
    tensors: [Placed<'_>; 3],
    bias: Option<Placed<'_>>,
) -> Result<()> {
    let (ins, out) = (call.ins.clone(), call.outs[0]);
    let Sizes { pass, batch, groups, in_channels, out_channels, axes, .. } = *sizes;
    let first = [batch, groups, in_channels, out_channels];
    let mut words: Vec<u64> = first.into_iter().chain(axes.concat()).map(|n| n as u64).collect();
    words.extend(tensors.iter().flat_map(strides));
    let number = match pass {
        ConvolutionPass::Forward => "0",
        ConvolutionPass::ToInput => "1",
        ConvolutionPass::ToWeight => "2",
    };
    let source = call
        .source(CONV)
        .with("A", name(out.dtype.accumulator()))
        .with("T", name(out.dtype))
        .with("PASS", number);
    let mut args = Args::new().address(out.address).address(ins[0].address).address(ins[1].address);
    let is_weight = pass == ConvolutionPass::ToWeight;
    if !is_weight {
        args = args.address(bias.map_or(0, |bias| bias.address)).size(out.len());
    }
    let blocks = if is_weight { out.len() } else { out.len().div_ceil(256) };
    call.launch(source, [blocks, 1, 1], 256, args.words(&words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::DeviceKind;

    fn forward_scratch(dtype: DType, layouts: [&Layout; 3]) -> u64 {
        let [images, filters, results] = layouts.map(Layout::shape);
        let plane = |shape: &[usize]| [1, shape[2], shape[3]];
        let sizes = Sizes {
            pass: ConvolutionPass::Forward,
            tf32: false,
            rank: 2,
            batch: images[0],
            groups: 1,
            in_channels: images[1],
            out_channels: filters[0],
            axes: [plane(images), plane(results), plane(filters), [1; 3], [0; 3], [1; 3]],
        };
        let facts = DeviceFacts { kind: DeviceKind::Cuda, capability: Some((9, 0)) };
        scratch(&sizes, dtype, [layouts[0], layouts[1]], layouts[2], facts)
    }

    #[test]
    fn a_one_by_one_filter_lies_in_either_order() {
        let (images, filters) = (channels_last(&[2, 8, 5, 5]), Layout::contiguous(&[8, 8, 1, 1]));
        let out = channels_last(&[2, 8, 5, 5]);
        assert_eq!(forward_scratch(DType::BF16, [&images, &filters, &out]), 0);
        let rows = Layout::contiguous(&[8, 8, 3, 3]);
        assert_eq!(forward_scratch(DType::BF16, [&images, &rows, &out]), 1536);
    }

    #[test]
    fn short_floats_are_laid_channels_last_and_others_as_they_come() {
        let (images, filters, out) = (
            Layout::contiguous(&[2, 8, 5, 5]),
            Layout::contiguous(&[8, 8, 3, 3]),
            Layout::contiguous(&[2, 8, 3, 3]),
        );
        assert_eq!(forward_scratch(DType::F32, [&images, &filters, &out]), 0);
        let all = [800, 1152, 288].map(|bytes: u64| bytes.next_multiple_of(512)).iter().sum::<u64>();
        assert_eq!(forward_scratch(DType::F16, [&images, &filters, &out]), all);
    }

    #[test]
    fn three_colors_of_16_bits_get_channels_of_zeros() {
        let (images, filters) = (channels_last(&[2, 3, 5, 5]), channels_last(&[8, 3, 3, 3]));
        let out = channels_last(&[2, 8, 3, 3]);
        let layouts = [&images, &filters, &out];
        // Two images of 25 pixels and eight filters of 9, each with 8 channels of 2 bytes.
        let padded = [800, 1152].map(|bytes: u64| bytes.next_multiple_of(512)).iter().sum::<u64>();
        assert_eq!(forward_scratch(DType::BF16, layouts), padded);
        assert_eq!(forward_scratch(DType::F32, layouts), 0);
    }

    #[test]
    fn missing_dimensions_have_the_strides_of_an_image_of_one_row() {
        assert_eq!(laid(2, 3, [1, 1, 7], false).strides, [21, 7, 7, 7, 1]);
        assert_eq!(laid(2, 3, [1, 1, 7], true).strides, [21, 1, 21, 21, 3]);
    }
}
