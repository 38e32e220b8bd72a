//! Derivatives compared with finite differences, for every operator that has one.
//!
//! The check is independent of PyTorch: it moves each element by a small step in both directions and measures the change of a
//! scalar, the output weighted by fixed random numbers. Shapes are random; inputs are tested in every form.

use plimsoll_tensor::Reduction;
use plimsoll_tensor::{BackwardOptions, Conv2dOptions, Device, MaxPool2dOptions, Result, Tensor, no_grad};

use crate::forms::{Form, values};

/// The step in each direction. Rounding to 32 bits then costs about 6e-8 · |f| / STEP = 6e-6 · |f| per output that the element
/// affects; curvature costs STEP² / 6 · |f‴| = 2e-5 · |f‴|.
const STEP: f32 = 1e-2;
/// Relative to the largest derivative, or to 1. It is above both errors for the sizes here, and far below a wrong factor.
const TOLERANCE: f64 = 4e-3;
const SEEDS: std::ops::Range<u64> = 0..4;

/// SplitMix64: the same random numbers everywhere.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn size(&mut self, from: usize, to: usize) -> usize {
        from + (self.next() % (to - from + 1) as u64) as usize
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.size(1, 4)).collect()
    }

    /// A shape of the same or lower rank that broadcasts with `shape`.
    fn broadcast_of(&mut self, shape: &[usize]) -> Vec<usize> {
        let skip = self.size(0, shape.len());
        shape[skip..].iter().map(|&n| if self.size(0, 2) == 0 { 1 } else { n }).collect()
    }
}

/// The range of the inputs' values.
#[derive(Clone, Copy)]
enum Domain {
    /// -1.5 to 1.5.
    Any,
    /// 0.5 to 2: for `log`, `sqrt` and divisors.
    Positive,
    /// At least 0.1 apart from each other and at least 0.05 from zero, so that no step crosses a kink.
    Apart,
}

impl Domain {
    fn draw(self, draw: &mut Draw, len: usize) -> Vec<f32> {
        if let Domain::Apart = self {
            let mut ranks: Vec<usize> = (0..len).collect();
            (1..len).rev().for_each(|i| ranks.swap(i, draw.size(0, i)));
            return ranks.into_iter().map(|rank| (rank as f32 - (len / 2) as f32 + 0.5) * 0.1).collect();
        }
        let (low, high) = if let Domain::Positive = self { (0.5, 2.0) } else { (-1.5, 1.5) };
        (0..len).map(|_| low + (high - low) * draw.unit()).collect()
    }
}

/// `Σ weightᵢ · outputᵢ` in 64 bits.
fn weighted(output: &Tensor, weights: &[f32]) -> f64 {
    values(output).iter().zip(weights).map(|(y, &w)| y * f64::from(w)).sum()
}

/// Checks the derivatives of `f` at random values, with the inputs in one form.
fn check_form<F>(shapes: &[Vec<usize>], domain: Domain, seed: u64, form: Form, f: &F)
where
    F: Fn(&[Tensor]) -> Result<Tensor>,
{
    let (device, mut draw) = (Device::cpu(), Draw(seed + 100));
    let mut points: Vec<Vec<f32>> =
        shapes.iter().map(|shape| domain.draw(&mut draw, shape.iter().product())).collect();
    let tensors = |points: &[Vec<f32>]| -> Vec<Tensor> {
        points.iter().zip(shapes).map(|(values, shape)| form.tensor(values, shape, &device)).collect()
    };
    let leaves: Vec<Tensor> =
        tensors(&points).into_iter().map(|leaf| leaf.requires_grad_(true).unwrap()).collect();
    let output = f(&leaves).unwrap();
    let weights = Domain::Any.draw(&mut draw, output.numel());
    let gradient = Some(Tensor::from_slice(&weights, output.shape(), &device).unwrap());
    output.backward_with(BackwardOptions { gradient, ..Default::default() }).unwrap();

    for input in 0..shapes.len() {
        let mut slope = |at: usize| {
            let middle = points[input][at];
            let mut side = |x: f32| {
                points[input][at] = x;
                no_grad(|| weighted(&f(&tensors(&points)).unwrap(), &weights))
            };
            let (up, down) = (middle + STEP, middle - STEP);
            let slope = (side(up) - side(down)) / f64::from(up - down);
            points[input][at] = middle;
            slope
        };
        let len: usize = shapes[input].iter().product();
        let expected: Vec<f64> = (0..len).map(&mut slope).collect();
        let got = values(&leaves[input].grad().unwrap());
        let largest = expected.iter().fold(1.0f64, |max, x| max.max(x.abs()));
        for at in 0..len {
            assert!(
                (got[at] - expected[at]).abs() <= TOLERANCE * largest,
                "seed {seed}, {form:?}: derivative {at} of input {input} of {shapes:?} is {}, the slope is {}",
                got[at],
                expected[at]
            );
        }
    }
}

/// Checks the derivatives of `f` for several random shapes, in every form.
fn check<S, F>(domain: Domain, shapes: S, f: F)
where
    S: Fn(&mut Draw) -> Vec<Vec<usize>>,
    F: Fn(&[Tensor]) -> Result<Tensor>,
{
    for seed in SEEDS {
        let shapes = shapes(&mut Draw(seed));
        for form in Form::ALL {
            check_form(&shapes, domain, seed, form, &f);
        }
    }
}

fn one(draw: &mut Draw) -> Vec<Vec<usize>> {
    let rank = draw.size(0, 3);
    vec![draw.shape(rank)]
}

fn matrix(draw: &mut Draw) -> Vec<Vec<usize>> {
    vec![draw.shape(2)]
}

fn cube(draw: &mut Draw) -> Vec<Vec<usize>> {
    vec![draw.shape(3)]
}

/// Two shapes that broadcast; either may be the larger one.
fn broadcast_pair(draw: &mut Draw) -> Vec<Vec<usize>> {
    let large = draw.shape(3);
    let mut pair = vec![draw.broadcast_of(&large), large];
    if draw.size(0, 1) == 0 {
        pair.reverse();
    }
    pair
}

#[test]
fn arithmetic_follows_its_slopes() {
    check(Domain::Any, broadcast_pair, |x| &x[0] + &x[1]);
    check(Domain::Any, broadcast_pair, |x| &x[0] - &x[1]);
    check(Domain::Any, broadcast_pair, |x| &x[0] * &x[1]);
    check(Domain::Positive, broadcast_pair, |x| &x[0] / &x[1]);
}

#[test]
fn arithmetic_with_numbers_follows_its_slopes() {
    check(Domain::Any, one, |x| &x[0] + 2.0);
    check(Domain::Any, one, |x| &x[0] - 2.0);
    check(Domain::Any, one, |x| &x[0] * -3.0);
    check(Domain::Any, one, |x| &x[0] / 4.0);
    check(Domain::Any, one, |x| x[0].affine(-1.5, 0.5));
}

#[test]
fn functions_of_one_element_follow_their_slopes() {
    check(Domain::Any, one, |x| -&x[0]);
    check(Domain::Any, one, |x| x[0].exp());
    check(Domain::Any, one, |x| x[0].square());
    check(Domain::Any, one, |x| x[0].tanh());
    check(Domain::Any, one, |x| x[0].sigmoid());
    check(Domain::Apart, one, |x| x[0].relu());
    check(Domain::Positive, one, |x| x[0].log());
    check(Domain::Positive, one, |x| x[0].sqrt());
}

#[test]
fn matrix_products_follow_their_slopes() {
    let product = |a: fn(usize, usize, usize, usize) -> Vec<usize>,
                   b: fn(usize, usize, usize, usize) -> Vec<usize>| {
        move |draw: &mut Draw| {
            let [batch, m, k, n] = [(); 4].map(|()| draw.size(1, 4));
            vec![a(batch, m, k, n), b(batch, m, k, n)]
        }
    };
    let matmul = |x: &[Tensor]| x[0].matmul(&x[1]);
    check(Domain::Any, product(|_, m, k, _| vec![m, k], |_, _, k, n| vec![k, n]), matmul);
    check(Domain::Any, product(|b, m, k, _| vec![b, m, k], |b, _, k, n| vec![b, k, n]), matmul);
    check(Domain::Any, product(|b, m, k, _| vec![b, m, k], |_, _, k, n| vec![k, n]), matmul);
    check(Domain::Any, product(|b, m, k, _| vec![b, 1, m, k], |_, _, k, n| vec![2, k, n]), matmul);
    check(Domain::Any, product(|_, _, k, _| vec![k], |_, _, k, _| vec![k]), matmul);
    check(Domain::Any, product(|b, m, k, _| vec![b, m, k], |_, _, k, _| vec![k]), matmul);
    check(Domain::Any, product(|_, _, k, _| vec![k], |b, _, k, n| vec![b, k, n]), matmul);
}

#[test]
fn linear_follows_its_slopes() {
    let shapes = |draw: &mut Draw| {
        let rank = draw.size(1, 3);
        let x = draw.shape(rank);
        let outputs = draw.size(1, 5);
        vec![x.clone(), vec![outputs, x[rank - 1]], vec![outputs]]
    };
    check(Domain::Any, shapes, |x| x[0].linear(&x[1], Some(&x[2])));
    check(Domain::Any, |draw| shapes(draw)[..2].to_vec(), |x| x[0].linear(&x[1], None));
}

#[test]
fn convolution_follows_its_slopes() {
    let shapes = |draw: &mut Draw| {
        let [batch, inputs, outputs] = [draw.size(1, 2), draw.size(1, 3), draw.size(1, 3)];
        let [kernel_h, kernel_w] = [draw.size(1, 3), draw.size(1, 3)];
        let image = vec![batch, inputs, draw.size(3, 5), draw.size(3, 5)];
        vec![image, vec![outputs, inputs, kernel_h, kernel_w], vec![outputs]]
    };
    for (stride, padding) in [([1, 1], [0, 0]), ([2, 1], [1, 2]), ([1, 3], [0, 1])] {
        let options = Conv2dOptions { stride, padding: padding.into(), ..Default::default() };
        check(Domain::Any, shapes, |x| x[0].conv2d(&x[1], Some(&x[2]), options));
        check(Domain::Any, |draw| shapes(draw)[..2].to_vec(), |x| x[0].conv2d(&x[1], None, options));
    }
}

#[test]
fn max_pooling_follows_its_slopes() {
    let image =
        |draw: &mut Draw| vec![vec![draw.size(1, 2), draw.size(1, 2), draw.size(3, 6), draw.size(3, 6)]];
    for (kernel, stride, padding) in
        [([2, 2], [2, 2], [0, 0]), ([3, 3], [1, 2], [1, 1]), ([2, 3], [3, 1], [1, 0])]
    {
        let options = MaxPool2dOptions { stride, padding, ..MaxPool2dOptions::new(kernel) };
        check(Domain::Apart, image, |x| x[0].max_pool2d(options));
    }
}

#[test]
fn softmax_follows_its_slopes() {
    for dim in [0, 1, -1] {
        check(Domain::Any, cube, |x| x[0].softmax(dim));
        check(Domain::Any, cube, |x| x[0].log_softmax(dim));
    }
}

#[test]
fn losses_follow_their_slopes() {
    let target = |x: &Tensor| {
        let classes: Vec<i64> = (0..x.shape()[0]).map(|row| (row * 2 % x.shape()[1]) as i64).collect();
        Tensor::from_slice(&classes, &[x.shape()[0]], x.device())
    };
    check(Domain::Any, matrix, |x| x[0].cross_entropy(&target(&x[0])?));
    let twice = |draw: &mut Draw| vec![draw.shape(2); 2];
    for reduction in [Reduction::Mean, Reduction::Sum] {
        check(Domain::Any, matrix, |x| x[0].nll_loss(&target(&x[0])?, reduction));
        check(Domain::Any, twice, |x| x[0].mse_loss_with(&x[1], reduction));
    }
}

#[test]
fn sums_and_means_follow_their_slopes() {
    check(Domain::Any, one, |x| x[0].sum());
    check(Domain::Any, one, |x| x[0].mean());
    for dims in [&[0][..], &[1], &[-1], &[0, 2], &[2, 1, 0], &[]] {
        check(Domain::Any, cube, |x| x[0].sum_dims(dims));
        check(Domain::Any, cube, |x| x[0].sum_keepdim(dims));
        check(Domain::Any, cube, |x| x[0].mean_dims(dims));
        check(Domain::Any, cube, |x| x[0].mean_keepdim(dims));
    }
}

#[test]
fn views_follow_their_slopes() {
    check(Domain::Any, cube, |x| x[0].reshape(&[-1]));
    check(Domain::Any, cube, |x| x[0].flatten(1, 2));
    check(Domain::Any, cube, |x| x[0].transpose(0, -1));
    check(Domain::Any, cube, |x| x[0].permute(&[2, 0, 1]));
    check(Domain::Any, cube, |x| x[0].narrow(1, x[0].shape()[1] - 1, 1));
    check(Domain::Any, cube, |x| x[0].unsqueeze(1)?.squeeze(1));
    check(Domain::Any, matrix, |x| x[0].unsqueeze(1)?.expand(&[x[0].shape()[0], 3, x[0].shape()[1]]));
    check(Domain::Any, cube, |x| x[0].transpose(0, 1)?.copy());
    check(Domain::Any, cube, |x| x[0].transpose(0, 1)?.contiguous());
}

#[test]
fn a_tensor_used_in_several_ways_follows_its_slopes() {
    check(Domain::Any, matrix, |x| &x[0].matmul(&x[0].t()?)? * 0.5);
    check(Domain::Any, matrix, |x| &x[0] * &x[0]);
    check(Domain::Any, cube, |x| &x[0].narrow(0, 0, 1)?.exp()? * &x[0]);
    check(Domain::Positive, cube, |x| &x[0] / &x[0].sum_keepdim(&[1])?);
    check(Domain::Any, matrix, |x| x[0].tanh()?.linear(&x[0], None)?.t()?.reshape(&[-1])?.sigmoid());
}

#[test]
fn a_small_network_follows_its_slopes() {
    let shapes = |_: &mut Draw| vec![vec![2, 1, 6, 6], vec![2, 1, 3, 3], vec![2], vec![3, 8], vec![3]];
    check(Domain::Any, shapes, |p| {
        let x = p[0].conv2d(&p[1], Some(&p[2]), Conv2dOptions::default())?.tanh()?;
        // Means of windows replace pooling here: a random network could be at a kink of max pooling.
        let x = x.reshape(&[2, 2, 2, 2, 2, 2])?.mean_dims(&[3, 5])?.flatten(1, -1)?;
        x.linear(&p[3], Some(&p[4]))?.log_softmax(1)
    });
}
