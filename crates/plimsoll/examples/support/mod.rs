//! What the examples of training steps share: their arguments, and the times of a step's kernels.

use plimsoll::{Device, SimConfig};

/// The arguments of this program, by number, without switches.
#[allow(dead_code, reason = "each example uses a part of them")]
pub(crate) struct Arguments {
    numbered: Vec<String>,
    /// `--capture`: whether steps are captured and replayed.
    pub(crate) captures: bool,
}

#[allow(dead_code, reason = "each example uses a part of them")]
impl Arguments {
    pub(crate) fn read() -> Arguments {
        let (switches, numbered): (Vec<String>, Vec<String>) =
            std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
        Arguments { numbered, captures: switches.iter().any(|switch| switch == "--capture") }
    }

    pub(crate) fn get(&self, number: usize, default: &str) -> String {
        self.numbered.get(number).cloned().unwrap_or_else(|| default.to_owned())
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

    /// Where the last argument is `times`: the slowest kernels of one more step on a GPU.
    pub(crate) fn show_kernel_times(
        &self,
        step: impl FnOnce() -> plimsoll::Result<()>,
    ) -> plimsoll::Result<()> {
        if self.numbered.last().is_none_or(|last| last != "times") {
            return Ok(());
        }
        let (done, times) = plimsoll::cuda_kernel_times(step);
        let total: f64 = times.iter().map(|time| time.total_ms).sum();
        println!("{total:.2} ms in {} launches", times.iter().map(|time| time.count).sum::<u64>());
        for time in times.iter().take(60) {
            println!("{:8.3} ms {:5} {} {}", time.total_ms, time.count, time.op, time.work);
        }
        done
    }
}
