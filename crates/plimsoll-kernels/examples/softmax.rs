//! Computes the softmax of the rows of a matrix, on slices: `cargo run -p plimsoll-kernels --example
//! softmax`.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use plimsoll_kernels::random::{Distribution, RandomStream, fill};
use plimsoll_kernels::softmax::softmax;

fn main() {
    let (rows, cols) = (3, 5);
    let mut logits = vec![0.0f32; rows * cols];
    fill(Distribution::Normal { mean: 0.0, std: 2.0 }, RandomStream { seed: 1, stream: 0 }, &mut logits);
    let mut shares = vec![0.0f32; rows * cols];
    softmax(cols, &logits, &mut shares);
    for row in shares.chunks(cols) {
        println!("{row:.3?} (sum {:.3})", row.iter().sum::<f32>());
    }
}
