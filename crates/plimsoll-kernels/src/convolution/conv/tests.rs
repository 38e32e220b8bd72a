//! Compares the three passes of convolution with a sum over all products, in every layout.

use super::shape::check_scratch;
use super::*;
use crate::testing::*;

/// Converts row-major values to a format, or back.
fn lying(values: &[f32], (channels, plane): (usize, usize), format: Format, back: bool) -> Vec<f32> {
    if format == Format::ChannelsFirst {
        return values.to_vec();
    }
    let mut out = vec![0.0; values.len()];
    for i in 0..values.len() {
        let (n, c, p) = (i / plane / channels.max(1), i / plane % channels.max(1), i % plane);
        let other = (n * plane + p) * channels + c;
        if back { out[i] = values[other] } else { out[other] = values[i] }
    }
    out
}

fn shape((batch, groups): (usize, usize), [inputs, outputs]: [usize; 2], sizes: &[[usize; 5]]) -> ConvShape {
    let mut s = ConvShape {
        rank: sizes.len(),
        batch,
        groups,
        in_channels: inputs,
        out_channels: outputs,
        input: [1; 3],
        output: [1; 3],
        kernel: [1; 3],
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    };
    for (i, &[size, kernel, stride, padding, dilation]) in sizes.iter().enumerate() {
        let dim = 3 - sizes.len() + i;
        (s.input[dim], s.kernel[dim], s.stride[dim]) = (size, kernel, stride);
        (s.padding[dim], s.dilation[dim]) = (padding, dilation);
        s.output[dim] = (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    }
    s
}

/// Test shapes. Each dimension is given as size, kernel, stride, padding, dilation.
fn cases() -> Vec<ConvShape> {
    let mut cases = vec![];
    for (batch, groups, channels) in [
        (0, 1, [2, 3]),
        (1, 1, [1, 1]),
        (3, 1, [1, 32]),
        (2, 1, [3, 17]),
        (2, 1, [33, 20]),
        (2, 1, [16, 70]),
        (1, 1, [40, 67]),
        (2, 2, [6, 8]),
        (1, 3, [9, 51]),
        (2, 5, [5, 5]),
        (1, 4, [4, 12]),
    ] {
        let sizes: [&[[usize; 5]]; 11] = [
            &[[5, 5, 1, 0, 1], [5, 5, 1, 0, 1]],
            &[[9, 3, 1, 1, 1], [11, 3, 1, 1, 1]],
            &[[14, 5, 2, 0, 1], [6, 2, 1, 1, 1]],
            &[[13, 3, 2, 2, 1], [20, 5, 3, 0, 1]],
            &[[8, 1, 2, 0, 1], [7, 1, 2, 0, 1]],
            &[[7, 1, 1, 0, 1], [9, 1, 1, 0, 1]],
            &[[11, 3, 1, 2, 2], [12, 2, 2, 1, 3]],
            &[[10, 3, 4, 1, 2], [9, 4, 3, 3, 1]],
            &[[30, 3, 2, 1, 1]],
            &[[3, 2, 1, 0, 1], [4, 3, 2, 1, 1], [5, 2, 1, 1, 2]],
            &[[6, 2, 3, 1, 1], [3, 1, 1, 0, 1], [4, 3, 1, 2, 1]],
        ];
        cases.extend(sizes.map(|sizes| shape((batch, groups), channels, sizes)));
    }
    let five = [30, 5, 1, 2, 1];
    cases.push(shape((3, 1), [2, 32], &[five, [28, 5, 1, 2, 1]]));
    cases.push(shape((3, 1), [2, 32], &[[30, 5, 2, 2, 1], [70, 3, 1, 2, 1]]));
    cases.push(shape((40, 1), [130, 66], &[[5, 5, 1, 0, 1], [5, 5, 1, 0, 1]]));
    cases.push(shape((1, 1), [20, 40], &[[1000, 10, 3, 4, 1]]));
    // Cases for Winograd: sizes that are multiples of squares and others, any padding, panels that are not full, one
    // chunk of work and many.
    for (batch, channels, [height, width], [down, across]) in [
        (1, [32, 32], [8, 10], [1, 1]),
        (9, [40, 33], [7, 7], [1, 1]),
        (2, [33, 72], [13, 40], [0, 2]),
        (3, [64, 48], [21, 22], [2, 0]),
        (1, [32, 160], [6, 64], [0, 0]),
        (2, [150, 260], [6, 5], [1, 2]),
    ] {
        cases.push(shape((batch, 1), channels, &[[height, 3, 1, down, 1], [width, 3, 1, across, 1]]));
    }
    // As with `Same` padding, with more zeros after the last element than before the first; and an output padding.
    let mut uneven = shape((2, 1), [3, 18], &[[8, 4, 1, 1, 1], [9, 2, 1, 0, 1]]);
    uneven.output = [1, 8, 9];
    cases.push(uneven);
    let mut larger = shape((2, 1), [18, 3], &[[8, 3, 2, 1, 1], [9, 3, 2, 1, 1]]);
    larger.input = [1, 8, 10];
    cases.push(larger);
    cases
}

fn formats() -> impl Iterator<Item = Formats> {
    use Format::{ChannelsFirst as First, ChannelsLast as Last};
    let all = [(First, First, First), (Last, Last, Last), (Last, First, Last), (First, Last, Last)];
    all.into_iter().map(|(input, weight, output)| Formats { input, weight, output })
}

fn rounded(sums: &[f64]) -> Vec<f32> {
    sums.iter().map(|&x| x as f32).collect()
}

#[track_caller]
fn assert_equal(s: &ConvShape, formats: Formats, found: &[f32], expected: &[f64]) {
    let largest = expected.iter().fold(1.0f64, |max, x| max.max(x.abs())) as f32;
    for (i, (&found, expected)) in found.iter().zip(rounded(expected)).enumerate() {
        let close = (found - expected).abs() <= 2e-6 * largest * 8.0;
        assert!(close, "{s:?}, {formats:?}: at {i} {found} where {expected} is expected");
    }
}

#[test]
fn forward_matches_the_reference_with_and_without_bias() {
    for s in cases() {
        let (input, weight) = (random(s.input_len(), 1), random(s.weight_len(), 2));
        let bias = random(s.out_channels, 3);
        for bias in [None, Some(&bias[..])] {
            let channel = |i: usize| i / s.out_plane() % s.out_channels;
            let mut expected: Vec<f64> =
                (0..s.output_len()).map(|i| bias.map_or(0.0, |b| f64::from(b[channel(i)]))).collect();
            s.for_each_product(|i, w, o| expected[o] += f64::from(input[i]) * f64::from(weight[w]));
            for f in formats() {
                let input = lying(&input, (s.in_channels, s.in_plane()), f.input, false);
                let weight = lying(&weight, (s.group_in(), s.taps()), f.weight, false);
                let found = on_any_threads(|| {
                    let mut scratch = vec![f32::NAN; forward_scratch_len(&s, f)];
                    let mut out = vec![f32::NAN; s.output_len()];
                    forward(&s, f, (&input, &weight), bias, &mut out, &mut scratch);
                    out
                });
                let found = lying(&found, (s.out_channels, s.out_plane()), f.output, true);
                assert_equal(&s, f, &found, &expected);
            }
        }
    }
}

#[test]
fn the_input_gradient_matches_the_reference_with_and_without_bias() {
    for s in cases() {
        let (weight, grad) = (random(s.weight_len(), 2), random(s.output_len(), 3));
        let bias = random(s.in_channels, 4);
        for bias in [None, Some(&bias[..])] {
            let channel = |i: usize| i / s.in_plane() % s.in_channels;
            let mut expected: Vec<f64> =
                (0..s.input_len()).map(|i| bias.map_or(0.0, |b| f64::from(b[channel(i)]))).collect();
            s.for_each_product(|i, w, o| expected[i] += f64::from(grad[o]) * f64::from(weight[w]));
            for f in formats() {
                let weight = lying(&weight, (s.group_in(), s.taps()), f.weight, false);
                let grad = lying(&grad, (s.out_channels, s.out_plane()), f.output, false);
                let found = on_any_threads(|| {
                    let len = backward_input_scratch_len(&s, f, bias.is_some());
                    let mut scratch = vec![f32::NAN; len];
                    let mut grad_in = vec![f32::NAN; s.input_len()];
                    backward_input(&s, f, (&grad, &weight), bias, &mut grad_in, &mut scratch);
                    grad_in
                });
                let found = lying(&found, (s.in_channels, s.in_plane()), f.input, true);
                assert_equal(&s, f, &found, &expected);
            }
        }
    }
}

#[test]
fn the_weight_gradient_matches_the_reference() {
    for s in cases() {
        let (input, grad) = (random(s.input_len(), 1), random(s.output_len(), 3));
        let mut expected = vec![0.0; s.weight_len()];
        s.for_each_product(|i, w, o| expected[w] += f64::from(grad[o]) * f64::from(input[i]));
        for f in formats() {
            let input = lying(&input, (s.in_channels, s.in_plane()), f.input, false);
            let grad = lying(&grad, (s.out_channels, s.out_plane()), f.output, false);
            let found = on_any_threads(|| {
                let mut scratch = vec![f32::NAN; backward_weight_scratch_len(&s, f)];
                let mut grad_weight = vec![f32::NAN; s.weight_len()];
                backward_weight(&s, f, (&input, &grad), &mut grad_weight, &mut scratch);
                grad_weight
            });
            let found = lying(&found, (s.group_in(), s.taps()), f.weight, true);
            assert_equal(&s, f, &found, &expected);
        }
    }
}

#[test]
fn threads_beyond_the_scratch_stay_out() {
    let s = shape((40, 1), [3, 17], &[[9, 3, 1, 1, 1], [11, 3, 1, 1, 1]]);
    let first = Format::ChannelsFirst;
    let f = Formats { input: first, weight: first, output: first };
    let (input, weight) = (random(s.input_len(), 1), random(s.weight_len(), 2));
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (mut out, mut scratch) = (vec![0.0; s.output_len()], vec![0.0; forward_scratch_len(&s, f)]);
        pool.install(|| forward(&s, f, (&input, &weight), None, &mut out, &mut scratch));
        out
    };
    assert_eq!(run(19), run(1));
}

#[test]
fn scratch_does_not_grow_with_the_batch() {
    let first = Format::ChannelsFirst;
    let f = Formats { input: first, weight: first, output: first };
    let lens = |batch: usize| {
        let s = shape((batch, 1), [64, 64], &[[56, 3, 1, 1, 1], [56, 3, 1, 1, 1]]);
        let all = [
            forward_scratch_len(&s, f),
            backward_input_scratch_len(&s, f, false),
            backward_weight_scratch_len(&s, f),
        ];
        (all, s.input_len())
    };
    let (of_8, _) = lens(8);
    let (of_256, input) = lens(256);
    assert_eq!(of_8, of_256);
    assert!(of_256.iter().all(|&len| len < input / 10), "{of_256:?} for an input of {input}");
}

#[test]
#[should_panic(expected = "scratch of 3 floats where 8 are needed")]
fn too_little_scratch_is_named() {
    check_scratch(3, 8);
}
