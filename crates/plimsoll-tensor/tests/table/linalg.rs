//! Calls the operations of `fixtures/linalg.json`.

use plimsoll_tensor::fft::{self, FftNorm};
use plimsoll_tensor::linalg::{self, MatrixNorm, TriangularOptions};
use plimsoll_tensor::{Result, Tensor};
use serde_json::Value;

use super::calls::{both, integer, integers, size};

/// Our result; `None` for an operation of another table.
pub(crate) fn call(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>>> {
    let x = inputs.first()?;
    let detached = |outs: Vec<Tensor>| outs.iter().map(Tensor::detach).collect();
    Some(match op {
        "qr" => linalg::qr(x).map(both),
        "qr without a gradient" => linalg::qr(x).map(both).map(detached),
        "slogdet" => linalg::slogdet(x).map(both).map(|outs| vec![outs[0].detach(), outs[1].clone()]),
        "slogdet without a gradient" => linalg::slogdet(x).map(both).map(detached),
        "of singular vectors" => of_singular_vectors(x),
        _ => {
            let one = matrices(op, args, inputs).or_else(|| transforms(op, args, inputs));
            return Some(one?.map(|out| vec![out]));
        }
    })
}

fn of_singular_vectors(x: &Tensor) -> Result<Vec<Tensor>> {
    let (u, s, vt) = linalg::svd(x)?;
    Ok(vec![u.matmul(&vt)?, u.square()?, vt.square()?.mul(s.unsqueeze(-1)?)?])
}

fn matrices(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Tensor>> {
    let (x, y) = (&inputs[0], inputs.get(1).unwrap_or(&inputs[0]));
    let keepdim = args["keepdim"] == true;
    let order = || match args["ord"].as_str() {
        Some("fro") => MatrixNorm::Fro,
        Some("nuc") => MatrixNorm::Nuc,
        number => MatrixNorm::P(number.unwrap().parse().unwrap()),
    };
    let dims = || integers(&args["dim"]);
    Some(match op {
        "matrix_norm" => linalg::matrix_norm(x, order(), [dims()[0], dims()[1]], keepdim),
        "vector_norm" => {
            linalg::vector_norm(x, args["ord"].as_str().unwrap().parse().unwrap(), &dims(), keepdim)
        }
        "linalg_norm" => linalg::norm(x, args["ord"].as_str().map(|_| order()), &dims(), false),
        "cholesky" => linalg::cholesky(x, args["upper"] == true),
        "svdvals" => linalg::svdvals(x),
        "solve" => linalg::solve(x, y),
        "inv" => linalg::inv(x),
        "det" => linalg::det(x),
        "det without a gradient" => linalg::det(x).map(|det| det.detach()),
        "solve_triangular" | "solve_triangular without a gradient" => {
            let options = TriangularOptions {
                upper: args["upper"] == true,
                left: args["left"] == true,
                unitriangular: args["unit"] == true,
            };
            let x = linalg::solve_triangular(x, y, options);
            if op == "solve_triangular" { x } else { x.map(|x| x.detach()) }
        }
        _ => return None,
    })
}

fn transforms(op: &str, args: &Value, inputs: &[Tensor]) -> Option<Result<Tensor>> {
    let (x, y) = (&inputs[0], inputs.get(1).unwrap_or(&inputs[0]));
    let norm = match args["norm"].as_str() {
        Some("ortho") => FftNorm::Ortho,
        Some("forward") => FftNorm::Forward,
        _ => FftNorm::Backward,
    };
    let n = args["n"].as_u64().map(|n| n as usize);
    let sizes = args["s"].as_array().map(|s| [size(&s[0]), size(&s[1])]);
    let dim = || integer(&args["dim"]);
    Some(match op {
        "rfft" => fft::rfft(x, n, dim(), norm),
        "irfft" => fft::irfft(x, n, dim(), norm),
        "fft" => fft::fft(x, n, dim(), norm),
        "ifft" => fft::ifft(x, n, dim(), norm),
        "rfft2" => fft::rfft2(x, sizes, [-2, -1], norm),
        "irfft2" => fft::irfft2(x, sizes, [-2, -1], norm),
        "fft2" => fft::fft2(x, sizes, [-2, -1], norm),
        "ifft2" => fft::ifft2(x, sizes, [-2, -1], norm),
        "fftfreq" => fft::fftfreq(n?, 0.5, x.device()),
        "rfftfreq" => fft::rfftfreq(n?, 0.5, x.device()),
        "complex mul" => fft::mul(x, y),
        "complex abs" => fft::abs(x),
        "complex angle" => fft::angle(x),
        "complex conj" => fft::conj(x),
        _ => return None,
    })
}
