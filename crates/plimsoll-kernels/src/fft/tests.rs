//! Transforms against their definition.

use std::f64::consts::TAU;

use super::{Factors, Transform, fft_scratch_len};
use crate::number::Float;

fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0).collect()
}

/// `Σ x[j] · e^(sign · 2πi jk/n)` of complex numbers.
fn naive(x: &[(f64, f64)], sign: f64) -> Vec<(f64, f64)> {
    let n = x.len();
    let term = |k: usize, j: usize, (re, im): (f64, f64)| {
        let (sin, cos) = (sign * TAU * (j * k % n) as f64 / n as f64).sin_cos();
        (re * cos - im * sin, re * sin + im * cos)
    };
    let sum = |k: usize| {
        x.iter().enumerate().map(|(j, &x)| term(k, j, x)).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1))
    };
    (0..n).map(sum).collect()
}

fn flat(x: &[(f64, f64)]) -> Vec<f64> {
    x.iter().flat_map(|&(re, im)| [re, im]).collect()
}

fn close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 1e-10, "{what}: {i} is {a}, not {b}");
    }
}

fn transform<T: Float>(of: Transform, n: usize, factors: Factors, x: &[T], out: &mut [T]) {
    let width = match of {
        Transform::Forward | Transform::Backward => 2 * n,
        Transform::FromReal => 2 * (n / 2 + 1),
        Transform::ToReal => n,
    };
    let mut scratch = vec![f32::NAN; fft_scratch_len::<T>(of, n, out.len() / width)];
    super::transform(of, n, factors, x, out, &mut scratch);
}

const PLAIN: Factors = Factors { all: 1.0, doubled: 1.0 };

#[test]
fn rows_of_any_length_have_their_spectra() {
    for n in (1..=40).chain([64, 74, 97, 120, 256]) {
        let all = numbers(2 * n * 11);
        let rows: Vec<Vec<(f64, f64)>> =
            all.chunks(2 * n).map(|row| row.chunks(2).map(|x| (x[0], x[1])).collect()).collect();
        for (of, sign) in [(Transform::Forward, -1.0), (Transform::Backward, 1.0)] {
            let mut out = vec![0.0; all.len()];
            transform(of, n, Factors { all: 0.5, ..PLAIN }, &all, &mut out);
            let expected: Vec<f64> = rows.iter().flat_map(|row| flat(&naive(row, sign))).collect();
            close(&out, &expected.iter().map(|x| x / 2.0).collect::<Vec<_>>(), &format!("{of:?} {n}"));
        }
        let half = 2 * (n / 2 + 1);
        let real = numbers(n * 11);
        let mut out = vec![0.0; half * 11];
        transform(Transform::FromReal, n, PLAIN, &real, &mut out);
        let whole = |row: &[f64]| naive(&row.iter().map(|&x| (x, 0.0)).collect::<Vec<_>>(), -1.0);
        let expected: Vec<f64> = real.chunks(n).flat_map(|row| flat(&whole(row)[..=n / 2])).collect();
        close(&out, &expected, &format!("from real {n}"));
        let mut back = vec![0.0; n * 11];
        transform(Transform::ToReal, n, Factors { all: 1.0 / n as f64, ..PLAIN }, &out, &mut back);
        close(&back, &real, &format!("to real {n}"));
    }
}

#[test]
fn the_two_real_transforms_are_each_others_transposes() {
    for n in [1, 2, 5, 8] {
        let half = 2 * (n / 2 + 1);
        let (x, y) = (numbers(n), numbers(half + 3)[3..].to_vec());
        let (mut to, mut back) = (vec![0.0; half], vec![0.0; n]);
        transform(Transform::FromReal, n, Factors { all: 3.0, doubled: 0.7 }, &x, &mut to);
        transform(Transform::ToReal, n, Factors { all: 3.0, doubled: 0.35 }, &y, &mut back);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert!((dot(&to, &y) - dot(&x, &back)).abs() < 1e-10, "{n}");
    }
}

#[test]
fn imaginary_parts_that_a_real_row_cannot_have_are_ignored() {
    let mut out = [0.0f32; 2];
    transform(Transform::ToReal, 2, PLAIN, &[3.0, 9.0, 1.0, 9.0], &mut out);
    assert_eq!(out, [4.0, 2.0]);
}
