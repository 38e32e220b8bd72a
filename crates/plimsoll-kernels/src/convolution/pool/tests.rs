//! Compares max pooling with a loop over single windows.

use super::*;
use crate::testing::*;

fn sliding(size: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> Axis {
    let out = (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
    Axis { size, out, windows: Windows::Sliding { kernel, stride, padding, dilation } }
}

fn reference(s: &PoolShape, input: &[f32]) -> (Vec<f32>, Vec<i32>) {
    let (mut out, mut index) = (vec![], vec![]);
    let [depth, height, width] = &s.axes;
    for image in 0..s.outer {
        for place in 0..depth.out * height.out * width.out {
            let (ox, oy, oz) =
                (place % width.out, place / width.out % height.out, place / width.out / height.out);
            for channel in 0..s.inner {
                let mut best: Option<(f32, usize)> = None;
                for (kz, z) in depth.window(oz).taps() {
                    for (ky, y) in height.window(oy).taps() {
                        for (kx, x) in width.window(ox).taps() {
                            let at =
                                (((image * depth.size + z) * height.size + y) * width.size + x) * s.inner;
                            let value = input[at + channel];
                            if best.is_none_or(|(b, _)| value > b || value.is_nan()) {
                                best = Some((value, (kz * height.kernel() + ky) * width.kernel() + kx));
                            }
                        }
                    }
                }
                let (value, k) = best.unwrap();
                out.push(value);
                index.push(k as i32);
            }
        }
    }
    (out, index)
}

fn cases() -> Vec<PoolShape> {
    let mut cases = vec![];
    for (outer, in_h, in_w, inner) in
        [(0, 4, 4, 1), (1, 5, 7, 1), (3, 28, 28, 1), (2, 10, 35, 3), (70, 33, 17, 1)]
    {
        let adaptive = |size| Axis { size, out: 3, windows: Windows::Adaptive };
        for [height, width] in [
            [sliding(in_h, 2, 2, 0, 1), sliding(in_w, 2, 2, 0, 1)],
            [sliding(in_h, 3, 2, 1, 1), sliding(in_w, 3, 2, 1, 1)],
            [sliding(in_h, 2, 1, 1, 2), sliding(in_w, 3, 2, 0, 1)],
            [sliding(in_h, 4, 3, 2, 1), sliding(in_w, 2, 1, 1, 3)],
            [adaptive(in_h), adaptive(in_w)],
        ] {
            cases.push(PoolShape { outer, axes: [Axis::one(), height, width], inner });
        }
    }
    cases
}

#[test]
fn maxima_and_indices_match_the_reference_with_nan_and_infinities() {
    for shape in cases() {
        let mut input = random(shape.outer * shape.in_plane(), 1);
        for (i, x) in input.iter_mut().enumerate() {
            match i % 11 {
                0 => *x = f32::NAN,
                1..4 => *x = f32::NEG_INFINITY,
                4 | 5 => *x = 0.5,
                _ => {}
            }
        }
        let (expected, places) = reference(&shape, &input);
        let (mut out, mut bytes, mut ints) =
            (vec![0.0; expected.len()], vec![0u8; places.len()], vec![0; places.len()]);
        if shape.kernel() <= 256 {
            max_pool(&shape, &input, &mut out, &mut bytes);
            assert_close(&out, &expected, 0.0);
            assert!(bytes.iter().zip(&places).all(|(&a, &b)| i32::from(a) == b), "{shape:?}");
        }
        max_pool(&shape, &input, &mut out, &mut ints);
        assert_close(&out, &expected, 0.0);
        assert_eq!(ints, places);
    }
}

#[test]
fn gradients_accumulate_at_each_maximum() {
    for shape in cases() {
        let input = random(shape.outer * shape.in_plane(), 2);
        let grad = random(shape.outer * shape.out_plane(), 3);
        let (out, places) = reference(&shape, &input);
        let mut expected = vec![0.0; input.len()];
        for (i, &value) in out.iter().enumerate() {
            // Random values are all different, so the value determines the position.
            let image = i / shape.out_plane();
            let plane = &input[image * shape.in_plane()..][..shape.in_plane()];
            let at = plane.iter().position(|&x| x == value).unwrap();
            expected[image * shape.in_plane() + at] += grad[i];
        }
        let found = on_any_threads(|| {
            let mut found = vec![9.0; input.len()];
            max_pool_backward(&shape, &grad, &places, &mut found);
            found
        });
        assert_eq!(found, expected, "{shape:?}");
    }
}

#[test]
#[should_panic(expected = "window of 289 with indices up to 255")]
fn a_byte_does_not_name_a_large_window() {
    let axis = sliding(17, 17, 1, 0, 1);
    let shape = PoolShape { outer: 1, axes: [Axis::one(), axis, axis], inner: 1 };
    max_pool::<f32, u8>(&shape, &[0.0; 289], &mut [0.0], &mut [0]);
}
