//! `linalg`: first and second derivatives against finite differences, large matrices, what has no result, and what it costs in memory.

use plimsoll_tensor::gradcheck::{GradcheckOptions, gradcheck, gradgradcheck};
use plimsoll_tensor::linalg::{self, MatrixNorm, TriangularOptions};
use plimsoll_tensor::{DType, Device, Error, Result, SimConfig, Tensor, autocast};

/// Numbers from -1 to 1, in `float64`, that require a gradient.
fn leaf(shape: &[usize], seed: usize) -> Tensor {
    values(shape, seed).requires_grad_(true).unwrap()
}

fn values(shape: &[usize], seed: usize) -> Tensor {
    let count: usize = shape.iter().product();
    let number = |i: usize| (((i + seed) * 7919 + 104_729) % 1009) as f64 / 504.5 - 1.0;
    Tensor::from_slice(&(0..count).map(number).collect::<Vec<_>>(), shape, &Device::cpu()).unwrap()
}

fn eye(n: usize) -> Tensor {
    Tensor::eye(n, n, &Device::cpu()).unwrap().to_dtype(DType::F64).unwrap()
}

fn regular(x: &Tensor) -> Result<Tensor> {
    x.add(eye(x.shape()[x.rank() - 1]).mul_scalar(2.0)?)
}

fn text<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}

fn check(name: &str, f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>, inputs: &[&Tensor]) {
    let options = GradcheckOptions::default();
    gradcheck(&f, inputs, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    gradgradcheck(&f, inputs, None, options).unwrap_or_else(|error| panic!("second, {name}: {error}"));
}

#[test]
fn first_and_second_derivatives_are_finite_differences() {
    let (a, batch, b) = (leaf(&[3, 3], 1), leaf(&[2, 2, 2], 2), leaf(&[3, 2], 3));
    let (tall, wide) = (leaf(&[3, 2], 4), leaf(&[2, 3], 5));
    check("inv", |x| Ok(vec![linalg::inv(regular(&x[0])?)?]), &[&batch]);
    check("solve", |x| Ok(vec![linalg::solve(regular(&x[0])?, &x[1])?]), &[&a, &b]);
    check("solve a vector", |x| Ok(vec![linalg::solve(regular(&x[0])?, x[1].select(1, 0)?)?]), &[&a, &b]);
    check("det", |x| Ok(vec![linalg::det(&x[0])?]), &[&batch]);
    check("slogdet", |x| Ok(vec![linalg::slogdet(regular(&x[0])?)?.1]), &[&a]);
    let symmetric = |x: &Tensor| regular(&x.matmul(x.mt()?)?);
    check("cholesky", |x| Ok(vec![linalg::cholesky(symmetric(&x[0])?, false)?]), &[&batch]);
    check("cholesky, upper", |x| Ok(vec![linalg::cholesky(symmetric(&x[0])?, true)?]), &[&a]);
    for options in [
        TriangularOptions { upper: true, ..TriangularOptions::default() },
        TriangularOptions { unitriangular: true, ..TriangularOptions::default() },
    ] {
        let solved = |x: &[Tensor]| Ok(vec![linalg::solve_triangular(regular(&x[0])?, &x[1], options)?]);
        check("solve_triangular", solved, &[&a, &b]);
    }
    for x in [&a, &tall, &wide] {
        let both = |x: &[Tensor]| linalg::qr(&x[0]).map(|(q, r)| vec![q, r]);
        check("qr", both, &[x]);
        check("r of qr", |x| Ok(vec![linalg::qr(&x[0])?.1]), &[x]);
        check("q of qr", |x| Ok(vec![linalg::qr(&x[0])?.0]), &[x]);
        check("svdvals", |x| Ok(vec![linalg::svdvals(&x[0])?]), &[x]);
        let vectors = |x: &[Tensor]| {
            let (u, s, vt) = linalg::svd(&x[0])?;
            Ok(vec![u.matmul(&vt)?, u.square()?, vt.square()?.mul(s.unsqueeze(-1)?)?])
        };
        check("svd", vectors, &[x]);
    }
    for order in [MatrixNorm::Fro, MatrixNorm::Nuc, MatrixNorm::P(2.0), MatrixNorm::P(1.0)] {
        check("norm", |x| Ok(vec![linalg::norm(&x[0], order, &[-2, -1], false)?]), &[&batch]);
    }
}

#[test]
fn matrices_larger_than_a_block_satisfy_their_equations() {
    let (a, b) = (regular(&values(&[2, 150, 150], 1)).unwrap(), values(&[150, 70], 2));
    let near =
        |x: &Tensor, y: &Tensor| x.sub(y).unwrap().abs().unwrap().max().unwrap().item::<f64>().unwrap();
    let x = linalg::solve(&a, &b).unwrap();
    assert_eq!(x.shape(), [2, 150, 70]);
    assert!(near(&a.matmul(&x).unwrap(), &b) < 1e-9);
    assert!(near(&linalg::inv(&a).unwrap().matmul(&a).unwrap(), &eye(150)) < 1e-9);
    let (q, r) = linalg::qr(a.mt().unwrap()).unwrap();
    assert!(near(&q.matmul(&r).unwrap(), &a.mt().unwrap()) < 1e-9);
    let product = a.matmul(a.mt().unwrap()).unwrap();
    let l = linalg::cholesky(&product, false).unwrap();
    assert!(near(&l.matmul(l.mt().unwrap()).unwrap(), &product) < 1e-8);
    // The squares of singular values are the eigenvalues of the product, whose sum is its trace.
    let squares = linalg::svdvals(&a).unwrap().square().unwrap().sum_dims(&[-1]).unwrap();
    let trace = a.square().unwrap().sum_dims(&[-2, -1]).unwrap();
    assert!(near(&squares, &trace) < 1e-8);
    let (sign, log) = linalg::slogdet(&a).unwrap();
    let of_values = linalg::svdvals(&a).unwrap().log().unwrap().sum_dims(&[-1]).unwrap();
    assert!(near(&log, &of_values) < 1e-9 && sign.abs().unwrap().to_vec::<f64>().unwrap() == [1.0; 2]);
}

#[test]
fn a_matrix_without_a_result_is_named() {
    let device = Device::cpu();
    let one = Tensor::from_slice(&[1.0f32, 2.0, 2.0, 4.0], &[2, 2], &device).unwrap();
    let regular = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2], &device).unwrap();
    let batch = Tensor::stack(&[&regular, &regular, &one, &one], 0).unwrap().reshape(&[2, 2, 2, 2]).unwrap();
    let singular = "the matrix is singular: pivot 1 of its factorization is zero";
    assert_eq!(text(linalg::inv(&one)), format!("linalg_inv: {singular}"));
    assert_eq!(text(linalg::inv(&batch)), format!("linalg_inv (batch element 2): {singular}"));
    assert_eq!(text(linalg::solve(&batch, &one)), format!("linalg_solve (batch element 2): {singular}"));
    assert!(matches!(linalg::inv(&batch), Err(Error::LinAlg { op: "linalg_inv", batch: Some(2), .. })));
    assert_eq!(
        text(linalg::cholesky(&batch, false)),
        "linalg_cholesky (batch element 0): the matrix is not positive-definite: its leading minor of order 2 is not"
    );
    let nan = Tensor::full(&[2, 2], f64::NAN, DType::F32, &device).unwrap();
    assert!(text(linalg::svdvals(&nan)).contains("an infinite element or a NaN"));
    assert!(text(linalg::cholesky(&nan, false)).contains("order 1"));
    assert!(linalg::inv(&nan).unwrap().to_vec::<f32>().unwrap().iter().all(|x| x.is_nan()));
    assert!(linalg::qr(&nan).unwrap().1.to_vec::<f32>().unwrap()[0].is_nan());
    assert!(linalg::det(&nan).unwrap().item::<f32>().unwrap().is_nan());
    // A NaN below a zero.
    let below = Tensor::from_slice(&[0.0f32, 1.0, f32::NAN, 1.0], &[2, 2], &device).unwrap();
    assert!(linalg::det(&below).unwrap().item::<f32>().unwrap().is_nan());
    assert!(linalg::slogdet(&below).unwrap().1.item::<f32>().unwrap().is_nan());
    let tall = Tensor::from_slice(&[1.0f32, 2.0, f32::NAN, 3.0, 0.0, 4.0], &[3, 2], &device).unwrap();
    assert!(linalg::qr(&tall).unwrap().1.to_vec::<f32>().unwrap()[0].is_nan());
    let whole = Tensor::from_slice(&[1i64, 2], &[2], &device).unwrap();
    assert!(text(linalg::vector_norm(&whole, f64::INFINITY, &[], false)).contains("int64"));
    let nothing = linalg::svdvals(nan.zeros_like().unwrap()).unwrap();
    assert_eq!(nothing.to_vec::<f32>().unwrap(), [0.0; 2]);
    // A singular matrix has a determinant, whose derivative is finite.
    let leaf = one.requires_grad_(true).unwrap();
    linalg::det(&leaf).unwrap().backward().unwrap();
    let grad = leaf.grad().unwrap().to_vec::<f32>().unwrap();
    assert!(grad.iter().zip([4.0, -2.0, -2.0, 1.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{grad:?}");
    // Ones below the diagonal: most pivots are zero, although only one row depends on the others.
    let below = Tensor::ones(&[20, 20], &device).unwrap().tril(-1).unwrap().detach();
    let below = below.requires_grad_(true).unwrap();
    linalg::det(&below).unwrap().backward().unwrap();
    let grad = below.grad().unwrap().to_vec::<f32>().unwrap();
    let expected = |at: usize| if at == 19 { -1.0 } else { 0.0 };
    assert!(grad.iter().enumerate().all(|(at, x)| (x - expected(at)).abs() < 1e-5), "{grad:?}");
    let (sign, log) = linalg::slogdet(&leaf).unwrap();
    assert_eq!((sign.item::<f32>().unwrap(), log.item::<f32>().unwrap()), (0.0, f32::NEG_INFINITY));
    assert!(text(log.backward()).contains(singular));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, &Device::cpu()).unwrap();
    let halves = zeros(&[2, 2]).to_dtype(DType::F16).unwrap();
    let right = TriangularOptions { left: false, ..TriangularOptions::default() };
    assert!(text(linalg::inv(&halves)).contains("expected float32 or float64, got float16"));
    assert!(text(linalg::qr(zeros(&[2, 2]).to_dtype(DType::I64).unwrap())).contains("got int64"));
    for (error, expected) in [
        (text(linalg::inv(zeros(&[2, 3]))), "linalg_inv: [2, 3]: needs square matrices"),
        (text(linalg::det(zeros(&[3]))), "linalg_det: [3]: needs a matrix, or a batch of them"),
        (text(linalg::cholesky(zeros(&[]), true)), "linalg_cholesky: []: needs a matrix, or a batch of them"),
        (
            text(linalg::solve(zeros(&[2, 2]), zeros(&[3]))),
            "linalg_solve: [2, 2] with [3, 1]: the rows differ",
        ),
        (
            text(linalg::solve(zeros(&[2]), zeros(&[]))),
            "linalg_solve: [2] with [1]: needs matrices, or batches of them",
        ),
        (
            text(linalg::solve(zeros(&[3, 2, 2]), zeros(&[2, 2, 1]))),
            "linalg_solve: [3] and [2] do not broadcast",
        ),
        (text(linalg::matrix_norm(zeros(&[2, 2]), 3.0, [0, 1], false)), "matrices have no norm of order 3"),
        (text(linalg::matrix_norm(zeros(&[2, 2]), 1.0, [0, -2], false)), "are the same"),
        (
            text(linalg::matrix_norm(zeros(&[2]), 1.0, [0, 1], false)),
            "dimension 1 of a tensor with 1 dimensions",
        ),
        (text(linalg::norm(zeros(&[2, 2, 2]), MatrixNorm::Fro, &[], false)), "linalg_norm: the order Fro"),
        (text(linalg::norm(zeros(&[2]), MatrixNorm::Nuc, &[], false)), "linalg_norm: the order Nuc"),
        (
            text(linalg::solve_triangular(zeros(&[2, 2]), zeros(&[4, 3]), right)),
            "linalg_solve_triangular: [4, 3] times [2, 2]: the columns differ",
        ),
        (text(linalg::vector_norm(zeros(&[0]), f64::INFINITY, &[], false)), "norm"),
        (text(linalg::vector_norm(zeros(&[2, 0]), -1.0, &[1], false)), "[2, 0] has no elements"),
        (text(linalg::matrix_norm(zeros(&[0, 3]), -2.0, [0, 1], false)), "amin"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn norms_of_no_elements_are_zero_as_in_pytorch() {
    for shape in [[0, 3], [3, 0], [0, 0]] {
        let x = Tensor::zeros(&shape, &Device::cpu()).unwrap();
        let orders = [MatrixNorm::Fro, MatrixNorm::Nuc, 1.0.into(), 2.0.into(), f64::INFINITY.into()];
        for order in orders {
            let norm = linalg::matrix_norm(&x, order, [0, 1], false).unwrap();
            assert_eq!(norm.item::<f32>().unwrap(), 0.0, "{order:?} of {shape:?}");
        }
    }
    let batch = Tensor::zeros(&[2, 0, 3], &Device::cpu()).unwrap();
    assert_eq!(linalg::matrix_norm(&batch, 2.0, [-2, -1], true).unwrap().shape(), [2, 1, 1]);
    let none = Tensor::zeros(&[0, 300, 300], &Device::cpu()).unwrap();
    assert_eq!(linalg::det(&none).unwrap().shape(), [0]);
    assert_eq!(linalg::inv(&none).unwrap().shape(), [0, 300, 300]);
    let (u, s, _) = linalg::svd(&none).unwrap();
    assert_eq!((u.shape(), s.shape()), (&[0, 300, 300][..], &[0, 300][..]));
}

#[test]
fn autocast_computes_in_32_bits() {
    let x = Tensor::eye(3, 3, &Device::cpu()).unwrap().to_dtype(DType::BF16).unwrap();
    let inverse = autocast::autocast(DType::BF16, || linalg::inv(&x)).unwrap();
    assert_eq!(inverse.dtype(), DType::F32);
}

#[test]
fn a_simulated_device_counts_the_same_memory() {
    let peak = |device: &Device| {
        let x = Tensor::eye(100, 100, device).unwrap().requires_grad_(true).unwrap();
        let y = linalg::solve(&x, Tensor::ones(&[100, 20], device).unwrap()).unwrap();
        let (q, r) = linalg::qr(linalg::inv(&x).unwrap()).unwrap();
        let values = linalg::svdvals(q.matmul(&r).unwrap()).unwrap();
        let l = linalg::cholesky(&x, false).unwrap();
        let sum = y.sum().unwrap() + values.sum().unwrap();
        let sum = sum.unwrap() + linalg::det(&l).unwrap();
        sum.unwrap().backward().unwrap();
        device.max_memory_allocated()
    };
    let host = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
    assert_eq!(peak(&host), peak(&Device::sim(SimConfig::new(1 << 30))));
}
