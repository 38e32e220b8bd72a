//! Which random numbers: a distribution, and one of many independent streams of a seed.
//!
//! What a device draws from them is its kernel's matter (`cpu/random.rs`); the numbers are the same on every
//! machine.

/// A distribution to draw values from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Evenly in `low..high`.
    Uniform {
        /// Smallest value.
        low: f64,
        /// Values stay below this.
        high: f64,
    },
    /// The normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
}

impl Distribution {
    /// PyTorch's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Distribution::Uniform { .. } => "uniform",
            Distribution::Normal { .. } => "normal",
        }
    }
}

/// Which random numbers: one of 2^64 independent streams of a seed. The same everywhere, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomStream {
    /// The generator's seed.
    pub seed: u64,
    /// The stream of that seed.
    pub stream: u64,
}
