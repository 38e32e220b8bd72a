//! The three passes of a convolution, each as a graph of one operation.

use super::Precision;
use super::graph::{Graph, Value, attribute, kind};
use crate::step::{Convolution, ConvolutionPass, Float};

/// The properties that distinguish convolutions for the library: everything except addresses, of
/// which only the alignment counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    convolution: Convolution,
    alignments: [i64; 3],
}

/// `CUDNN_CROSS_CORRELATION`.
const CROSS_CORRELATION: i64 = 1;

impl Key {
    pub(super) fn of(convolution: &Convolution) -> Key {
        let alignments = convolution.addresses.map(|address| 1 << address.trailing_zeros().min(4));
        Key { convolution: Convolution { addresses: [0; 3], ..*convolution }, alignments }
    }

    pub(super) fn precision(&self) -> Precision {
        match self.convolution.float == Float::F32 && !self.convolution.tf32 {
            true => Precision::NoTensorCores,
            false => Precision::AsTyped,
        }
    }

    pub(super) fn graph(&self) -> Graph {
        let Key { convolution: c, alignments } = self;
        // Without a depth, use two spatial dimensions: the library supports no fewer.
        let skips_depth = c.rank < 3;
        let first = usize::from(skips_depth);
        let spatial =
            |values: &[usize; 3]| Value::Integers(values[first..].iter().map(|&n| n as i64).collect());
        let whole = |values: &[usize; 5]| -> Vec<i64> {
            let kept = values.iter().enumerate().filter(|&(dim, _)| !(skips_depth && dim == 2));
            kept.map(|(_, &n)| n as i64).collect()
        };
        let mut graph = Graph::default();
        let tensors: Vec<usize> = [c.x, c.w, c.y]
            .iter()
            .zip(alignments)
            .zip(1..)
            .map(|((tensor, &alignment), number)| {
                graph.tensor(number, c.float, &whole(&tensor.sizes), &whole(&tensor.strides), alignment)
            })
            .collect();
        let is_double = c.float == Float::F64;
        let compute = if is_double { Float::F64 } else { Float::F32 };
        let rank = if skips_depth { 2 } else { 3 };
        let convolution = graph.add(
            kind::CONVOLUTION,
            vec![
                (attribute::CONVOLUTION_COMPUTE, Value::Type(compute)),
                (
                    attribute::CONVOLUTION_MODE,
                    Value::Choice { kind: kind::CONVOLUTION_MODE, value: CROSS_CORRELATION },
                ),
                (attribute::CONVOLUTION_RANK, Value::Integers(vec![rank])),
                (attribute::CONVOLUTION_DILATIONS, spatial(&c.dilation)),
                (attribute::CONVOLUTION_STRIDES, spatial(&c.stride)),
                (attribute::CONVOLUTION_PADDING_BEFORE, spatial(&c.padding)),
                (attribute::CONVOLUTION_PADDING_AFTER, spatial(&c.padding)),
            ],
        );
        let scalar = |x: f32| if is_double { Value::Double(f64::from(x)) } else { Value::Float(x) };
        let [x, w, y] = [0, 1, 2].map(|i| Value::Descriptors(vec![tensors[i]]));
        let (kind, first) = match c.pass {
            ConvolutionPass::Forward => (kind::CONVOLUTION_FORWARD, attribute::FORWARD),
            ConvolutionPass::ToInput => (kind::CONVOLUTION_TO_INPUT, attribute::TO_INPUT),
            ConvolutionPass::ToWeight => (kind::CONVOLUTION_TO_WEIGHT, attribute::TO_WEIGHT),
        };
        let operation = graph.add(
            kind,
            vec![
                (first, scalar(1.0)),
                (first + 1, scalar(0.0)),
                (first + 2, Value::Descriptors(vec![convolution])),
                (first + 3, w),
                (first + 4, x),
                (first + 5, y),
            ],
        );
        graph.of(vec![operation])
    }
}

/// The numbers and the addresses of the graph's tensors.
pub(super) fn tensors(convolution: &Convolution) -> [(i64, u64); 3] {
    let [x, w, y] = convolution.addresses;
    [(1, x), (2, w), (3, y)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Laid;

    #[test]
    fn images_without_depth_have_two_spatial_dimensions() {
        let laid = |sizes: [usize; 5]| {
            let mut strides = [1; 5];
            (0..4).rev().for_each(|dim| strides[dim] = strides[dim + 1] * sizes[dim + 1]);
            Laid { sizes, strides }
        };
        let convolution = |rank| Convolution {
            pass: ConvolutionPass::Forward,
            float: Float::BF16,
            tf32: true,
            rank,
            x: laid([2, 4, 1, 5, 6]),
            w: laid([8, 4, 1, 3, 3]),
            y: laid([2, 8, 1, 5, 6]),
            stride: [1; 3],
            padding: [0, 1, 1],
            dilation: [1; 3],
            addresses: [512, 1024, 1032],
        };
        let flat = Key::of(&convolution(2)).graph();
        let sizes = |graph: &Graph| graph.descriptions()[0].attributes[1].1.clone();
        assert_eq!(sizes(&flat), Value::Integers(vec![2, 4, 5, 6]));
        assert_eq!(sizes(&Key::of(&convolution(3)).graph()), Value::Integers(vec![2, 4, 1, 5, 6]));
        assert_eq!(Key::of(&convolution(2)).alignments, [16, 16, 8]);
        assert_eq!(flat.descriptions().len(), 6, "three tensors, the convolution, its pass, the graph");
    }
}
