//! GPUs that are not in the table, described by text: [`described`] reads it, [`text`] writes it.
//!
//! The text is `custom:` and a list of properties: `custom:memory=48GiB,cc=8.9,sms=142`. A missing property comes from
//! the listed GPU that `like` names or, without `like`, from the listed GPU of this compute capability that is closest
//! in memory. [`Described::assumed`] names those properties. `H100:3g.40gb` is a MIG slice ([`crate::slice`]).
//!
//! The launcher gives the stand-in a GPU in this form, with all properties.

use std::error::Error;
use std::fmt;

use crate::figure::{Basis, Figure};
use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes, Pool};
use crate::lookup::{UnknownGpu, named, nearest, nearest_of};
use crate::mig::slice;

/// The prefix of a description.
const CUSTOM: &str = "custom:";

/// The lowest compute capability that is ever assumed: PyTorch's memory-efficient attention kernels require it.
const LEAST_ASSUMED: (i32, i32) = (8, 0);

/// The properties, as listed in messages.
pub(crate) const KEYS: &str = "memory, cc, sms, threads, bandwidth, tflops, like, name, l2, clock, bus, pcie, nvlink, pool, context, \
                               reserve";

/// A GPU from a description.
///
/// ```
/// let it = plimsoll_gpu::described("custom:memory=48GiB,cc=8.9,sms=142").map_err(|_| plimsoll_gpu::UnknownGpu::NotListed)?;
/// assert_eq!((it.gpu.multiprocessors, it.base), (142, Some("RTX-6000-Ada")));
/// assert!(it.assumed.contains(&"bandwidth"));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The GPU.
    pub gpu: Gpu,
    /// The listed GPU from which missing properties come; `None` if none is missing.
    pub base: Option<&'static str>,
    /// The properties that were not given.
    pub assumed: Vec<&'static str>,
}

/// Why a text does not describe a GPU.
///
/// ```
/// let why = plimsoll_gpu::described("custom:cc=8.9").unwrap_err();
/// assert_eq!(why.to_string(), "a description needs the memory, such as custom:memory=48GiB,cc=8.9, or like=NAME");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDescribed {
    /// This name, or the one after `like=`, is unknown.
    Name(UnknownGpu),
    /// The GPU has no such MIG profile; these are known.
    Profile(&'static str, Vec<&'static str>),
    /// This part of a description is wrong.
    Part(String),
}

impl fmt::Display for NotDescribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDescribed::Name(why) => why.fmt(f),
            NotDescribed::Profile(name, profiles) if profiles.is_empty() => {
                write!(f, "no MIG profiles are known for {name}")
            }
            NotDescribed::Profile(name, profiles) => {
                write!(f, "not a known MIG profile of {name}; known are {}", profiles.join(", "))
            }
            NotDescribed::Part(why) => f.write_str(why),
        }
    }
}

impl Error for NotDescribed {}

impl From<UnknownGpu> for NotDescribed {
    fn from(why: UnknownGpu) -> Self {
        NotDescribed::Name(why)
    }
}

/// The GPU with this name, MIG slice or description.
///
/// ```
/// let slice = plimsoll_gpu::described("NVIDIA H100 80GB HBM3 MIG 3g.40gb").map_err(|_| plimsoll_gpu::UnknownGpu::NotListed)?;
/// assert_eq!(slice.gpu.name, "H100:3g.40gb");
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
///
/// # Errors
///
/// [`NotDescribed`]: the name is unknown, or the description is wrong.
pub fn described(text: &str) -> Result<Described, NotDescribed> {
    let trimmed = text.trim();
    if let Some(list) = trimmed.strip_prefix(CUSTOM) {
        return Parts::read(list)?.described();
    }
    let parts = trimmed.split_once(':').or_else(|| trimmed.split_once(" MIG "));
    let gpu = match parts {
        Some((name, profile)) => {
            let whole = named(name)?;
            slice(whole, profile).map_err(|profiles| NotDescribed::Profile(whole.name, profiles))?
        }
        None => *named(trimmed)?,
    };
    Ok(Described { gpu, base: None, assumed: Vec::new() })
}

/// The items of a description: properties and their values.
struct Parts<'text>(Vec<(&'text str, &'text str)>);

impl<'text> Parts<'text> {
    fn read(list: &'text str) -> Result<Self, NotDescribed> {
        let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
        let mut all: Vec<(&str, &str)> = Vec::new();
        for part in parts {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| NotDescribed::Part(format!("`{part}` is not PROPERTY=VALUE")))?;
            let key = known(key.trim()).ok_or_else(|| {
                NotDescribed::Part(format!("`{}` is not a property; known are {KEYS}", key.trim()))
            })?;
            if all.iter().any(|(other, _)| *other == key) {
                return Err(NotDescribed::Part(format!("{key} is given twice")));
            }
            all.push((key, value.trim()));
        }
        Ok(Parts(all))
    }

    fn text(&self, key: &str) -> Option<&'text str> {
        self.0.iter().find(|(it, _)| *it == key).map(|(_, value)| *value)
    }

    /// The value of a property, if it is given.
    fn value<T>(
        &self,
        key: &'static str,
        example: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, NotDescribed> {
        let wrong = |text| NotDescribed::Part(format!("{key}={text} is not valid; example: {key}={example}"));
        self.text(key).map(|text| read(text).ok_or_else(|| wrong(text))).transpose()
    }

    fn described(&self) -> Result<Described, NotDescribed> {
        let number = |text: &str| text.parse::<i32>().ok().filter(|it| *it > 0);
        let size = |text: &str| bytes(text).filter(|it| *it > 0);
        let bytes_32 = |text: &str| bytes(text).and_then(|it| i32::try_from(it).ok()).filter(|it| *it > 0);
        let flops = |text: &str| rate(text, 1e12);
        let memory = self.value("memory", "48GiB", size)?;
        let capability = self.value("cc", "8.9", version)?;
        let base = match (self.text("like"), memory, capability) {
            (Some(name), ..) => described(name).map(|it| it.gpu)?,
            (None, Some(memory), Some(cc)) => *nearest_of(memory, cc).ok_or_else(|| {
                NotDescribed::Part(format!(
                    "no GPU of compute capability {}.{} or less is listed",
                    cc.0, cc.1
                ))
            })?,
            (None, Some(memory), None) => *nearest(memory, LEAST_ASSUMED).ok_or(UnknownGpu::NotListed)?,
            (None, None, _) => {
                return Err(NotDescribed::Part(
                    "a description needs the memory, such as custom:memory=48GiB,cc=8.9, or like=NAME"
                        .to_owned(),
                ));
            }
        };
        // Bounds far above any real GPU, so that sizes computed from them cannot overflow.
        let up_to = |most: i32| move |text: &str| number(text).filter(|it| *it <= most);
        let sms = self.value("sms", "142", up_to(100_000))?;
        let threads = self.value("threads", "1536", up_to(100_000))?;
        let capability_of = capability.unwrap_or(base.capability);
        let tflops = self.value("tflops", "165", flops)?;
        let scaled = Scale {
            sms: sms.unwrap_or(base.multiprocessors),
            of: base.multiprocessors,
            tflops,
            f16: base.flops.f16,
        };
        let wide = |key, base: Option<u64>| -> Result<Option<u64>, NotDescribed> {
            if self.text(key) == Some("none") {
                return Ok(None);
            }
            Ok(self.value(key, "330", flops)?.or(base.map(|it| scaled.rate(it))))
        };
        let per_s = |key, base: u64| {
            Ok::<u64, NotDescribed>(self.value(key, "960GB/s", |it| rate(it, 1e9))?.unwrap_or(base))
        };
        let nvlink = match self.text("nvlink") {
            Some("none") => None,
            Some(_) => self.value("nvlink", "450GB/s", |text| rate(text, 1e9))?,
            None => base.bandwidth.nvlink_bytes_per_s,
        };
        let is_same_chip = capability_of == base.capability;
        let is_same_size = is_same_chip
            && sms.is_none_or(|it| it == base.multiprocessors)
            && threads.is_none_or(|it| it == base.threads_per_multiprocessor);
        let basis =
            self.value("basis", "given", |text| Basis::ALL.into_iter().find(|it| it.name() == text))?;
        let known = |key, base: Option<Figure>, is_alike: bool| {
            let given = self.value(key, "552402944", bytes)?;
            let given = given.map(|bytes| Figure::new(bytes, basis.unwrap_or(Basis::Given)));
            Ok::<Option<Figure>, NotDescribed>(given.or(base.filter(|_| is_alike)))
        };
        let owned = |text: &str| -> &'static str { text.to_owned().leak() };
        let name = self.text("name").map_or("custom", owned);
        let gpu = Gpu {
            name,
            card: self.text("card").map_or_else(|| owned(&format!("Plimsoll {name}")), owned),
            memory_bytes: memory.unwrap_or(base.memory_bytes),
            memory_source: self.text("source").map_or("given", owned),
            capability: capability_of,
            multiprocessors: scaled.sms,
            l2_bytes: self.value("l2", "96MiB", bytes_32)?.unwrap_or(base.l2_bytes),
            shared_bytes_per_multiprocessor: self
                .value("shared", "100KiB", bytes_32)?
                .unwrap_or(base.shared_bytes_per_multiprocessor),
            shared_bytes_per_block: self
                .value("shared_block", "99KiB", bytes_32)?
                .unwrap_or(base.shared_bytes_per_block),
            threads_per_multiprocessor: threads.unwrap_or(base.threads_per_multiprocessor),
            blocks_per_multiprocessor: self
                .value("blocks", "24", number)?
                .unwrap_or(base.blocks_per_multiprocessor),
            bus_bits: self.value("bus", "384", number)?.unwrap_or(base.bus_bits),
            clock_khz: self.value("clock", "2505000", number)?.unwrap_or(base.clock_khz),
            memory_clock_khz: self
                .value("memory_clock", "10001000", number)?
                .unwrap_or(base.memory_clock_khz),
            power_watts: self.value("power", "300", |text| text.parse().ok())?.unwrap_or(base.power_watts),
            bandwidth: Bandwidth {
                memory_bytes_per_s: per_s("bandwidth", base.bandwidth.memory_bytes_per_s)?,
                pcie_bytes_per_s: per_s("pcie", base.bandwidth.pcie_bytes_per_s)?,
                nvlink_bytes_per_s: nvlink,
            },
            flops: FlopRates {
                f64: self.value("f64", "1.4", flops)?.unwrap_or_else(|| scaled.rate(base.flops.f64)),
                f32: self.value("f32", "91", flops)?.unwrap_or_else(|| scaled.rate(base.flops.f32)),
                tf32: wide("tf32", base.flops.tf32)?,
                f16: tflops.unwrap_or_else(|| scaled.rate(base.flops.f16)),
                bf16: wide("bf16", base.flops.bf16)?,
                fp8: wide("fp8", base.flops.fp8)?,
                i8: wide("i8", base.flops.i8)?,
            },
            datasheet: "given",
            pool: self.value("pool", "own (or coherent, host)", pool)?.unwrap_or(base.pool),
            known: KnownBytes {
                reserve: known(
                    "reserve",
                    base.known.reserve,
                    memory.is_none_or(|it| it == base.memory_bytes),
                )?,
                context: known("context", base.known.context, is_same_size)?,
                streams: known("streams", base.known.streams, is_same_chip)?,
                kernels: known("kernels", base.known.kernels, is_same_chip)?,
                kernels_eager: known("kernels_eager", base.known.kernels_eager, is_same_chip)?,
                cublas: known("cublas", base.known.cublas, is_same_chip)?,
                cudnn: known("cudnn", base.known.cudnn, is_same_chip)?,
                cufft: known("cufft", base.known.cufft, is_same_chip)?,
                cusolver: known("cusolver", base.known.cusolver, is_same_chip)?,
                cusparse: known("cusparse", base.known.cusparse, is_same_chip)?,
                nccl: known("nccl", base.known.nccl, is_same_chip)?,
            },
        };
        let asked = ["memory", "cc", "sms", "threads", "bandwidth", "tflops"];
        let assumed: Vec<&str> = asked.into_iter().filter(|key| self.text(key).is_none()).collect();
        let base = (!assumed.is_empty()).then_some(base.name);
        Ok(Described { gpu, base, assumed })
    }
}

/// How missing FLOP/s are scaled from those of the listed GPU: in proportion to the 16-bit rate if that is given,
/// otherwise to the number of multiprocessors.
struct Scale {
    sms: i32,
    of: i32,
    tflops: Option<u64>,
    f16: u64,
}

impl Scale {
    fn rate(&self, per_s: u64) -> u64 {
        let (part, whole) = match self.tflops {
            Some(tflops) => (u128::from(tflops), u128::from(self.f16)),
            None => (u128::from(self.sms.unsigned_abs()), u128::from(self.of.unsigned_abs())),
        };
        u64::try_from(u128::from(per_s) * part / whole.max(1)).unwrap_or(u64::MAX)
    }
}

/// A property, by its name or an alternative name.
fn known(key: &str) -> Option<&'static str> {
    const ALL: [(&str, &[&str]); 38] = [
        ("memory", &["mem"]),
        ("cc", &["sm", "capability"]),
        ("sms", &[]),
        ("threads", &[]),
        ("bandwidth", &["bw"]),
        ("tflops", &["f16"]),
        ("like", &[]),
        ("name", &[]),
        ("card", &[]),
        ("source", &[]),
        ("l2", &[]),
        ("shared", &[]),
        ("shared_block", &[]),
        ("blocks", &[]),
        ("bus", &[]),
        ("clock", &[]),
        ("memory_clock", &[]),
        ("power", &[]),
        ("pcie", &[]),
        ("nvlink", &[]),
        ("f64", &[]),
        ("f32", &[]),
        ("tf32", &[]),
        ("bf16", &[]),
        ("fp8", &[]),
        ("i8", &[]),
        ("pool", &[]),
        ("basis", &[]),
        ("reserve", &[]),
        ("context", &[]),
        ("streams", &[]),
        ("kernels", &[]),
        ("kernels_eager", &[]),
        ("cublas", &[]),
        ("cudnn", &[]),
        ("cufft", &[]),
        ("cusolver", &[]),
        ("cusparse", &[]),
    ];
    if key == "nccl" {
        return Some("nccl");
    }
    ALL.iter().find(|(name, others)| *name == key || others.contains(&key)).map(|(name, _)| *name)
}

fn pool(text: &str) -> Option<Pool> {
    match text {
        "own" => Some(Pool::Own),
        "coherent" => Some(Pool::Coherent),
        "host" => Some(Pool::Host),
        _ => None,
    }
}

/// A compute capability, such as `8.9`.
fn version(text: &str) -> Option<(i32, i32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse::<u8>().ok()?.into(), minor.parse::<u8>().ok()?.into()))
}

/// A number of bytes with a unit: `48GiB`, `15.9GB`, `552402944`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let scale: u64 = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return None,
    };
    match text[..end].parse::<u64>() {
        Ok(number) => number.checked_mul(scale),
        Err(_) => scaled(&text[..end], scale as f64),
    }
}

/// A rate in units of `unit` per second. A unit in the text takes precedence: `960GB/s`, `3.35TB/s`.
fn rate(text: &str, unit: f64) -> Option<u64> {
    if let Ok(per_s) = text.trim_end_matches("/s").parse::<f64>() {
        return scaled(&per_s.to_string(), unit).filter(|it| *it > 0);
    }
    bytes(text.trim().strip_suffix("/s")?).filter(|it| *it > 0)
}

fn scaled(number: &str, scale: f64) -> Option<u64> {
    let value = number.parse::<f64>().ok()? * scale;
    (value.is_finite() && (0.0..9e18).contains(&value)).then_some(value.round() as u64)
}

/// Describes a GPU with all its properties, so that [`described`] returns the same GPU.
///
/// ```
/// let gpu = plimsoll_gpu::named("H100")?;
/// let text = plimsoll_gpu::text(gpu);
/// assert!(text.starts_with("custom:name=H100,card=NVIDIA H100 80GB HBM3,memory=85017493504,"));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn text(gpu: &Gpu) -> String {
    let plain = |text: &str| text.replace([',', '='], " ");
    let per_s = |per_s: Option<u64>| per_s.map_or_else(|| "none".to_owned(), |it| format!("{it}B/s"));
    let Gpu { bandwidth, flops, known, .. } = gpu;
    let pool = match gpu.pool {
        Pool::Own => "own",
        Pool::Coherent => "coherent",
        Pool::Host => "host",
    };
    let mut parts = vec![
        format!("name={}", plain(gpu.name)),
        format!("card={}", plain(gpu.card)),
        format!("memory={}", gpu.memory_bytes),
        format!("source={}", plain(gpu.memory_source)),
        format!("cc={}.{}", gpu.capability.0, gpu.capability.1),
        format!("sms={}", gpu.multiprocessors),
        format!("threads={}", gpu.threads_per_multiprocessor),
        format!("l2={}", gpu.l2_bytes),
        format!("shared={}", gpu.shared_bytes_per_multiprocessor),
        format!("shared_block={}", gpu.shared_bytes_per_block),
        format!("blocks={}", gpu.blocks_per_multiprocessor),
        format!("bus={}", gpu.bus_bits),
        format!("clock={}", gpu.clock_khz),
        format!("memory_clock={}", gpu.memory_clock_khz),
        format!("power={}", gpu.power_watts),
        format!("bandwidth={}", per_s(Some(bandwidth.memory_bytes_per_s))),
        format!("pcie={}", per_s(Some(bandwidth.pcie_bytes_per_s))),
        format!("nvlink={}", per_s(bandwidth.nvlink_bytes_per_s)),
        format!("f64={}", per_s(Some(flops.f64))),
        format!("f32={}", per_s(Some(flops.f32))),
        format!("tf32={}", per_s(flops.tf32)),
        format!("tflops={}", per_s(Some(flops.f16))),
        format!("bf16={}", per_s(flops.bf16)),
        format!("fp8={}", per_s(flops.fp8)),
        format!("i8={}", per_s(flops.i8)),
        format!("pool={pool}"),
    ];
    let all = [
        ("reserve", known.reserve),
        ("context", known.context),
        ("streams", known.streams),
        ("kernels", known.kernels),
        ("kernels_eager", known.kernels_eager),
        ("cublas", known.cublas),
        ("cudnn", known.cudnn),
        ("cufft", known.cufft),
        ("cusolver", known.cusolver),
        ("cusparse", known.cusparse),
        ("nccl", known.nccl),
    ];
    let figures = || all.iter().filter_map(|(name, figure)| Some((name, (*figure)?)));
    parts.extend(figures().next().map(|(_, figure)| format!("basis={}", figure.basis)));
    parts.extend(figures().map(|(name, figure)| format!("{name}={}", figure.bytes)));
    format!("{CUSTOM}{}", parts.join(","))
}

#[cfg(test)]
mod tests;
