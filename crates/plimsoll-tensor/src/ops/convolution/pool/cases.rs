//! Cases for the conformance suite: pooling, compared with a loop over the windows.

use smallvec::smallvec;

use super::max::MaxPool;
use super::options::{AvgPoolOptions, MaxPoolOptions};
use super::spec::{Kind, Spec};
use crate::dispatch::call;
use crate::suite::{Case, Domain};

pub(crate) fn cases() -> Vec<Case> {
    let naive = |ins: &[Vec<f64>]| {
        // Pairs in a 4 x 4 image, two planes; positions in each window are 0 to 3.
        let window = |i: usize| [0, 1, 4, 5].map(|at| ins[0][i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2 + at]);
        let largest = |w: &[f64; 4]| (0..4).fold(0, |best, i| if w[i] > w[best] { i } else { best });
        let windows: Vec<[f64; 4]> = (0..8).map(window).collect();
        let places = windows.iter().map(|w| largest(w) as f64).collect();
        vec![windows.iter().map(|w| w[largest(w)]).collect(), places]
    };
    let max = |shape: &[usize], kind: Kind, spatial: usize| {
        let spec = Spec { spatial, kind };
        Case::new(format!("max pooling of {shape:?}, {}", spec.describe()), &[shape], move |ins| {
            call(MaxPool(spec), ins)
        })
        .over(Domain::Apart)
    };
    let sliding = |kernel, stride, padding, dilation| {
        Kind::Sliding(MaxPoolOptions { kernel, stride, padding, dilation, ceil_mode: false })
    };
    let average = |shape: &[usize], options: AvgPoolOptions<2>| {
        Case::new(format!("avg_pool2d {shape:?}, {options:?}"), &[shape], move |ins| {
            Ok(smallvec![ins[0].avg_pool2d(options)?])
        })
    };
    let padded = AvgPoolOptions { stride: [2, 1], padding: [1, 1], ..AvgPoolOptions::new([3, 2]) };
    let inside = AvgPoolOptions { count_include_pad: false, ceil_mode: true, ..padded };
    vec![
        max(&[1, 2, 4, 4], sliding([1, 2, 2], [1, 2, 2], [0; 3], [1; 3]), 2).expect(naive),
        max(&[2, 1, 5, 4], sliding([1, 3, 2], [1, 2, 1], [0, 1, 1], [1; 3]), 2),
        max(&[1, 2, 5, 6], sliding([1, 2, 2], [1; 3], [0; 3], [1, 3, 2]), 2),
        max(&[1, 2, 3, 4, 3], sliding([2; 3], [1, 2, 1], [1, 0, 0], [1; 3]), 3),
        max(&[2, 1, 5, 4], Kind::Adaptive([1, 3, 2]), 2),
        average(&[1, 2, 5, 4], padded),
        average(&[2, 1, 4, 4], inside),
        average(&[1, 1, 4, 4], AvgPoolOptions { divisor_override: Some(5), ..padded }),
        average(&[1, 2, 4, 6], AvgPoolOptions::square(2)).expect(|ins| {
            let mean = |i: usize| {
                let (plane, y, x) = (i / 6, i % 6 / 3, i % 3);
                [0, 1, 6, 7].iter().map(|at| ins[0][plane * 24 + y * 12 + x * 2 + at]).sum::<f64>() / 4.0
            };
            vec![(0..12).map(mean).collect()]
        }),
        Case::new("adaptive_avg_pool2d", &[&[2, 2, 5, 4]], |ins| {
            Ok(smallvec![ins[0].adaptive_avg_pool2d([3, 2])?])
        }),
        Case::new("max_pool2d_with_indices", &[&[2, 2, 5, 4]], |ins| {
            let options = MaxPoolOptions { padding: [1, 0], ..MaxPoolOptions::square(2) };
            let (largest, places) = ins[0].max_pool2d_with_indices(options)?;
            Ok(smallvec![largest, places])
        })
        .over(Domain::Apart),
        Case::new("adaptive_max_pool2d_with_indices", &[&[2, 2, 5, 4]], |ins| {
            let (largest, places) = ins[0].adaptive_max_pool2d_with_indices([3, 2])?;
            Ok(smallvec![largest, places])
        })
        .over(Domain::Apart),
        Case::new("max_pool1d", &[&[2, 2, 7]], |ins| {
            Ok(smallvec![ins[0].max_pool1d(MaxPoolOptions { ceil_mode: true, ..MaxPoolOptions::square(3) })?])
        })
        .over(Domain::Apart),
    ]
}
