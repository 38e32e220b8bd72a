//! Samples drawn by weight: rare classes as often as common ones, for example.

use std::sync::Arc;

use super::super::DataError;
use super::super::error::SamplerError;
use super::super::random::{Purpose, Stream};
use super::{Order, Sampler};

/// Draws samples by weight. In PyTorch: `WeightedRandomSampler`. Weights need not sum to 1.
///
/// ```
/// # use plimsoll::data::{Sampler, WeightedRandomSampler};
/// let sampler = WeightedRandomSampler::new(&[1.0, 0.0, 3.0], 4_000, 7)?;
/// let drawn = sampler.order(0)?.to_vec();
/// assert!(drawn.iter().all(|&index| index != 1));
/// assert!((2_850..3_150).contains(&drawn.iter().filter(|&&index| index == 2).count()));
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WeightedRandomSampler {
    weights: Arc<[f64]>,
    /// Cumulative sums of the weights.
    sums: Arc<[f64]>,
    draws: usize,
    seed: u64,
    replacement: Replacement,
}

#[derive(Clone, Copy, Debug)]
enum Replacement {
    With,
    Without,
}

impl WeightedRandomSampler {
    /// Draws `draws` samples an epoch, with replacement. `weights` has one weight for each sample of the data set.
    ///
    /// # Errors
    /// If a weight is negative or not finite, or none is above 0.
    pub fn new(weights: &[f64], draws: usize, seed: u64) -> Result<Self, DataError> {
        if let Some(at) = weights.iter().position(|&weight| !weight.is_finite() || weight < 0.0) {
            return Err(SamplerError::Weight { at, weight: weights[at] }.into());
        }
        let add = |sum: &mut f64, &weight: &f64| {
            *sum += weight;
            Some(*sum)
        };
        let sums: Arc<[f64]> = weights.iter().scan(0.0, add).collect();
        let total = sums.last().copied().unwrap_or(0.0);
        if total <= 0.0 || !total.is_finite() {
            return Err(SamplerError::TotalWeight { weights: weights.len(), total }.into());
        }
        Ok(Self { weights: weights.into(), sums, draws, seed, replacement: Replacement::With })
    }

    /// Draws no sample twice in an epoch.
    ///
    /// # Errors
    /// If fewer weights than draws are above 0.
    pub fn without_replacement(self) -> Result<Self, DataError> {
        let positive = self.weights.iter().filter(|&&weight| weight > 0.0).count();
        if self.draws > positive {
            return Err(SamplerError::TooManyDraws { draws: self.draws, positive }.into());
        }
        Ok(Self { replacement: Replacement::Without, ..self })
    }
}

impl Sampler for WeightedRandomSampler {
    fn len(&self) -> usize {
        self.draws
    }

    fn order(&self, epoch: u64) -> Result<Order, DataError> {
        let seed = self.seed;
        match self.replacement {
            Replacement::With => {
                let sums = Arc::clone(&self.sums);
                Ok(Order::computed(self.draws, move |position| {
                    let unit = Stream::at(seed, Purpose::Draws, epoch, position as u64).unit();
                    at(&sums, unit)
                }))
            }
            Replacement::Without => {
                let mut random = Stream::new(seed, Purpose::Draws, epoch);
                let mut left = Tree::new(&self.weights);
                Ok(Order::list((0..self.draws).map(|_| left.take(random.unit())).collect()))
            }
        }
    }
}

/// The sample selected by a number in `0..1`. A sample of weight 0 has the same sum as its predecessor, so it is never the first
/// above the target.
fn at(sums: &[f64], unit: f64) -> usize {
    let total = sums[sums.len() - 1];
    let found = sums.partition_point(|&sum| sum <= unit * total);
    // The product may be rounded up to the total; the sample is then the last one with a weight.
    if found < sums.len() { found } else { sums.partition_point(|&sum| sum < total) }
}

/// A binary tree of sums, from which a weight can be removed in logarithmic time. Each sum is computed from its two children,
/// never by subtraction, so it is 0 exactly when no weight is left below it.
struct Tree {
    /// Node 1 is the root; the children of node n are 2 n and 2 n + 1; the leaves are the second half.
    sums: Vec<f64>,
}

impl Tree {
    fn new(weights: &[f64]) -> Self {
        let leaves = weights.len().next_power_of_two();
        let mut sums = vec![0.0; 2 * leaves];
        sums[leaves..leaves + weights.len()].copy_from_slice(weights);
        for node in (1..leaves).rev() {
            sums[node] = sums[2 * node] + sums[2 * node + 1];
        }
        Self { sums }
    }

    /// Removes and returns the sample selected by a number in `0..1`. At least one weight must be left.
    fn take(&mut self, unit: f64) -> usize {
        let leaves = self.sums.len() / 2;
        let mut rest = unit * self.sums[1];
        let mut node = 1;
        while node < leaves {
            let (left, right) = (self.sums[2 * node], self.sums[2 * node + 1]);
            node *= 2;
            if left <= 0.0 || (rest >= left && right > 0.0) {
                rest -= left;
                node += 1;
            }
        }
        let sample = node - leaves;
        self.sums[node] = 0.0;
        while node > 1 {
            node /= 2;
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
        }
        sample
    }
}
