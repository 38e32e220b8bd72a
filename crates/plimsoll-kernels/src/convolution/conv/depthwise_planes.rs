//! Depthwise convolution of row-major images: neighbouring positions of a row are the lanes of registers.
//!
//! A plane is first copied into a frame of zeros, with columns that are a multiple of the stride apart stored contiguously.
//! So the inputs of neighbouring positions at one tap are contiguous for every stride.

use smallvec::SmallVec;

use super::shape::{ConvShape, Format, Formats};
use crate::parallel::{Pieces, for_each_cut_with, scratch_workers};
use crate::simd::vectorize;

/// The number of positions to sum at a time: two of the widest registers.
const LANES: usize = 32;

/// The layout of a framed plane: `[depth][height][phase of columns][columns]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    /// The sizes of the source and of the result, and the positions in a row.
    source: [usize; 3],
    result: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    /// Zeros before the first element; if negative, elements that no window uses.
    before: [isize; 3],
    framed: [usize; 2],
    columns: usize,
}

impl Planes {
    /// The planes of the forward pass and of the gradient of the weight, if each input channel has separate filters.
    pub(super) fn forward(s: &ConvShape, formats: Formats) -> Option<Planes> {
        let first = Format::ChannelsFirst;
        let serves = s.groups > 1 && s.group_in() == 1 && [formats.input, formats.output] == [first, first];
        let before = s.padding.map(|padding| padding as isize);
        serves.then(|| Planes::of(s, s.input, s.output, s.stride, before))
    }

    /// The planes of the gradient of the input, if it is a convolution with flipped windows.
    pub(super) fn backward_input(s: &ConvShape, formats: Formats) -> Option<Planes> {
        let serves = s.stride == [1; 3] && s.group_out() == 1;
        let before = |dim: usize| ((s.kernel[dim] - 1) * s.dilation[dim]) as isize - s.padding[dim] as isize;
        let before = std::array::from_fn(before);
        Planes::forward(s, formats)
            .filter(|_| serves)
            .map(|_| Planes::of(s, s.output, s.input, [1; 3], before))
    }

    fn of(
        s: &ConvShape,
        source: [usize; 3],
        result: [usize; 3],
        stride: [usize; 3],
        before: [isize; 3],
    ) -> Planes {
        let seen = |dim: usize| {
            result[dim].saturating_sub(1) * stride[dim] + (s.kernel[dim] - 1) * s.dilation[dim] + 1
        };
        // Complete registers are read, so there is room after the last position.
        let columns = result[2].next_multiple_of(LANES) + (s.kernel[2] - 1) * s.dilation[2] / stride[2] + 1;
        let framed = [seen(0), seen(1)];
        Planes { source, result, kernel: s.kernel, stride, dilation: s.dilation, before, framed, columns }
    }

    fn row(&self) -> usize {
        self.stride[2] * self.columns
    }

    fn framed_len(&self) -> usize {
        self.framed[0] * self.framed[1] * self.row()
    }

    fn source_len(&self) -> usize {
        self.source.iter().product()
    }

    fn result_len(&self) -> usize {
        self.result.iter().product()
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Floats of scratch memory for work in this many chunks.
    pub(super) fn scratch_len(&self, chunks: usize) -> usize {
        scratch_workers(chunks) * self.framed_len()
    }

    /// The offset of each tap of the first window in a framed plane.
    fn offsets(&self) -> SmallVec<[usize; 64]> {
        let [_, height, width] = self.kernel;
        let offset = |tap: usize| {
            let [deep, down, across] = [
                tap / width / height * self.dilation[0],
                tap / width % height * self.dilation[1],
                tap % width * self.dilation[2],
            ];
            let phase = across % self.stride[2] * self.columns + across / self.stride[2];
            (deep * self.framed[1] + down) * self.row() + phase
        };
        (0..self.taps()).map(offset).collect()
    }

    /// For each row of the result, the offset of its first window in a framed plane.
    fn rows(&self) -> impl Iterator<Item = usize> + use<> {
        let ([depth, height, _], [deep, down, _]) = (self.result, self.stride);
        let (framed, row) = (self.framed[1], self.row());
        (0..depth).flat_map(move |z| (0..height).map(move |y| (z * deep * framed + y * down) * row))
    }

    /// Copies a plane into its frame.
    fn frame(&self, plane: &[f32], framed: &mut [f32]) {
        let [depth, height, width] = self.source;
        let inside = |at: usize, dim: usize, size: usize| {
            usize::try_from(at as isize - self.before[dim]).ok().filter(|&at| at < size)
        };
        framed.fill(0.0);
        for (at, row) in framed.chunks_exact_mut(self.row()).enumerate() {
            let (z, y) = (inside(at / self.framed[1], 0, depth), inside(at % self.framed[1], 1, height));
            let Some((z, y)) = z.zip(y) else { continue };
            let from = &plane[(z * height + y) * width..][..width];
            let skipped = usize::try_from(-self.before[2]).unwrap_or(0).min(width);
            let first = usize::try_from(self.before[2]).unwrap_or(0);
            let from = &from[skipped..];
            if self.stride[2] == 1 {
                let count = from.len().min(self.columns.saturating_sub(first));
                row[first..first + count].copy_from_slice(&from[..count]);
                continue;
            }
            for (phase, columns) in row.chunks_exact_mut(self.columns).enumerate() {
                let i = (phase + self.stride[2] - first % self.stride[2]) % self.stride[2];
                let column = ((first + i) / self.stride[2]).min(columns.len());
                let from = from.get(i..).unwrap_or(&[]).iter().step_by(self.stride[2]);
                columns[column..].iter_mut().zip(from).for_each(|(to, &x)| *to = x);
            }
        }
    }

    /// Sums over windows, for each plane of the result, in source plane `plane / multiplier`. In the backward pass, windows
    /// are flipped.
    pub(super) fn run(
        &self,
        (source, weight, turned): (&[f32], &[f32], bool),
        (channels, multiplier): (usize, usize),
        bias: Option<&[f32]>,
        result: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (len, taps, width, offsets) = (self.result_len(), self.taps(), self.result[2], self.offsets());
        let planes = result.len().checked_div(len).unwrap_or(0);
        let cut = Pieces::of(result, len);
        for_each_cut_with(planes, cut, scratch, self.framed_len(), |plane, out, framed| {
            let (image, channel) = (plane / channels, plane % channels);
            let from = image * channels / multiplier + channel / multiplier;
            self.frame(&source[from * self.source_len()..][..self.source_len()], framed);
            let weights = &weight[channel * taps..][..taps];
            let mut terms: SmallVec<[(usize, f32); 64]> =
                offsets.iter().copied().zip(weights.iter().copied()).collect();
            if turned {
                (0..taps).for_each(|tap| terms[tap].1 = weights[taps - 1 - tap]);
            }
            let start = bias.map_or(0.0, |bias| bias[channel]);
            vectorize(
                #[inline(always)]
                || {
                    for (first, out) in self.rows().zip(out.chunks_exact_mut(width)) {
                        for (nth, out) in out.chunks_mut(LANES).enumerate() {
                            let mut sums = [start; LANES];
                            for &(offset, weight) in &terms {
                                let from = first + offset + nth * LANES;
                                let seen = &framed[from..from + LANES];
                                for i in 0..LANES {
                                    sums[i] += weight * seen[i];
                                }
                            }
                            out.copy_from_slice(&sums[..out.len()]);
                        }
                    }
                },
            );
        });
    }

    /// The gradient of the weight: for each filter, a sum over all images.
    pub(super) fn run_weight(
        &self,
        (input, grad): (&[f32], &[f32]),
        (channels, multiplier): (usize, usize),
        weight: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (len, taps, width, offsets) = (self.result_len(), self.taps(), self.result[2], self.offsets());
        let images = grad.len().checked_div(channels * len).unwrap_or(0);
        let cut = Pieces::of(weight, taps);
        for_each_cut_with(channels, cut, scratch, self.framed_len(), |channel, sums, framed| {
            sums.fill(0.0);
            for image in 0..images {
                let from = image * channels / multiplier + channel / multiplier;
                self.frame(&input[from * self.source_len()..][..self.source_len()], framed);
                let grad = &grad[(image * channels + channel) * len..][..len];
                for (sum, &offset) in sums.iter_mut().zip(&offsets) {
                    let lanes = vectorize(
                        #[inline(always)]
                        || {
                            let mut lanes = [0.0f32; LANES / 2];
                            for (first, grad) in self.rows().zip(grad.chunks_exact(width)) {
                                let whole = grad.chunks_exact(lanes.len());
                                // After the last position, the gradient is zero.
                                let mut last = [0.0; LANES / 2];
                                let rest = whole.remainder();
                                last.iter_mut().zip(rest).for_each(|(to, &x)| *to = x);
                                let seen = &framed[first + offset..][..width.next_multiple_of(lanes.len())];
                                let last = (!rest.is_empty()).then_some(&last[..]);
                                for (grad, seen) in whole.chain(last).zip(seen.chunks_exact(lanes.len())) {
                                    for i in 0..lanes.len() {
                                        lanes[i] += grad[i] * seen[i];
                                    }
                                }
                            }
                            lanes
                        },
                    );
                    *sum += lanes.iter().sum::<f32>();
                }
            }
        });
    }
}
