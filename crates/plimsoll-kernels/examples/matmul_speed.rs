//! Measures matrix products in `float32`, `bfloat16` and `float16`: GFLOP/s on all threads, the best of several
//! rounds. `matmul_speed.py` in this folder measures PyTorch's in the same way.
//!
//! ```console
//! cargo run --release -p plimsoll-kernels --example matmul_speed
//! python crates/plimsoll-kernels/examples/matmul_speed.py
//! ```

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::time::{Duration, Instant};

use half::{bf16, f16};
use plimsoll_kernels::dtype::DType;
use plimsoll_kernels::matmul::matmul;
use plimsoll_kernels::matmul::{MatmulShape, MatrixStrides};
use plimsoll_kernels::short_matmul::{short_matmul, short_matmul_scratch_len};

/// Batch, rows, depth and columns, and whether the left and the right operand are transposed.
const SHAPES: [([usize; 4], [bool; 2]); 8] = [
    ([1, 1024, 1024, 1024], [false, false]),
    ([1, 1024, 1024, 1024], [false, true]),
    ([1, 2048, 384, 1536], [false, true]),
    ([1, 2048, 1536, 384], [false, false]),
    ([1, 384, 2048, 1536], [true, false]),
    ([48, 256, 64, 256], [false, true]),
    ([1, 1000, 4096, 100], [false, true]),
    ([1, 4, 4096, 4096], [false, true]),
];

fn best_gflops(flops: usize, mut run: impl FnMut()) -> f64 {
    run();
    let mut best = Duration::MAX;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(400) {
        let round = Instant::now();
        run();
        best = best.min(round.elapsed());
    }
    flops as f64 / best.as_secs_f64() / 1e9
}

fn main() {
    println!("{:<36}{:>10}{:>10}{:>10}", "GFLOP/s", "float32", "bfloat16", "float16");
    for ([batch, m, k, n], turned) in SHAPES {
        let shape = MatmulShape { batch, m, k, n };
        let lies = |rows: usize, cols: usize, turned: bool| match turned {
            false => MatrixStrides::row_major(rows, cols),
            true => MatrixStrides::row_major(cols, rows).transposed(),
        };
        let (a_lies, b_lies) = (lies(m, k, turned[0]), lies(k, n, turned[1]));
        let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 13) as f32 - 6.0).collect() };
        let (a, b, mut c) = (values(batch * m * k), values(batch * k * n), vec![0.0; batch * m * n]);
        let flops = 2 * batch * m * k * n;
        let wide = best_gflops(flops, || {
            let to = (&mut c[..], MatrixStrides::row_major(m, n));
            matmul(&shape, (&a, a_lies), (&b, b_lies), None, to);
        });
        let mut scratch = vec![0.0; short_matmul_scratch_len(&shape)];
        let mut c = vec![0u16; batch * m * n];
        let mut short = |dtype: DType, [a, b]: [Vec<u16>; 2]| {
            let (a, b) = (bytemuck::cast_slice(&a), bytemuck::cast_slice(&b));
            let c: &mut [u8] = bytemuck::cast_slice_mut(&mut c);
            best_gflops(flops, || {
                short_matmul(dtype, &shape, (a, a_lies), (b, b_lies), None, c, &mut scratch, |_, _| {});
            })
        };
        let brief = |x: &[f32]| x.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
        let half = |x: &[f32]| x.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
        let rates = [short(DType::BF16, [brief(&a), brief(&b)]), short(DType::F16, [half(&a), half(&b)])];
        let t = |turned: bool| if turned { "t" } else { "" };
        let name = format!("{batch} x [{m}, {k}]{} [{k}, {n}]{}", t(turned[0]), t(turned[1]));
        println!("{name:<36}{wide:>10.0}{:>10.0}{:>10.0}", rates[0], rates[1]);
    }
}
