//! The least a step can take on this machine: its operations at the speed of a large matrix product, and
//! its bytes at the speed of a copy, both measured here and now.

use std::time::Instant;

use plimsoll::{Device, Result, Tensor};

/// Images in a batch.
const N: f64 = 64.0;
/// Multiply-adds per image of the two convolutions and of the fully connected layers.
const CONV1: f64 = 32.0 * 25.0 * 28.0 * 28.0;
const CONV2: f64 = 64.0 * 800.0 * 10.0 * 10.0;
const FC: f64 = 1600.0 * 120.0 + 120.0 * 84.0 + 84.0 * 10.0;
/// Operations of a step: forward, gradient of the weights, and gradient of every input but the images'; a
/// multiply-add counts as two.
pub(crate) const FLOP: f64 = 2.0 * N * (2.0 * CONV1 + 3.0 * CONV2 + 3.0 * FC);

/// Numbers in what conv1, pool1, conv2 and pool2 give for a batch, and in all weights.
const C1: f64 = N * 32.0 * 784.0;
const P1: f64 = N * 32.0 * 196.0;
const C2: f64 = N * 64.0 * 100.0;
const P2: f64 = N * 64.0 * 25.0;
const WEIGHTS: f64 = 255_230.0;
/// Bytes of a step when each kernel reads its inputs and writes its outputs once. Each convolution's output
/// is written, read and written by relu, read by the pooling; on the way back written by the pooling, read
/// with relu's output and written by relu, and read for weight and bias (conv2: for its input too). The
/// pooled output is written, with an index of a byte, and read three times. Weights are read twice, their
/// gradients written, and the step reads three arrays and writes two.
pub(crate) const BYTES: f64 = 4.0 * (10.0 * C1 + 11.0 * C2 + 4.5 * (P1 + P2) + 8.0 * WEIGHTS);

/// How fast this machine is at its best.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// Operations per second of a 1024 × 1024 × 1024 matrix product.
    pub(crate) flop_per_s: f64,
    /// Bytes read and written per second by a copy of 6.4 MB, the size of the largest arrays of a step.
    pub(crate) bytes_per_s: f64,
}

impl Floor {
    /// Measures; takes a fraction of a second.
    pub(crate) fn measure() -> Result<Floor> {
        let device = Device::cpu();
        let square = Tensor::ones(&[1024, 1024], &device)?;
        let array = Tensor::ones(&[C1 as usize], &device)?;
        Ok(Floor {
            flop_per_s: 2.0 * 1024f64.powi(3) / fastest(20, || square.matmul(&square))?,
            bytes_per_s: 8.0 * C1 / fastest(100, || array.copy())?,
        })
    }

    /// Milliseconds of a step's operations.
    pub(crate) fn compute_ms(self) -> f64 {
        FLOP / self.flop_per_s * 1e3
    }

    /// Milliseconds of a step's bytes.
    pub(crate) fn memory_ms(self) -> f64 {
        BYTES / self.bytes_per_s * 1e3
    }

    /// One sentence.
    pub(crate) fn text(self) -> String {
        format!(
            "the floor: {:.2} GFLOP at {:.0} GFLOP/s take {:.1} ms, {:.0} MB between kernels at {:.0} GB/s {:.1} ms",
            FLOP / 1e9,
            self.flop_per_s / 1e9,
            self.compute_ms(),
            BYTES / 1e6,
            self.bytes_per_s / 1e9,
            self.memory_ms()
        )
    }
}

/// Seconds of the fastest of `n` calls.
fn fastest(n: u32, mut f: impl FnMut() -> Result<Tensor>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..n {
        let start = Instant::now();
        f()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
