//! Convolution: by cuDNN, and by plain kernels where that is missing or has no plan.
//!
//! cuDNN computes where images, filters and results lie in one order: short floats channels-last, as tensor cores read them, others
//! as they come. What lies in another order is copied into scratch and from there: by sizes and layouts alone, so that
//! a simulated device asks for the same. The plain kernels read any order.

use plimsoll_cuda::{Args, Convolution, ConvolutionPass, ConvolutionStep, Laid, Step};

use super::elementwise;
use super::product::float;
use super::{CudaCall, Placed, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::{Dims, Layout};

const CONV: &str = include_str!("kernels/conv.cu");

/// Sizes of a convolution; missing spatial dimensions come first, with size 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) pass: ConvolutionPass,
    /// Whether `float32` may be multiplied in TF32.
    pub(crate) tf32: bool,
    /// Spatial dimensions.
    pub(crate) rank: usize,
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    pub(crate) in_channels: usize,
    pub(crate) out_channels: usize,
    /// By depth, height and width: images, results, window, its stride, padding, dilation.
    pub(crate) axes: [[usize; 3]; 6],
}

/// Images, filters and results in a pass's inputs and output: which of `first`, `second` and `out` each is.
fn roles<T>(pass: ConvolutionPass, first: T, second: T, out: T) -> [T; 3] {
    match pass {
        ConvolutionPass::Forward => [first, second, out],
        ConvolutionPass::ToInput => [out, second, first],
        ConvolutionPass::ToWeight => [second, out, first],
    }
}

/// Which of images, filters and results is the output of a pass.
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

/// Whether all three are to lie channels-last, and which of them do not lie as they are to.
fn order(dtype: DType, layouts: [&Layout; 3]) -> (bool, [bool; 3]) {
    let last = dtype.size() == 2 || layouts.iter().any(|layout| !layout.is_contiguous());
    (last, layouts.map(|layout| if last { !is_channels_last(layout) } else { !layout.is_contiguous() }))
}

/// Blocks begin at such multiples.
fn rounded(layout: &Layout, dtype: DType) -> usize {
    (layout.len() * dtype.size()).next_multiple_of(512)
}

/// Bytes of scratch: what lies in another order than cuDNN is to read or write.
pub(crate) fn scratch(pass: ConvolutionPass, dtype: DType, ins: [&Layout; 2], out: &Layout) -> u64 {
    if float(dtype).is_none() {
        return 0;
    }
    let layouts = roles(pass, ins[0], ins[1], out);
    let (_, copied) = order(dtype, layouts);
    let bytes =
        layouts.iter().zip(copied).filter(|(_, copied)| *copied).map(|(layout, _)| rounded(layout, dtype));
    bytes.sum::<usize>() as u64
}

/// Five dimensions without gaps.
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
    let otherwise = call.apart(|call| plain(call, &sizes, tensors, bias.first().copied()))?;
    let Some(float) = float(dtype).filter(|_| !tensors.iter().any(Placed::is_empty)) else {
        otherwise.into_iter().for_each(|step| call.push(step));
        return Ok(());
    };
    let (last, copied) = order(dtype, tensors.map(|tensor| tensor.layout));
    let mut next = call.scratch_address();
    let (mut addresses, mut before, mut after) =
        (tensors.map(|tensor| tensor.address), Vec::new(), Vec::new());
    for (i, tensor) in tensors.iter().enumerate().filter(|&(i, _)| copied[i]) {
        let shape = tensor.shape();
        let layout = if last { channels_last(shape) } else { Layout::contiguous(shape) };
        let moved = Placed { address: next, dtype, layout: &layout };
        addresses[i] = next;
        next += rounded(tensor.layout, dtype) as u64;
        if i == written(sizes.pass) {
            after.extend(call.apart(|call| elementwise::copy(call, moved, *tensor))?);
        } else {
            before.extend(call.apart(|call| elementwise::copy(call, *tensor, moved))?);
        }
    }
    if let Some(bias) = bias.first() {
        let mut shape = Dims::from_elem(1, out.shape().len());
        shape[1] = out.shape()[1];
        let layout = Layout::contiguous(&shape);
        let bias = Placed { layout: &layout, ..*bias };
        after.extend(call.apart(|call| elementwise::change_tensor(call, "y + a", &[bias], out))?);
    }
    let Sizes { pass, tf32, rank, batch, groups, in_channels, out_channels, axes } = sizes;
    let [input, output, kernel, stride, padding, dilation] = axes;
    let convolution = Convolution {
        pass,
        float,
        tf32,
        rank,
        x: laid(batch, in_channels, input, last),
        w: laid(out_channels, in_channels / groups, kernel, last),
        y: laid(batch, out_channels, output, last),
        stride,
        padding,
        dilation,
        addresses,
    };
    call.push(Step::Convolution(Box::new(ConvolutionStep { convolution, before, after, otherwise })));
    Ok(())
}

/// Strides of a tensor `[batch, channels, …]` with three spatial dimensions: those that are missing come first.
fn strides(x: &Placed<'_>) -> [u64; 5] {
    let strides = x.layout.strides();
    let missing = 5 - strides.len();
    std::array::from_fn(|i| match i {
        0 | 1 => strides[i] as u64,
        i if i - 2 < missing => 0,
        i => strides[i - missing] as u64,
    })
}

/// The plain kernel: an output a thread or, for the gradient of filters, a block.
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

    #[test]
    fn a_one_by_one_filter_lies_in_either_order() {
        let (images, filters) = (channels_last(&[2, 4, 5, 5]), Layout::contiguous(&[8, 4, 1, 1]));
        let out = channels_last(&[2, 8, 5, 5]);
        assert_eq!(scratch(ConvolutionPass::Forward, DType::BF16, [&images, &filters], &out), 0);
        let rows = Layout::contiguous(&[8, 4, 3, 3]);
        assert_eq!(scratch(ConvolutionPass::Forward, DType::BF16, [&images, &rows], &out), 1024);
    }

    #[test]
    fn short_floats_are_laid_channels_last_and_others_as_they_come() {
        let (images, filters, out) = (
            Layout::contiguous(&[2, 4, 5, 5]),
            Layout::contiguous(&[8, 4, 3, 3]),
            Layout::contiguous(&[2, 8, 3, 3]),
        );
        assert_eq!(scratch(ConvolutionPass::Forward, DType::F32, [&images, &filters], &out), 0);
        let all = [400, 576, 288].map(|bytes: u64| bytes.next_multiple_of(512)).iter().sum::<u64>();
        assert_eq!(scratch(ConvolutionPass::Forward, DType::F16, [&images, &filters], &out), all);
    }

    #[test]
    fn missing_dimensions_have_the_strides_of_an_image_of_one_row() {
        assert_eq!(laid(2, 3, [1, 1, 7], false).strides, [21, 7, 7, 7, 1]);
        assert_eq!(laid(2, 3, [1, 1, 7], true).strides, [21, 1, 21, 21, 3]);
    }
}
