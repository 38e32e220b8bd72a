//! The GPU that is imitated: [`Target`], its memory, and what of that is left for PyTorch's allocator.

use std::fmt::Write;

use clap::ValueEnum;
use plimsoll_standin::gpu::GPUS;
use plimsoll_standin::settings;

use super::PredictArgs;
use crate::bytes;
use crate::exit::{Exit, Failure};

/// What a process takes of the device beside the allocator, at least: the context and its modules after the first
/// CUDA call. Measured on an H200 with PyTorch 2.11 for CUDA 13.0, as is [`CONTEXT`].
pub(super) const LEAST_CONTEXT_BYTES: u64 = 552_000_000;
/// The same once cuBLAS, cuDNN, cuSOLVER and cuFFT are loaded, too, as `--context` takes it: what is kept free.
pub(super) const CONTEXT: &str = "845MB";

/// Workspaces of cuDNN's: for convolutions and recurrent networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Workspaces {
    /// None: exact for what PyTorch itself asks for
    None,
    /// By a model made from an H200's figures; the answer without them is given, too
    Model,
}

impl Workspaces {
    /// As the stand-in takes it.
    fn variable(self) -> (&'static str, String) {
        let value = match self {
            Workspaces::None => "none",
            Workspaces::Model => "model",
        };
        (settings::CUDNN_WORKSPACE, value.to_owned())
    }
}

/// What is imitated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// In words, with an article: `an A100-80GB`.
    pub(super) name: String,
    /// All that the device has.
    pub(super) total_bytes: u64,
    /// What a process takes of it beside the allocator.
    pub(super) context_bytes: u64,
    /// What cuDNN asks for.
    pub(super) workspaces: Workspaces,
    /// The variables that tell the stand-in the rest.
    environment: Vec<(&'static str, String)>,
}

impl Target {
    /// What the arguments ask for.
    ///
    /// # Errors
    /// A name that is not listed, a size without a compute capability, a device that the context fills.
    pub(super) fn of(args: &PredictArgs) -> Result<Target, Failure> {
        let target = Target::new(&args.gpu, args.cc.as_deref(), args.context);
        let mut target =
            target.map_err(|why| Failure::new(Exit::Usage, format!("--gpu {}: {why}", args.gpu)))?;
        target.environment.push((settings::DEVICES, args.devices.to_string()));
        target.workspaces = args.cudnn_workspace;
        Ok(target)
    }

    /// The same device, whose cuDNN needs no workspace.
    pub(super) fn without_workspaces(&self) -> Target {
        Target { workspaces: Workspaces::None, ..self.clone() }
    }

    /// The variables that tell the stand-in.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.environment.iter().cloned().chain([self.workspaces.variable()])
    }

    pub(super) fn new(gpu: &str, capability: Option<&str>, context_bytes: u64) -> Result<Target, String> {
        let (name, total_bytes, kind) = match capability {
            None => {
                let gpu = named(gpu)?;
                let article = if gpu.name.starts_with(['A', 'H', 'L', 'R']) { "an" } else { "a" };
                let name = format!("{article} {}", gpu.name);
                (name, gpu.memory_bytes, (settings::GPU, gpu.name.to_owned()))
            }
            Some(capability) => {
                let bytes = bytes::parse_positive(gpu);
                let bytes = bytes.map_err(|why| format!("with --cc it is a size, such as 24GiB: {why}"))?;
                let numbers = capability.split_once('.');
                if !numbers.is_some_and(|(a, b)| [a, b].iter().all(|it| it.parse::<u8>().is_ok())) {
                    return Err(format!("{capability} is no compute capability; one is 8.9"));
                }
                let name = format!("a GPU of {}", bytes::shown(bytes, false));
                (name, bytes, (settings::CAPABILITY, capability.to_owned()))
            }
        };
        if total_bytes <= context_bytes {
            return Err("nothing is left beside the context (--context)".to_owned());
        }
        let sizes = [(settings::MEMORY, total_bytes), (settings::CONTEXT, context_bytes)];
        let environment =
            [kind].into_iter().chain(sizes.map(|(name, bytes)| (name, bytes.to_string()))).collect();
        Ok(Target { name, total_bytes, context_bytes, workspaces: Workspaces::None, environment })
    }

    /// What the allocator can have.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.total_bytes - self.context_bytes
    }
}

/// The GPU of this name: case and hyphens do not matter, and a part will do that only one has.
fn named(name: &str) -> Result<&'static plimsoll_standin::gpu::Gpu, String> {
    let plain = |name: &str| name.replace([' ', '-', '_'], "").to_ascii_lowercase();
    let asked = plain(name);
    if let Some(gpu) = GPUS.iter().find(|gpu| plain(gpu.name) == asked) {
        return Ok(gpu);
    }
    let names = |gpus: &mut dyn Iterator<Item = &'static str>| gpus.collect::<Vec<_>>().join(", ");
    let alike: Vec<_> =
        GPUS.iter().filter(|gpu| !asked.is_empty() && plain(gpu.name).contains(&asked)).collect();
    match alike.as_slice() {
        [gpu] => Ok(gpu),
        [] => Err(format!(
            "not known; known are {}, or a size with --cc",
            names(&mut GPUS.iter().map(|it| it.name))
        )),
        several => Err(format!("could be {}", names(&mut several.iter().map(|it| it.name)))),
    }
}

/// The GPUs that are known by name.
pub(super) fn list(whole: bool) -> String {
    let mut out = String::new();
    for gpu in GPUS {
        let (major, minor) = gpu.capability;
        let size = bytes::shown(gpu.memory_bytes, whole);
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{:<10}  {size:>12}  {major}.{minor:<3}  {}", gpu.name, gpu.card);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_as_people_name_it() {
        for (asked, name) in
            [("h200", "H200"), ("RTX 4090", "RTX-4090"), ("4090", "RTX-4090"), ("A100-40", "A100-40GB")]
        {
            assert_eq!(named(asked).map(|gpu| gpu.name), Ok(name), "{asked}");
        }
        assert!(named("A100").unwrap_err().contains("A100-80GB, A100-40GB"));
        assert!(named("H9000").unwrap_err().contains("known are H200, "));
    }

    #[test]
    fn the_allocator_gets_what_the_context_leaves() {
        let target = Target::new("24GiB", Some("8.9"), 1 << 30).unwrap();
        assert_eq!(target.capacity_bytes(), 23 << 30);
        assert_eq!(target.name, "a GPU of 24.00 GiB");
        assert_eq!(target.environment[0], (settings::CAPABILITY, "8.9".to_owned()));
        assert_eq!(target.environment[1], (settings::MEMORY, (24_u64 << 30).to_string()));
        assert_eq!(target.environment[2], (settings::CONTEXT, (1_u64 << 30).to_string()));
        for (gpu, capability, context) in [
            ("24GiB", None, 0),
            ("24GiB", Some("nine"), 0),
            ("H100", Some("9.0"), 0),
            ("1GiB", Some("8.0"), 1 << 30),
        ] {
            assert!(Target::new(gpu, capability, context).is_err(), "{gpu}");
        }
    }

    #[test]
    fn the_default_context_is_a_size() {
        assert!(bytes::parse(CONTEXT).unwrap() > LEAST_CONTEXT_BYTES);
    }
}
