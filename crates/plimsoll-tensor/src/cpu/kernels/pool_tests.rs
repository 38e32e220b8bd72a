//! Max pooling against one window after the other.

use super::super::testing::*;
use super::*;

fn reference(s: &Pool2dShape, input: &[f32]) -> (Vec<f32>, Vec<i32>) {
    let (mut out, mut index) = (vec![], vec![]);
    for plane in input.chunks(s.in_plane().max(1)) {
        for (oy, ox) in (0..s.out_h()).flat_map(|y| (0..s.out_w()).map(move |x| (y, x))) {
            let mut best: Option<(f32, usize)> = None;
            for k in 0..s.kernel[0] * s.kernel[1] {
                let y = (oy * s.stride[0] + k / s.kernel[1]).wrapping_sub(s.padding[0]);
                let x = (ox * s.stride[1] + k % s.kernel[1]).wrapping_sub(s.padding[1]);
                if y < s.in_h && x < s.in_w {
                    let value = plane[y * s.in_w + x];
                    if best.is_none_or(|(b, _)| value > b || value.is_nan()) {
                        best = Some((value, k));
                    }
                }
            }
            let (value, k) = best.unwrap();
            out.push(value);
            index.push(k as i32);
        }
    }
    (out, index)
}

fn cases() -> Vec<Pool2dShape> {
    let mut cases = vec![];
    for (planes, in_h, in_w) in [(0, 4, 4), (1, 5, 7), (3, 28, 28), (2, 10, 35), (70, 33, 17)] {
        for (kernel, stride, padding) in [
            ([2, 2], [2, 2], [0, 0]),
            ([3, 3], [2, 2], [1, 1]),
            ([2, 3], [1, 2], [1, 0]),
            ([4, 2], [3, 1], [2, 1]),
        ] {
            cases.push(Pool2dShape { planes, in_h, in_w, kernel, stride, padding });
        }
    }
    cases
}

#[test]
fn maxima_and_indices_match_the_reference_with_nan_and_infinities() {
    for shape in cases() {
        let mut input = random(shape.planes * shape.in_plane(), 1);
        for (i, x) in input.iter_mut().enumerate() {
            match i % 11 {
                0 => *x = f32::NAN,
                1..4 => *x = f32::NEG_INFINITY,
                4 => *x = 0.5,
                5 => *x = 0.5,
                _ => {}
            }
        }
        let (expected, places) = reference(&shape, &input);
        let (mut out, mut bytes, mut ints) =
            (vec![0.0; expected.len()], vec![0u8; places.len()], vec![0; places.len()]);
        max_pool2d(&shape, &input, &mut out, &mut bytes);
        assert_close(&out, &expected, 0.0);
        assert!(bytes.iter().zip(&places).all(|(&a, &b)| i32::from(a) == b), "{shape:?}");
        max_pool2d(&shape, &input, &mut out, &mut ints);
        assert_eq!(ints, places);
    }
}

#[test]
fn gradients_accumulate_at_each_maximum() {
    for shape in cases() {
        let input = random(shape.planes * shape.in_plane(), 2);
        let grad = random(shape.planes * shape.out_plane(), 3);
        let (_, places) = reference(&shape, &input);
        let mut expected = vec![0.0; input.len()];
        for (i, &k) in places.iter().enumerate() {
            let (plane, rest) = (i / shape.out_plane(), i % shape.out_plane());
            let (oy, ox) = (rest / shape.out_w(), rest % shape.out_w());
            let y = oy * shape.stride[0] + k as usize / shape.kernel[1] - shape.padding[0];
            let x = ox * shape.stride[1] + k as usize % shape.kernel[1] - shape.padding[1];
            expected[plane * shape.in_plane() + y * shape.in_w + x] += grad[i];
        }
        let found = on_any_threads(|| {
            let mut found = vec![9.0; input.len()];
            max_pool2d_backward(&shape, &grad, &places, &mut found);
            found
        });
        assert_eq!(found, expected, "{shape:?}");
    }
}

#[test]
#[should_panic(expected = "window of 289 with indices up to 255")]
fn a_byte_does_not_name_a_large_window() {
    let shape =
        Pool2dShape { planes: 1, in_h: 17, in_w: 17, kernel: [17, 17], stride: [1, 1], padding: [0, 0] };
    max_pool2d::<f32, u8>(&shape, &[0.0; 289], &mut [0.0], &mut [0]);
}
