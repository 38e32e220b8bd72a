//! Cases for the conformance suite: each pass compared with a sum over all products, with every option.

use super::format;
use super::options::{ConvOptions, ConvPadding, ConvTransposeOptions};
use super::passes::{Convolution, Pass};
use super::sizes::{self, ConvOperands};
use crate::cpu::kernels::conv::{ConvShape, Format};
use crate::dispatch::call;
use crate::error::Error;
use crate::suite::Case;

/// An output that starts as the bias of each channel.
fn biased(len: usize, (channels, plane): (usize, usize), bias: Option<&Vec<f64>>) -> Vec<f64> {
    (0..len).map(|i| bias.map_or(0.0, |bias| bias[i / plane % channels])).collect()
}

fn op(pass: Pass, shape: ConvShape) -> Convolution {
    Convolution { pass, shape, images: Format::ChannelsFirst, filters: Format::ChannelsFirst, tf32: false }
}

fn forward(shape: ConvShape, bias: bool) -> Case {
    let shapes = [
        format::input_shape(&shape),
        format::weight_shape(&shape),
        [shape.out_channels].into_iter().collect(),
    ];
    let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).take(2 + usize::from(bias)).collect();
    let name = format!("{} {shape:?}", Pass::Forward.name(shape.rank));
    Case::new(name, &shapes, move |ins| call(op(Pass::Forward, shape), ins)).expect(move |ins| {
        let mut out = biased(shape.output_len(), (shape.out_channels, shape.out_plane()), ins.get(2));
        shape.for_each_product(|x, w, y| out[y] += ins[0][x] * ins[1][w]);
        vec![out]
    })
}

fn backward_input(shape: ConvShape, transposed: bool) -> Case {
    let shapes = [
        format::output_shape(&shape),
        format::weight_shape(&shape),
        [shape.in_channels].into_iter().collect(),
    ];
    let shapes: Vec<&[usize]> =
        shapes.iter().map(|shape| &shape[..]).take(2 + usize::from(transposed)).collect();
    let name = format!("backward to the input, or transposed: {shape:?}");
    let op = op(if transposed { Pass::Transposed } else { Pass::BackwardInput }, shape);
    Case::new(name, &shapes, move |ins| call(op, ins)).expect(move |ins| {
        let mut out = biased(shape.input_len(), (shape.in_channels, shape.in_plane()), ins.get(2));
        shape.for_each_product(|x, w, y| out[x] += ins[0][y] * ins[1][w]);
        vec![out]
    })
}

fn backward_weight(shape: ConvShape) -> Case {
    let shapes = [format::output_shape(&shape), format::input_shape(&shape)];
    let shapes: Vec<&[usize]> = shapes.iter().map(|shape| &shape[..]).collect();
    let name = format!("backward to the weight: {shape:?}");
    Case::new(name, &shapes, move |ins| call(op(Pass::BackwardWeight, shape), ins)).expect(move |ins| {
        let mut out = vec![0.0; shape.weight_len()];
        shape.for_each_product(|x, w, y| out[w] += ins[0][y] * ins[1][x]);
        vec![out]
    })
}

fn conv<const N: usize>(x: &[usize], w: &[usize], options: ConvOptions<N>) -> Result<ConvShape, Error> {
    let given =
        ConvOperands { op: Pass::Forward.name(N), input: x, weight: w, bias: None, may_be_empty: false };
    sizes::forward(&given, &options)
}

fn conv_transpose<const N: usize>(
    x: &[usize],
    w: &[usize],
    options: ConvTransposeOptions<N>,
) -> Result<ConvShape, Error> {
    let given =
        ConvOperands { op: Pass::Transposed.name(N), input: x, weight: w, bias: None, may_be_empty: false };
    sizes::transposed(&given, &options)
}

pub(crate) fn cases() -> Vec<Case> {
    let plain = ConvOptions::<2>::default();
    let convolutions = [
        conv(&[2, 2, 5, 4], &[3, 2, 3, 2], plain),
        conv(&[1, 2, 5, 5], &[2, 2, 3, 3], ConvOptions { stride: [2, 2], padding: [1, 1].into(), ..plain }),
        conv(&[2, 4, 5, 4], &[6, 2, 3, 2], ConvOptions { groups: 2, padding: [1, 0].into(), ..plain }),
        conv(&[1, 3, 6, 5], &[6, 1, 3, 3], ConvOptions { groups: 3, stride: [2, 1], ..plain }),
        conv(&[1, 2, 7, 6], &[2, 2, 3, 2], ConvOptions { dilation: [2, 3], padding: [2, 1].into(), ..plain }),
        conv(&[1, 2, 4, 5], &[3, 2, 2, 4], ConvOptions { padding: ConvPadding::Same, ..plain }),
        conv(&[0, 2, 4, 3], &[3, 2, 2, 2], plain),
        conv(&[1, 1, 1, 1], &[1, 1, 1, 1], plain),
        conv(&[2, 3, 7], &[4, 3, 3], ConvOptions { stride: [2], dilation: [2], ..Default::default() }),
        conv(
            &[1, 2, 4, 3, 3],
            &[2, 1, 2, 2, 3],
            ConvOptions { stride: [2, 1, 1], padding: [1, 0, 1].into(), groups: 2, ..Default::default() },
        ),
    ];
    let transposed = [
        conv_transpose(
            &[2, 4, 3, 2],
            &[4, 3, 3, 2],
            ConvTransposeOptions {
                stride: [2, 3],
                padding: [1, 0],
                output_padding: [1, 2],
                groups: 2,
                dilation: [1, 2],
            },
        ),
        conv_transpose(
            &[1, 2, 3, 3],
            &[2, 2, 2, 2],
            ConvTransposeOptions { stride: [2; 2], ..Default::default() },
        ),
    ];
    let transposed = transposed.into_iter().chain([
        conv_transpose(&[2, 2, 4], &[2, 3, 3], ConvTransposeOptions { stride: [2], ..Default::default() }),
        conv_transpose(
            &[1, 2, 2, 2, 3],
            &[2, 1, 2, 2, 2],
            ConvTransposeOptions { stride: [2; 3], output_padding: [1, 0, 1], ..Default::default() },
        ),
    ]);
    let mut cases = Vec::new();
    for shape in convolutions.into_iter().flatten() {
        cases.extend([
            forward(shape, true),
            forward(shape, false),
            backward_input(shape, false),
            backward_weight(shape),
        ]);
    }
    cases.extend(transposed.flatten().map(|shape| backward_input(shape, true)));
    cases
}
