//! Means of metrics over the samples of an epoch, computed on the device: [`Means`].

use plimsoll_tensor::{DType, Result, Tensor, no_grad};

/// Weighted means, by name. Values stay on the device until they are read, so that adding one does not wait for it.
#[derive(Debug, Default)]
pub(super) struct Means {
    /// Each name, with the weighted sum of its values in `float64`.
    sums: Vec<(&'static str, Tensor)>,
    weight: f64,
}

impl Means {
    /// Adds scalars that are means over `samples` samples.
    pub(super) fn add(&mut self, values: &[(&'static str, Tensor)], samples: usize) -> Result<()> {
        self.weight += samples as f64;
        no_grad(|| {
            values.iter().try_for_each(|(name, value)| {
                let value = value.detach().to_dtype(DType::F64)?.mul_scalar(samples as f64)?;
                match self.sums.iter_mut().find(|(own, _)| own == name) {
                    Some((_, sum)) => sum.add_(&value).map(drop),
                    None => {
                        self.sums.push((*name, value));
                        Ok(())
                    }
                }
            })
        })
    }

    /// The sum of all weights.
    pub(super) fn samples(&self) -> f64 {
        self.weight
    }

    /// The weighted sum of a metric's values. Waits for the device.
    pub(super) fn sum(&self, name: &str) -> Result<f64> {
        match self.sums.iter().find(|(own, _)| *own == name) {
            Some((_, sum)) => sum.item(),
            None => Ok(0.0),
        }
    }

    /// The means, in the order in which the names were first added. Waits for the device.
    pub(super) fn means(&self) -> Result<Vec<(&'static str, f64)>> {
        self.sums.iter().map(|(name, sum)| Ok((*name, sum.item::<f64>()? / self.weight))).collect()
    }
}
