//! Means of metrics over the samples of an epoch, computed on the device: [`Means`].

use plimsoll_tensor::{DType, Error, Result, Tensor, no_grad};

/// Weighted means, by name. Values stay on the device until they are read, so that adding one does not wait for it.
#[derive(Debug, Default)]
pub(super) struct Means(Vec<Mean>);

#[derive(Debug)]
struct Mean {
    name: &'static str,
    /// The weighted sum of its values, in `float64`.
    sum: Tensor,
    weight: f64,
}

impl Means {
    /// Adds scalars that are means over `samples` samples. Not all names need to be there each time.
    ///
    /// # Errors
    /// If a name is given twice, a value is not a scalar, or memory runs out.
    pub(super) fn add(&mut self, values: &[(&'static str, Tensor)], samples: usize) -> Result<()> {
        no_grad(|| {
            for (at, (name, value)) in values.iter().enumerate() {
                if values[..at].iter().any(|(earlier, _)| earlier == name) {
                    return Err(refused(format!("a batch has two metrics called `{name}`")));
                }
                if value.shape().iter().product::<usize>() != 1 {
                    return Err(refused(format!(
                        "`{name}` has the shape {:?}; it must be one number",
                        value.shape()
                    )));
                }
                let value =
                    value.detach().reshape(&[0usize; 0])?.to_dtype(DType::F64)?.mul_scalar(samples as f64)?;
                match self.0.iter_mut().find(|own| own.name == *name) {
                    Some(own) => {
                        own.sum.add_(&value)?;
                        own.weight += samples as f64;
                    }
                    None => self.0.push(Mean { name, sum: value, weight: samples as f64 }),
                }
            }
            Ok(())
        })
    }

    /// The weighted sum of a metric's values, and the sum of their weights. Waits for the device.
    pub(super) fn sum(&self, name: &str) -> Result<(f64, f64)> {
        match self.0.iter().find(|own| own.name == name) {
            Some(own) => Ok((own.sum.item()?, own.weight)),
            None => Ok((0.0, 0.0)),
        }
    }

    /// The means, in the order in which the names were first added. Waits for the device.
    pub(super) fn means(&self) -> Result<Vec<(&'static str, f64)>> {
        self.0.iter().map(|own| Ok((own.name, own.sum.item::<f64>()? / own.weight))).collect()
    }
}

fn refused(message: String) -> Error {
    Error::Argument { op: "metrics", message }
}
