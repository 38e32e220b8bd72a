//! Factorizations, multiplied out again, of matrices on both sides of the block's size.

use super::*;

/// Numbers from -1 to 1 without a pattern that a matrix might share.
fn numbers(count: usize) -> Vec<f64> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn times(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
    (0..m * n).map(|at_| at(at_ / n, at_ % n)).collect()
}

fn transposed(a: &[f64], m: usize, n: usize) -> Vec<f64> {
    (0..m * n).map(|at| a[at % m * n + at / m]).collect()
}

fn close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 1e-10 * largest, "{what}: {i} is {a}, not {b}");
    }
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|at| if at % (n + 1) == 0 { 1.0 } else { 0.0 }).collect()
}

const SIDES: [usize; 6] = [1, 2, 5, 64, 65, 150];

#[test]
fn a_solution_satisfies_its_equations() {
    for n in SIDES {
        for k in [1, 3, n] {
            let (a, b) = (numbers(2 * n * n), numbers(2 * n * k));
            let mut x = b.clone();
            let mut scratch = vec![0.0; lu_scratch_len::<f64>(2, n, k)];
            solve(2, &a, (n, k), &mut x, &mut scratch).unwrap();
            for at in 0..2 {
                let product = times(&a[at * n * n..][..n * n], &x[at * n * k..][..n * k], [n, n, k]);
                close(&product, &b[at * n * k..][..n * k], &format!("solve {n} {k}"));
            }
        }
    }
}

#[test]
fn a_triangle_is_solved_from_either_end() {
    for n in SIDES {
        for triangle in [(true, true), (true, false), (false, true), (false, false)] {
            let triangle = Triangle { upper: triangle.0, unit: triangle.1 };
            let all: Vec<f64> = numbers(n * n).iter().map(|x| x / n as f64).collect();
            let read = |i: usize, j: usize, x: f64| match (i.cmp(&j), triangle.unit) {
                (std::cmp::Ordering::Equal, true) => 1.0,
                (std::cmp::Ordering::Equal, false) => 2.0 + x,
                (order, _) => {
                    if (order == std::cmp::Ordering::Less) == triangle.upper {
                        x
                    } else {
                        0.0
                    }
                }
            };
            let a: Vec<f64> = all.iter().enumerate().map(|(at, &x)| read(at / n, at % n, x)).collect();
            // What is not read may be anything.
            let other = |at: usize| a[at] == 0.0 || triangle.unit && at.is_multiple_of(n + 1);
            let given: Vec<f64> = (0..n * n).map(|at| if other(at) { f64::NAN } else { a[at] }).collect();
            let b = numbers(n * 3);
            let mut x = b.clone();
            let mut scratch = vec![0.0; triangular_scratch_len::<f64>(1, n, 3)];
            solve_triangular(1, (&given, triangle), (n, 3), &mut x, &mut scratch);
            close(&times(&a, &x, [n, n, 3]), &b, &format!("{triangle:?} {n}"));
        }
    }
}

#[test]
fn a_cholesky_factor_squares_to_its_matrix() {
    for n in SIDES {
        let x = numbers(n * n);
        let mut a = times(&x, &transposed(&x, n, n), [n, n, n]);
        a.iter_mut().step_by(n + 1).for_each(|x| *x += 1.0);
        let mut l = vec![0.0; n * n];
        let mut scratch = vec![0.0; cholesky_scratch_len::<f64>(1, n)];
        cholesky(1, &a, n, &mut l, &mut scratch).unwrap();
        close(&times(&l, &transposed(&l, n, n), [n, n, n]), &a, &format!("cholesky {n}"));
        a[n * n - 1] = -1.0;
        assert_eq!(cholesky(1, &a, n, &mut l, &mut scratch), Err(Failure { matrix: 0, at: n - 1 }));
        a[n * n - 1] = f64::NAN;
        assert_eq!(cholesky(1, &a, n, &mut l, &mut scratch), Err(Failure { matrix: 0, at: n - 1 }));
    }
}

#[test]
fn q_is_orthonormal_and_r_is_a_triangle() {
    for (m, n) in [(1, 1), (5, 3), (3, 5), (40, 40), (100, 70), (70, 130), (300, 33)] {
        let (k, a) = (m.min(n), numbers(m * n));
        let (mut q, mut r) = (vec![f64::NAN; m * k], vec![f64::NAN; k * n]);
        let mut scratch = vec![0.0; qr_scratch_len::<f64>(1, m, n)];
        qr(1, &a, (m, n), (&mut q, &mut r), &mut scratch);
        close(&times(&q, &r, [m, k, n]), &a, &format!("qr {m} {n}"));
        close(&times(&transposed(&q, m, k), &q, [k, m, k]), &identity(k), &format!("q {m} {n}"));
        assert!((0..k).all(|i| (0..i).all(|j| r[i * n + j] == 0.0)));
    }
}

#[test]
fn singular_vectors_give_the_matrix_and_values_descend() {
    for (m, n) in [(1, 1), (1, 4), (4, 1), (2, 2), (6, 3), (3, 6), (40, 40), (70, 30)] {
        for kind in 0..3 {
            let k = m.min(n);
            let mut a = numbers(m * n);
            match kind {
                0 => {}
                // Equal rows: singular, with zeros among the values.
                1 => a = (0..m * n).map(|at| a[at % n]).collect(),
                // An identity: all values are equal.
                _ => a = (0..m * n).map(|at| if at / n == at % n { 1e-30 } else { 0.0 }).collect(),
            }
            let (mut u, mut s, mut vt) = (vec![0.0; m * k], vec![0.0; k], vec![0.0; k * n]);
            let mut scratch = vec![0.0; svd_scratch_len(1, m, n, Vectors::Both)];
            svd((1, Vectors::Both), &a, (m, n), (&mut u, &mut s, &mut vt), &mut scratch).unwrap();
            let scaled: Vec<f64> = u.iter().enumerate().map(|(at, x)| x * s[at % k]).collect();
            let what = format!("svd {m} {n} {kind}");
            close(&times(&scaled, &vt, [m, k, n]), &a, &what);
            close(&times(&transposed(&u, m, k), &u, [k, m, k]), &identity(k), &what);
            close(&times(&vt, &transposed(&vt, k, n), [k, n, k]), &identity(k), &what);
            assert!(s.windows(2).all(|pair| pair[0] >= pair[1]) && s[k - 1] >= 0.0, "{what}: {s:?}");
            let mut only = vec![0.0; k];
            svd((1, Vectors::Omitted), &a, (m, n), (&mut [], &mut only, &mut []), &mut scratch).unwrap();
            close(&only, &s, &what);
        }
    }
}

#[test]
fn determinants_are_those_of_the_minors() {
    let a = [1.0, 2.0, 3.0, 0.0, 1.0, 4.0, 5.0, 6.0, 0.0f64, 1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 1.0, 1.0, 2.0];
    let mut scratch = vec![0.0; lu_scratch_len::<f64>(2, 3, 3)];
    let (mut out, mut logs) = ([0.0; 2], [0.0; 2]);
    determinants((Determinant::Value, 2), &a, 3, (&mut out, &mut []), &mut scratch);
    close(&out, &[1.0, 0.0], "values");
    determinants((Determinant::SignAndLog, 2), &a, 3, (&mut out, &mut logs), &mut scratch);
    assert_eq!((out, logs[1]), ([1.0, 0.0], f64::NEG_INFINITY));
    let mut minors = [0.0; 18];
    cofactors(2, &a, 3, &mut minors, &mut scratch);
    let expected =
        [-24.0, 20.0, -5.0, 18.0, -15.0, 4.0, 5.0, -4.0, 1.0, 2.0, 2.0, -2.0, -1.0, -1.0, 1.0, 0.0, 0.0, 0.0];
    close(&minors, &expected, "minors");
    let mut x = vec![0.0; 6];
    let failure = solve(2, &a, (3, 1), &mut x, &mut scratch).unwrap_err();
    assert_eq!(failure, Failure { matrix: 1, at: 2 });
}

#[test]
fn what_is_not_finite_has_no_singular_values_and_does_not_hang_others() {
    let a = [1.0f32, f32::NAN, 0.0, 1.0];
    let mut scratch =
        vec![0.0; svd_scratch_len(1, 2, 2, Vectors::Omitted).max(lu_scratch_len::<f32>(1, 2, 2))];
    let failed = svd((1, Vectors::Omitted), &a, (2, 2), (&mut [], &mut [0.0; 2], &mut []), &mut scratch);
    assert!(failed.is_err());
    let mut x = [1.0, 1.0];
    solve(1, &a, (2, 1), &mut x, &mut scratch).unwrap();
    assert!(x[0].is_nan());
}
