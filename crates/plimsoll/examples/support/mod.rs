//! What the examples of training steps share: their arguments.

use plimsoll::{Device, SimConfig};

/// The arguments of this program, by number.
pub(crate) struct Arguments(Vec<String>);

impl Arguments {
    pub(crate) fn read() -> Arguments {
        Arguments(std::env::args().skip(1).collect())
    }

    pub(crate) fn get(&self, number: usize, default: &str) -> String {
        self.0.get(number).cloned().unwrap_or_else(|| default.to_owned())
    }

    /// The first argument: `cpu`, `cuda:N` or `sim:GPU`.
    pub(crate) fn device(&self) -> Result<Device, Box<dyn std::error::Error>> {
        let name = self.get(0, "cpu");
        Ok(match (name.as_str(), name.strip_prefix("sim:"), name.strip_prefix("cuda")) {
            ("cpu", ..) => Device::cpu(),
            (_, Some(gpu), _) => Device::sim(SimConfig::like(gpu)?),
            (_, _, Some(number)) => Device::cuda(number.trim_start_matches(':').parse().unwrap_or(0))?,
            _ => return Err("a device is cpu, cuda:N or sim:GPU".into()),
        })
    }
}
