//! The simulated GPU: [`Target`], its memory, and the part of it that PyTorch's allocator can use.

use std::fmt::Write;

use clap::ValueEnum;
use plimsoll_alloc::Bytes;
use plimsoll_gpu::outside::{self, Library, Loading};
use plimsoll_gpu::{Described, GPUS, Gpu, NotDescribed, Pool, UnknownGpu};
use plimsoll_standin::settings;

use super::machine::{self, Named};
use super::node::Machine;
use crate::bytes;
use crate::exit::{Exit, Failure};
use crate::page::quoted;
use crate::row;

/// Additional GPU memory for a run that must not run out of memory.
const MORE_BYTES: u64 = 1 << 39;

/// The libraries that a typical program loads. They are assumed for a GPU on which nothing has run yet.
const COMMON: [Library; 5] =
    [Library::PyTorchKernels, Library::CuBlas, Library::CuDnn, Library::CuFft, Library::CuSolver];

/// The minimum compute capability assumed for a GPU that is given only by its size: PyTorch's memory-efficient
/// attention kernels require it.
const LEAST_ASSUMED: (i32, i32) = (8, 0);

/// How the sizes of cuDNN's and cuFFT's workspaces are determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workspaces {
    /// No workspaces: exact for PyTorch's own requests
    None,
    /// A model fitted to an H200; the report also gives the peaks without workspaces
    Model,
    /// cuDNN itself plans convolutions, from a description of the GPU; a model estimates the rest
    Library,
}

impl Workspaces {
    /// The environment variable of plimsoll-standin for this choice, and its value.
    fn variable(self) -> (&'static str, String) {
        let value = match self {
            Workspaces::None => "none",
            Workspaces::Model => "model",
            Workspaces::Library => "library",
        };
        (settings::CUDNN_WORKSPACE, value.to_owned())
    }
}

/// The simulated GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The GPU's name with an article: `an A100-80GB`.
    pub(crate) name: String,
    /// The device's memory.
    pub(crate) total_bytes: u64,
    /// The most memory that a process uses outside the allocator.
    pub(crate) context_bytes: u64,
    /// The least memory that a process uses outside the allocator; it differs from `context_bytes` only until a program
    /// has run.
    pub(crate) least_context_bytes: u64,
    /// The memory that other programs use on the GPU (`--others`).
    pub(crate) others_bytes: u64,
    /// The compute capability, such as `8.9`.
    pub(crate) capability: String,
    /// The options that name this GPU, such as `--gpu RTX-4090`.
    pub(crate) options: String,
    /// The GPU whose compute capability was assumed, if none was given.
    pub(crate) assumed_from: Option<&'static str>,
    /// A sentence about the properties that a description of the GPU does not give.
    pub(crate) assumed: Option<String>,
    /// The GPU for which times are estimated: this GPU, if it was named or described; otherwise, of the listed GPUs
    /// with the same compute capability, the closest in size.
    pub(crate) listed: &'static Gpu,
    /// How the sizes of cuDNN's workspaces are determined.
    pub(crate) workspaces: Workspaces,
    /// The environment variables that configure the simulated GPU (plimsoll-standin).
    environment: Vec<(&'static str, String)>,
    /// The machine that contains the GPU.
    pub(crate) machine: Machine,
}

impl Target {
    /// The GPU that `--gpu` and `--cc` specify; without them, this machine's GPU. Other programs use `others_bytes` of
    /// its memory.
    ///
    /// # Errors
    /// If the name is unknown, the compute capability is invalid, a row cannot be read, or the device is smaller than
    /// the context and what others use.
    pub(super) fn of(
        gpu: Option<&str>,
        cc: Option<&str>,
        context_bytes: Option<u64>,
        others_bytes: u64,
    ) -> Result<Target, Failure> {
        let Named { gpu, cc } = machine::named(gpu, cc)?;
        let described = if row::is_file(&gpu) { row::read(&gpu)? } else { gpu.clone() };
        let target = Target::new(&described, cc.as_deref(), context_bytes);
        let target = target
            .map(|target| target.given_as(&gpu, &described))
            .and_then(|target| target.beside(others_bytes));
        target.map_err(|why| Failure::new(Exit::Usage, format!("--gpu {gpu}: {why}")))
    }

    /// The same GPU, named by the file that describes it.
    fn given_as(self, gpu: &str, described: &str) -> Target {
        if !row::is_file(gpu) {
            return self;
        }
        let options = format!("--gpu {}", quoted(gpu.as_ref()));
        let assumed = self.assumed.map(|sentence| sentence.replace(described, gpu));
        Target { options, assumed, ..self }
    }

    /// The same GPU, but other programs use `others_bytes` of its memory.
    fn beside(mut self, others_bytes: u64) -> Result<Target, String> {
        self.others_bytes = others_bytes;
        if self.limit_bytes() <= self.least_context_bytes {
            return Err("--others and the context alone fill it".to_owned());
        }
        if others_bytes > 0 {
            self.environment.push((settings::OTHERS, others_bytes.to_string()));
            self.options += &format!(" --others {}", Bytes(others_bytes).exact());
        }
        Ok(self)
    }

    /// The same target with this many GPUs, and with the sizes of cuDNN's workspaces determined in this way.
    pub(super) fn with_devices(mut self, devices: u32, workspaces: Workspaces) -> Target {
        self.environment.push((settings::DEVICES, devices.to_string()));
        self.workspaces = workspaces;
        self
    }

    /// The same GPU in this machine.
    pub(super) fn in_machine(self, machine: Machine) -> Target {
        Target { machine, ..self }
    }

    /// The environment variables that configure the simulated GPU (plimsoll-standin).
    pub(crate) fn environment(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.environment.iter().cloned().chain([self.workspaces.variable()])
    }

    /// The GPU of this name or size, with the memory outside the allocator that `--context` sets.
    pub(crate) fn new(gpu: &str, capability: Option<&str>, given: Option<u64>) -> Result<Target, String> {
        // `4090` is a name: no GPU has so few bytes.
        let size = bytes::parse_positive(gpu).and_then(|bytes| {
            if bytes < 1 << 20 { Err("a size needs a unit, such as 24GiB".to_owned()) } else { Ok(bytes) }
        });
        let (named, is_named) = (capability, capability.is_none() && size.is_err());
        let mut assumed = None;
        let (kind, name, total_bytes, capability, listed, is_assumed) = match (capability, size) {
            (None, Err(_)) => {
                let described = plimsoll_gpu::described(gpu).map_err(|why| unknown(&why))?;
                assumed = assumption(gpu, &described);
                let gpu = listed_or_kept(described.gpu);
                let name = called(gpu.name);
                let is_listed = plimsoll_gpu::named(gpu.name) == Ok(gpu);
                (
                    (settings::GPU, if is_listed { gpu.name.to_owned() } else { plimsoll_gpu::text(gpu) }),
                    name,
                    gpu.memory_bytes,
                    version(gpu.capability),
                    gpu,
                    false,
                )
            }
            (None, Ok(bytes)) => {
                let alike = plimsoll_gpu::nearest(bytes, LEAST_ASSUMED).ok_or("no GPU is listed")?;
                let capability = version(alike.capability);
                let name =
                    format!("a GPU of {} and compute capability {capability}", bytes::shown(bytes, false));
                ((settings::CAPABILITY, capability.clone()), name, bytes, capability, alike, true)
            }
            (Some(capability), bytes) => {
                let bytes = bytes.map_err(|why| format!("--cc needs a size here, such as 24GiB: {why}"))?;
                let alike = numbers(capability)
                    .ok_or_else(|| format!("{capability} is not a compute capability, such as 8.9"))?;
                let alike = plimsoll_gpu::nearest_of(bytes, alike)
                    .ok_or_else(|| format!("no GPU of compute capability {capability} or less is listed"))?;
                let name = format!("a GPU of {}", bytes::shown(bytes, false));
                (
                    (settings::CAPABILITY, capability.to_owned()),
                    name,
                    bytes,
                    capability.to_owned(),
                    alike,
                    false,
                )
            }
        };
        // If a GPU is given by its size, the simulated GPU has the properties of the first listed GPU with its compute
        // capability.
        let alike = if is_named {
            listed
        } else {
            numbers(&capability).and_then(plimsoll_gpu::of_capability).unwrap_or(listed)
        };
        let context_bytes = given.unwrap_or_else(|| expected_bytes(alike));
        let least_context_bytes = given.unwrap_or_else(|| outside::context(alike).bytes);
        if total_bytes <= least_context_bytes {
            return Err("the context alone fills it (see --context)".to_owned());
        }
        let charged = given.map_or_else(|| "laws".to_owned(), |bytes| bytes.to_string());
        let environment =
            vec![kind, (settings::MEMORY, total_bytes.to_string()), (settings::CONTEXT, charged)];
        let assumed_from = is_assumed.then_some(listed.name);
        let workspaces = Workspaces::None;
        let mut options = match is_named {
            true if !gpu.contains(CUSTOM) => format!("--gpu {}", listed.name),
            _ => format!("--gpu {}", gpu.trim().replace(' ', "")),
        };
        if let Some(capability) = named {
            options += &format!(" --cc {capability}");
        }
        Ok(Target {
            name,
            options,
            total_bytes,
            context_bytes,
            least_context_bytes,
            others_bytes: 0,
            capability,
            assumed_from,
            assumed,
            listed,
            workspaces,
            environment,
            machine: Machine::default(),
        })
    }

    /// The same GPU with another memory size.
    pub(crate) fn with_memory(&self, total_bytes: u64) -> Target {
        let mut target = Target { total_bytes, ..self.clone() };
        target.environment.push((settings::MEMORY, total_bytes.to_string()));
        target
    }

    /// The same GPU with more memory than it reports: if `after` is 0, from the start, otherwise after this many failed
    /// requests in a process.
    pub(super) fn with_more(&self, after: u64) -> Target {
        let mut target = self.clone();
        if after == 0 {
            target.environment.push((settings::BEYOND, MORE_BYTES.to_string()));
        } else {
            let after = ("PLIMSOLL_PREDICT_AFTER", after.to_string());
            target.environment.extend([("PLIMSOLL_PREDICT_BEYOND", MORE_BYTES.to_string()), after]);
        }
        target
    }

    /// The same GPU, but with the memory that a run used outside the allocator; unchanged if this is unknown.
    pub(crate) fn charged(&self, outside_bytes: Option<u64>) -> Target {
        match outside_bytes {
            Some(bytes) => Target { context_bytes: bytes, least_context_bytes: bytes, ..self.clone() },
            None => self.clone(),
        }
    }

    /// The memory that other programs leave free.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.others_bytes)
    }

    /// The memory that is available to the allocator.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.limit_bytes().saturating_sub(self.context_bytes)
    }

    /// Whether the GPU shares the host's memory.
    pub(crate) fn shares_memory(&self) -> bool {
        self.listed.pool == Pool::Host
    }
}

/// The prefix of a GPU's description.
const CUSTOM: &str = "custom:";

/// The row of the table that matches this GPU; otherwise the GPU itself, kept for the rest of the process.
fn listed_or_kept(gpu: Gpu) -> &'static Gpu {
    GPUS.iter().find(|listed| **listed == gpu).unwrap_or_else(|| Box::leak(Box::new(gpu)))
}

/// A GPU's name with an article. A GPU without a name is called `custom`.
fn called(name: &str) -> String {
    match name {
        "custom" => "a custom GPU".to_owned(),
        _ if name.starts_with(['A', 'H', 'L', 'R']) => format!("an {name}"),
        _ => format!("a {name}"),
    }
}

/// The sentence about properties that a description omits: `custom:… does not give threads, bandwidth: using the values
/// of the RTX-6000-Ada`.
fn assumption(text: &str, it: &Described) -> Option<String> {
    // A row of `plimsoll calibrate` has all properties, but some may have been taken from a listed GPU when the row was
    // made.
    let base = it.base?;
    Some(format!("{text} does not give {}: using the values of the {base}", it.assumed.join(", ")))
}

/// The memory that a process with the common libraries uses outside the allocator.
fn expected_bytes(gpu: &Gpu) -> u64 {
    let libraries = COMMON.map(|library| library.first_use(gpu, Loading::Lazy).bytes);
    outside::context(gpu).bytes + libraries.iter().sum::<u64>()
}

/// Parses a compute capability such as `8.9`.
fn numbers(capability: &str) -> Option<(i32, i32)> {
    let (major, minor) = capability.split_once('.')?;
    Some((major.parse::<u8>().ok()?.into(), minor.parse::<u8>().ok()?.into()))
}

/// Formats a compute capability, such as `8.9`.
fn version((major, minor): (i32, i32)) -> String {
    format!("{major}.{minor}")
}

/// The error for an unknown GPU name, with suggestions.
fn unknown(why: &NotDescribed) -> String {
    let NotDescribed::Name(name) = why else { return why.to_string() };
    match name {
        UnknownGpu::NotListed => format!("{why}, or a size such as 24GiB, or custom:memory=24GiB,cc=8.9"),
        UnknownGpu::Ambiguous { .. } => why.to_string(),
        UnknownGpu::OtherVendor { memory_bytes: None, .. } => {
            format!("{why}; `plimsoll predict --list` prints the known GPUs")
        }
        UnknownGpu::OtherVendor { memory_bytes: Some(bytes), .. } => {
            let gib = bytes >> 30;
            format!("{why}. For an NVIDIA GPU with the same memory: --gpu {gib}GiB")
        }
    }
}

/// The table of GPUs: memory, compute capability, multiprocessors, memory bandwidth and matrix-multiply rates.
pub(crate) fn list(whole: bool) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "{:<17} {:>15}  {:<4}  {:>3}  {:>9}  {:>9}  {:>9}  {:<49}  source of the memory size",
        "name", "memory", "cc", "SMs", "GB/s", "TFLOP/s", "in f32", "card"
    );
    for gpu in GPUS {
        let size = bytes::shown(gpu.memory_bytes, whole);
        let tera = |per_s: u64| per_s as f64 / 1e12;
        let _ = writeln!(
            out,
            "{:<17} {size:>15}  {:<4}  {:>3}  {:>9}  {:>9.1}  {:>9.1}  {:<49}  {}",
            gpu.name,
            version(gpu.capability),
            gpu.multiprocessors,
            gpu.bandwidth.memory_bytes_per_s / 1_000_000_000,
            tera(gpu.flops.f16),
            tera(gpu.flops.f32),
            gpu.card,
            gpu.memory_source,
        );
    }
    let _ = writeln!(
        out,
        "\nTFLOP/s: dense 16-bit matrix products, from NVIDIA's datasheets. For any other GPU: --gpu SIZE [--cc X.Y], custom:memory=SIZE,cc=X.Y,sms=N, a row of\n`plimsoll calibrate`, or a MIG slice such as H100:3g.40gb"
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_known_gets_what_to_give_instead() {
        let why = |gpu| Target::new(gpu, None, Some(0)).unwrap_err();
        assert!(why("A100").contains("A100-80GB, A100-40GB"), "{}", why("A100"));
        assert!(
            why("H9000").contains("known are H200, ") && why("H9000").contains("24GiB"),
            "{}",
            why("H9000")
        );
        assert!(why("MI300X").contains("AMD") && why("MI300X").contains("--gpu 192GiB"), "{}", why("MI300X"));
        assert!(why("H100:5g.50gb").contains("known are 1g.10gb"), "{}", why("H100:5g.50gb"));
        for number in ["16", "24"] {
            assert!(why(number).contains("or a size such as 24GiB"), "{}", why(number));
        }
        assert!(Target::new("4090", None, Some(0)).is_ok_and(|it| it.name == "an RTX-4090"));
        assert!(why("Gaudi 3").contains("Intel") && why("Gaudi 3").contains("--list"), "{}", why("Gaudi 3"));
    }

    #[test]
    fn a_size_alone_gets_the_compute_capability_of_the_listed_gpu_of_nearest_size() {
        for (size, capability, from) in [
            ("24GiB", "8.6", "RTX-3090"),
            ("80GB", "8.0", "A100-80GB"),
            ("80GiB", "9.0", "H100"),
            ("8GiB", "8.6", "RTX-3070"),
            ("1TiB", "10.3", "B300"),
        ] {
            let target = Target::new(size, None, Some(0)).unwrap();
            assert_eq!((target.capability.as_str(), target.assumed_from), (capability, Some(from)), "{size}");
            assert!(target.name.ends_with(&format!("compute capability {capability}")), "{}", target.name);
        }
        assert_eq!(Target::new("24GiB", Some("8.9"), Some(0)).unwrap().assumed_from, None);
    }

    #[test]
    fn times_are_those_of_the_named_gpu_or_of_one_with_its_compute_capability() {
        for (gpu, capability, listed) in [
            ("RTX-4090", None, "RTX-4090"),
            ("5GiB", None, "RTX-3070"),
            ("5GiB", Some("9.0"), "H100"),
            ("141GB", Some("9.0"), "H200"),
            ("24GiB", Some("8.7"), "RTX-3090"),
        ] {
            assert_eq!(
                Target::new(gpu, capability, Some(0)).unwrap().listed.name,
                listed,
                "{gpu} {capability:?}"
            );
        }
        let why = Target::new("5GiB", Some("5.2"), Some(0)).unwrap_err();
        assert!(why.contains("no GPU of compute capability 5.2 or less"), "{why}");
    }

    #[test]
    fn other_programs_leave_less() {
        let h100 = || Target::new("H100", None, None).unwrap();
        let beside = h100().beside(8 << 30).unwrap();
        assert_eq!(h100().capacity_bytes() - beside.capacity_bytes(), 8 << 30);
        assert_eq!((beside.total_bytes, beside.limit_bytes()), (85_017_493_504, 85_017_493_504 - (8 << 30)));
        assert!(beside.environment.contains(&(settings::OTHERS, (8_u64 << 30).to_string())));
        assert_eq!(beside.options, "--gpu H100 --others 8GiB");
        assert!(h100().beside(80 << 30).unwrap_err().contains("--others"));
        assert_eq!(h100().beside(0), Ok(h100()));
    }

    #[test]
    fn a_slice_and_a_described_gpu_are_passed_on_with_all_their_properties() {
        let slice = Target::new("H100:3g.40gb", None, None).unwrap();
        assert_eq!((slice.name.as_str(), slice.total_bytes), ("an H100:3g.40gb", 40_448 << 20));
        assert_eq!(slice.least_context_bytes, 60 * 2048 * 2048);
        assert!(slice.environment[0].1.starts_with("custom:name=H100:3g.40gb,"), "{:?}", slice.environment);
        assert_eq!((slice.options.as_str(), slice.assumed), ("--gpu H100:3g.40gb", None));
        let text = "custom:memory=48GiB,cc=8.9,sms=142";
        let custom = Target::new(text, None, None).unwrap();
        assert_eq!((custom.name.as_str(), custom.options), ("a custom GPU", format!("--gpu {text}")));
        assert_eq!(
            custom.assumed.as_deref(),
            Some(
                "custom:memory=48GiB,cc=8.9,sms=142 does not give threads, bandwidth, tflops: using the values of the RTX-6000-Ada"
            )
        );
        assert_eq!(custom.listed.multiprocessors, 142);
        assert!(Target::new("GB10", None, None).unwrap().shares_memory());
    }

    #[test]
    fn the_allocator_gets_what_the_context_leaves() {
        let target = Target::new("24GiB", Some("8.9"), Some(1 << 30)).unwrap();
        assert_eq!(target.capacity_bytes(), 23 << 30);
        assert_eq!(target.name, "a GPU of 24.00 GiB");
        assert_eq!(target.environment[0], (settings::CAPABILITY, "8.9".to_owned()));
        assert_eq!(target.environment[1], (settings::MEMORY, (24_u64 << 30).to_string()));
        assert_eq!(target.environment[2], (settings::CONTEXT, (1_u64 << 30).to_string()));
        for (gpu, capability, context) in
            [("24GiB", Some("nine"), 0), ("H100", Some("9.0"), 0), ("1GiB", Some("8.0"), 1 << 30)]
        {
            assert!(Target::new(gpu, capability, Some(context)).is_err(), "{gpu}");
        }
    }

    #[test]
    fn a_common_program_has_outside_what_an_h200_had_and_less_on_a_small_gpu() {
        let target = |gpu| Target::new(gpu, None, None).unwrap();
        let h200 = target("H200");
        assert_eq!((h200.context_bytes, h200.least_context_bytes), (846_004_224, 552_402_944));
        assert_eq!(h200.environment[2], (settings::CONTEXT, "laws".to_owned()));
        // Two kibibytes for each thread of 28 multiprocessors, plus the common libraries.
        assert_eq!(target("RTX-3060").context_bytes, 28 * 1536 * 2048 + 293_601_280);
        assert_eq!(Target::new("24GiB", Some("8.9"), None).unwrap().context_bytes, 696_254_464);
        let charged = h200.charged(Some(1 << 30));
        assert_eq!((charged.context_bytes, charged.least_context_bytes), (1 << 30, 1 << 30));
        assert_eq!(h200.charged(None), h200);
        assert!(Target::new("64MiB", Some("8.0"), None).is_err());
    }
}
