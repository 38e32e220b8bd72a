//! A lower bound for the time of a step on this machine: its arithmetic at the speed of a large matrix
//! product, plus its memory traffic at the speed of a copy. Both speeds are measured in this run.

use std::time::Instant;

use plimsoll::{Device, Result, Tensor};

/// The size of the array whose copy is timed, which equals that of the largest arrays in LeNet's step.
const COPIED: usize = 64 * 32 * 784 * 4;

/// The work of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    /// Floating-point operations.
    pub(crate) flop: f64,
    /// Bytes that kernels read and write; `None` if they were not counted.
    pub(crate) bytes: Option<f64>,
    /// Images or tokens in a batch.
    pub(crate) items: usize,
    /// The unit of `items`: images or tokens.
    pub(crate) unit: &'static str,
}

/// The highest measured speeds of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// Operations per second of a 1024 × 1024 × 1024 matrix product.
    pub(crate) flop_per_s: f64,
    /// Bytes read and written per second by a copy of 6.4 MB.
    pub(crate) bytes_per_s: f64,
}

impl Floor {
    /// Measures; takes a fraction of a second.
    pub(crate) fn measure() -> Result<Floor> {
        let device = Device::cpu();
        let square = Tensor::ones(&[1024, 1024], &device)?;
        let array = Tensor::ones(&[COPIED / 4], &device)?;
        Ok(Floor {
            flop_per_s: 2.0 * 1024f64.powi(3) / fastest(20, || square.matmul(&square))?,
            bytes_per_s: 2.0 * COPIED as f64 / fastest(100, || array.copy())?,
        })
    }

    /// The milliseconds that a step's operations take.
    pub(crate) fn compute_ms(self, work: Work) -> f64 {
        work.flop / self.flop_per_s * 1e3
    }

    /// The milliseconds that a step's bytes take, if they were counted.
    pub(crate) fn memory_ms(self, work: Work) -> Option<f64> {
        work.bytes.map(|bytes| bytes / self.bytes_per_s * 1e3)
    }

    /// A sentence with the floor of a step.
    pub(crate) fn text(self, work: Work) -> String {
        let compute = format!(
            "the floor: {:.2} GFLOP at {:.0} GFLOP/s take {:.1} ms",
            work.flop / 1e9,
            self.flop_per_s / 1e9,
            self.compute_ms(work)
        );
        let (Some(bytes), Some(ms)) = (work.bytes, self.memory_ms(work)) else { return compute };
        let (mb, speed) = (bytes / 1e6, self.bytes_per_s / 1e9);
        format!("{compute}, {mb:.0} MB between kernels at {speed:.0} GB/s {ms:.1} ms")
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
