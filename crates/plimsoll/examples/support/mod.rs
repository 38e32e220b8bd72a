//! Code shared by the examples of training steps: their arguments (here), and measuring steps (`steps.rs`).

mod steps;

use std::error::Error;
use std::fmt;

use plimsoll::checkpoint::{Budget, Checkpointer};
use plimsoll::dist::{self, World};
use plimsoll::models::layers_to_recompute;
use plimsoll::offload::{OffloadActivations, OffloadOptions};
use plimsoll::parallel::DeviceMesh;
use plimsoll::{Device, ProcessGroup, SimConfig};

#[allow(unused_imports, reason = "each example uses a part of them")]
pub(crate) use steps::{Trained, show};

/// The error of a program: `main` shows it as a sentence, not as the fields of an error.
pub(crate) struct Failure(pub(crate) Box<dyn Error>);

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.into())
    }
}

/// The arguments of this program: positional ones, options `name=value`, and switches.
#[allow(dead_code, reason = "each example uses a part of them")]
#[derive(Default)]
pub(crate) struct Arguments {
    numbered: Vec<String>,
    options: Vec<(String, String)>,
    /// `--capture`: whether steps are captured and replayed.
    pub(crate) captures: bool,
    /// `--traced`: whether the memory of a step is planned.
    pub(crate) traced: bool,
    /// `--in-backward`: whether the optimizer steps in the backward pass.
    pub(crate) in_backward: bool,
    /// `--state-on-host`: whether the optimizer's state waits on the host.
    pub(crate) state_on_host: bool,
    /// `times`: whether the slowest kernels are shown.
    pub(crate) times: bool,
    /// `checksum`: whether to show a checksum of losses and parameters.
    pub(crate) checksum: bool,
}

#[allow(dead_code, reason = "each example uses a part of them")]
impl Arguments {
    pub(crate) fn read() -> Arguments {
        let mut read = Arguments::default();
        for argument in std::env::args().skip(1) {
            match argument.split_once('=') {
                Some((name, value)) => read.options.push((name.to_owned(), value.to_owned())),
                None if argument == "--capture" => read.captures = true,
                None if argument == "--traced" => read.traced = true,
                None if argument == "--in-backward" => read.in_backward = true,
                None if argument == "--state-on-host" => read.state_on_host = true,
                None if argument == "times" => read.times = true,
                None if argument == "checksum" => read.checksum = true,
                None => read.numbered.push(argument),
            }
        }
        read
    }

    pub(crate) fn get(&self, number: usize, default: &str) -> String {
        self.numbered.get(number).cloned().unwrap_or_else(|| default.to_owned())
    }

    /// The value of an option `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The allocator's settings: from `settings=…`, else from the environment, else expandable segments.
    fn settings(&self) -> String {
        let of_environment = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"].map(std::env::var);
        let given = self.option("settings").map(str::to_owned);
        given
            .or_else(|| of_environment.into_iter().find_map(Result::ok))
            .unwrap_or_else(|| "expandable_segments:True".to_owned())
    }

    /// The ranks that a launcher such as torchrun has started, or `sim-ranks=N` simulated ones. Without either, one.
    pub(crate) fn world(&self) -> Result<World, Failure> {
        match self.option("sim-ranks") {
            Some(ranks) => Ok(World::simulated(ranks.parse()?)),
            None => Ok(dist::init_from_env()?),
        }
    }

    /// `tp=N`: the number of ranks that share each layer.
    pub(crate) fn tensor_ranks(&self) -> usize {
        self.option("tp").and_then(|ranks| ranks.parse().ok()).unwrap_or(1)
    }

    /// The ranks as a mesh: (dp, tp) with `tp=N`, else (replicate, shard), with `replicate=R`.
    pub(crate) fn mesh(&self, world: &ProcessGroup) -> plimsoll::Result<DeviceMesh> {
        let (tensor, size) = (self.tensor_ranks(), world.size());
        if tensor > 1 {
            return DeviceMesh::new(world, &[("dp", size / tensor), ("tp", tensor)]);
        }
        let replicate = self.option("replicate").and_then(|copies| copies.parse().ok()).unwrap_or(1);
        DeviceMesh::new(world, &[("replicate", replicate), ("shard", size / replicate)])
    }

    /// The first argument: `cpu`, `cuda:N` or `sim:GPU`. `cuda` is the first GPU, or the one of this local rank.
    pub(crate) fn device(&self) -> Result<Device, Failure> {
        let name = self.get(0, "cpu");
        let device = match (name.as_str(), name.strip_prefix("sim:"), name.strip_prefix("cuda")) {
            ("cpu", ..) => Device::cpu(),
            (_, Some(gpu), _) => Device::sim(SimConfig::like(gpu)?),
            (_, _, Some("")) => {
                Device::cuda(std::env::var("LOCAL_RANK").map_or(Ok(0), |rank| rank.parse())?)?
            }
            (_, _, Some(number)) => Device::cuda(number.trim_start_matches(':').parse()?)?,
            _ => return Err("a device is cpu, cuda:N or sim:GPU".into()),
        };
        if name != "cpu" {
            device.set_allocator_settings(&self.settings())?;
        }
        if let Some(limit) = self.option("limit") {
            device.rematerialize();
            device.set_memory_limit(limit.parse::<f64>()? as u64);
        }
        Ok(device)
    }

    /// The budget of the blocks' activations: `budget=BYTES` or `budget=auto`.
    pub(crate) fn budget(&self) -> plimsoll::Result<Option<Budget>> {
        match self.option("budget") {
            None => Ok(None),
            Some("auto") => Ok(Some(Budget::Auto)),
            Some(bytes) => match bytes.parse::<f64>() {
                Ok(bytes) => Ok(Some(Budget::Bytes(bytes as u64))),
                Err(_) => {
                    let message = format!("budget={bytes}: use a number of bytes, such as 4e8, or auto");
                    Err(plimsoll::Error::Argument { op: "budget", message })
                }
            },
        }
    }

    /// What checkpoints the blocks: within [`Arguments::budget`], and with `host=BYTES` also by offloading at most these.
    pub(crate) fn checkpointer(&self) -> plimsoll::Result<Option<Checkpointer>> {
        let host = self.bytes("host")?;
        let of = |budget| match host {
            Some(bytes) => Checkpointer::new(budget).with_offload(bytes),
            None => Checkpointer::new(budget),
        };
        Ok(self.budget()?.map(of))
    }

    /// What offloads saved tensors: `offload=BYTES`.
    pub(crate) fn offload(&self) -> plimsoll::Result<Option<OffloadActivations>> {
        let of = |bytes: u64| OffloadActivations::new(OffloadOptions::from(bytes));
        Ok(self.bytes("offload")?.map(of))
    }

    /// An option that is a number of bytes.
    pub(crate) fn bytes(&self, name: &'static str) -> plimsoll::Result<Option<u64>> {
        let parse = |bytes: &str| match bytes.parse::<f64>() {
            Ok(bytes) => Ok(bytes as u64),
            Err(_) => {
                let message = format!("{name}={bytes}: use a number of bytes, such as 4e8");
                Err(plimsoll::Error::Argument { op: name, message })
            }
        };
        self.option(name).map(parse).transpose()
    }

    /// How many of `layers` layers recompute products: `recompute=N`, or the number that `peak=BYTES` needs. `train` takes some
    /// steps with a given number, on a device.
    pub(crate) fn recomputed(
        &self,
        layers: usize,
        train: impl Fn(usize, &Device) -> plimsoll::Result<()>,
    ) -> Result<usize, Failure> {
        let count = match (self.option("peak"), self.option("recompute")) {
            (None, None) => 0,
            (None, Some(count)) => count.parse()?,
            (Some(bytes), _) => {
                let gpu = SimConfig::like("H200")?;
                let limit_bytes = bytes.parse::<f64>()? as u64;
                let found = layers_to_recompute(layers, limit_bytes, &gpu, |count, device| {
                    device.set_allocator_settings(&self.settings())?;
                    train(count, device)
                })?;
                found.unwrap_or(layers)
            }
        };
        println!("products are computed again in {count} of {layers} layers");
        Ok(count)
    }
}
