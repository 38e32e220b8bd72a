//! The three passes of convolution against seven nested loops.

use super::super::testing::*;
use super::*;

/// Calls `visit(input, weight, output)` with the indices of every product.
fn for_each_product(s: &Conv2dShape, mut visit: impl FnMut(usize, usize, usize)) {
    for (n, co) in (0..s.batch).flat_map(|n| (0..s.out_channels).map(move |c| (n, c))) {
        for (oy, ox) in (0..s.out_h()).flat_map(|y| (0..s.out_w()).map(move |x| (y, x))) {
            for tap in 0..s.taps() {
                let (ci, ky, kx) =
                    (tap / s.kernel_w / s.kernel_h, tap / s.kernel_w % s.kernel_h, tap % s.kernel_w);
                let y = (oy * s.stride[0] + ky).wrapping_sub(s.padding[0]);
                let x = (ox * s.stride[1] + kx).wrapping_sub(s.padding[1]);
                if y < s.in_h && x < s.in_w {
                    let input = ((n * s.in_channels + ci) * s.in_h + y) * s.in_w + x;
                    let output = ((n * s.out_channels + co) * s.out_h() + oy) * s.out_w() + ox;
                    visit(input, co * s.taps() + tap, output);
                }
            }
        }
    }
}

fn cases() -> Vec<Conv2dShape> {
    let mut cases = vec![];
    for (batch, in_channels, out_channels) in
        [(0, 2, 3), (1, 1, 1), (3, 1, 32), (2, 3, 17), (5, 33, 20), (2, 16, 70)]
    {
        for (in_h, in_w, kernel_h, kernel_w, stride, padding) in [
            (5, 5, 5, 5, [1, 1], [0, 0]),
            (9, 11, 3, 3, [1, 1], [1, 1]),
            (14, 6, 5, 2, [2, 1], [0, 1]),
            (13, 20, 3, 5, [2, 3], [2, 0]),
            (8, 7, 1, 1, [2, 2], [0, 0]),
        ] {
            cases.push(Conv2dShape {
                batch,
                in_channels,
                in_h,
                in_w,
                out_channels,
                kernel_h,
                kernel_w,
                stride,
                padding,
            });
        }
    }
    let large = Conv2dShape {
        batch: 3,
        in_channels: 2,
        in_h: 30,
        in_w: 28,
        out_channels: 32,
        kernel_h: 5,
        kernel_w: 5,
        stride: [1, 1],
        padding: [2, 2],
    };
    cases.push(large);
    cases.push(Conv2dShape { in_w: 70, kernel_w: 3, stride: [2, 1], ..large });
    cases.push(Conv2dShape { in_w: 16, out_channels: 5, padding: [0, 2], ..large });
    cases.push(Conv2dShape {
        batch: 40,
        in_channels: 130,
        in_h: 5,
        in_w: 5,
        out_channels: 66,
        padding: [0, 0],
        ..large
    });
    cases
}

fn rounded(sums: &[f64]) -> Vec<f32> {
    sums.iter().map(|&x| x as f32).collect()
}

#[test]
fn forward_matches_the_reference_with_and_without_bias() {
    for shape in cases() {
        let (input, weight) = (random(shape.input_len(), 1), random(shape.weight_len(), 2));
        let bias = random(shape.out_channels, 3);
        for bias in [None, Some(&bias[..])] {
            let channel = |i: usize| i / shape.out_plane() % shape.out_channels;
            let mut expected: Vec<f64> =
                (0..shape.output_len()).map(|i| bias.map_or(0.0, |b| f64::from(b[channel(i)]))).collect();
            for_each_product(&shape, |i, w, o| expected[o] += f64::from(input[i]) * f64::from(weight[w]));
            let found = on_any_threads(|| {
                let mut scratch = vec![f32::NAN; conv2d_scratch_len(&shape)];
                let mut out = vec![f32::NAN; shape.output_len()];
                conv2d(&shape, &input, &weight, bias, &mut out, &mut scratch);
                out
            });
            assert_close(&found, &rounded(&expected), 1e-4);
        }
    }
}

#[test]
fn the_input_gradient_matches_the_reference() {
    for shape in cases() {
        let (weight, grad) = (random(shape.weight_len(), 2), random(shape.output_len(), 3));
        let mut expected = vec![0.0; shape.input_len()];
        for_each_product(&shape, |i, w, o| expected[i] += f64::from(grad[o]) * f64::from(weight[w]));
        let found = on_any_threads(|| {
            let mut scratch = vec![f32::NAN; conv2d_backward_input_scratch_len(&shape)];
            let mut grad_in = vec![f32::NAN; shape.input_len()];
            conv2d_backward_input(&shape, &grad, &weight, &mut grad_in, &mut scratch);
            grad_in
        });
        assert_close(&found, &rounded(&expected), 1e-4);
    }
}

#[test]
fn the_weight_gradient_matches_the_reference() {
    for shape in cases() {
        let (input, grad) = (random(shape.input_len(), 1), random(shape.output_len(), 3));
        let mut expected = vec![0.0; shape.weight_len()];
        for_each_product(&shape, |i, w, o| expected[w] += f64::from(grad[o]) * f64::from(input[i]));
        let found = on_any_threads(|| {
            let mut scratch = vec![f32::NAN; conv2d_backward_weight_scratch_len(&shape)];
            let mut grad_weight = vec![f32::NAN; shape.weight_len()];
            conv2d_backward_weight(&shape, &input, &grad, &mut grad_weight, &mut scratch);
            grad_weight
        });
        assert_close(&found, &rounded(&expected), 1e-4);
    }
}

#[test]
fn threads_beyond_the_scratch_stay_out() {
    let shape = Conv2dShape { batch: 40, ..cases()[3] };
    let (input, weight) = (random(shape.input_len(), 1), random(shape.weight_len(), 2));
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (mut out, mut scratch) = (vec![0.0; shape.output_len()], vec![0.0; conv2d_scratch_len(&shape)]);
        pool.install(|| conv2d(&shape, &input, &weight, None, &mut out, &mut scratch));
        out
    };
    assert_eq!(run(19), run(1));
}

#[test]
#[should_panic(expected = "scratch of 3 floats where 8 are needed")]
fn too_little_scratch_is_named() {
    check_scratch(3, 8);
}
