//! Look-ups in the table: [`named`] by name, [`of_capability`] by compute capability, [`nearest`] by memory, [`nearest_of`] by
//! both.
//!
//! Note [One row per size]: a lookup by memory size skips every row that has the same compute capability as an earlier row and,
//! within one percent, the same memory. The sizes that drivers report differ by this much, so a choice between such rows would
//! be arbitrary: `24GiB` means an RTX-3090, not an RTX-A5000.

use std::error::Error;
use std::fmt;

use crate::{GPUS, Gpu, Pool, vendor};

/// Why a name matches no single GPU.
///
/// ```
/// use plimsoll_gpu::{UnknownGpu, named};
/// assert!(matches!(named("MI300X"), Err(UnknownGpu::OtherVendor { vendor: "AMD", .. })));
/// assert_eq!(named("A100"), Err(UnknownGpu::Ambiguous { names: vec!["A100-80GB", "A100-40GB"] }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownGpu {
    /// The name is not in the table.
    NotListed,
    /// The name is a part of several names.
    Ambiguous {
        /// The matching names, in the table's order.
        names: Vec<&'static str>,
    },
    /// The name is another vendor's GPU.
    OtherVendor {
        /// The vendor.
        vendor: &'static str,
        /// The device's memory, if it is known.
        memory_bytes: Option<u64>,
    },
}

impl fmt::Display for UnknownGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownGpu::NotListed => {
                // A semicolon between compute capabilities makes the list easier to read.
                let groups = GPUS.chunk_by(|gpu, next| gpu.capability == next.capability);
                let names = |group: &[Gpu]| group.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ");
                let groups: Vec<String> = groups.map(names).collect();
                write!(f, "not a known GPU; known are {}", groups.join("; "))
            }
            UnknownGpu::Ambiguous { names } => write!(f, "could be {}", names.join(", ")),
            UnknownGpu::OtherVendor { vendor, .. } => write!(
                f,
                "a GPU of {vendor}, not of NVIDIA: PyTorch for it is a different build with different kernels"
            ),
        }
    }
}

impl Error for UnknownGpu {}

/// The GPU with this name. Case, spaces and hyphens are ignored, the vendor's name may precede it, and a few complete words
/// of the name suffice if they match only one GPU: `4090`, but not `5070` for an RTX-5070-Ti, because an RTX 5070 is another GPU.
///
/// ```
/// assert_eq!(plimsoll_gpu::named("rtx 4090")?.name, "RTX-4090");
/// assert!(plimsoll_gpu::named("5070").is_err());
/// assert_eq!(plimsoll_gpu::named("NVIDIA A100-SXM4-80GB")?.name, "A100-80GB");
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
///
/// # Errors
///
/// [`UnknownGpu`]: no GPU matches, or several do.
pub fn named(name: &str) -> Result<&'static Gpu, UnknownGpu> {
    let asked = plain(name);
    if let Some(gpu) = GPUS.iter().find(|gpu| plain(gpu.name) == asked || plain(gpu.card) == asked) {
        return Ok(gpu);
    }
    if let Some((vendor, memory_bytes)) = vendor::of(&asked) {
        return Err(UnknownGpu::OtherVendor { vendor, memory_bytes });
    }
    let part = asked.trim_start_matches("nvidia");
    let alike = |gpu: &&Gpu| has_words(gpu.name, part) || has_words(gpu.card, part);
    let alike: Vec<_> = GPUS.iter().filter(alike).collect();
    match alike.as_slice() {
        [gpu] => Ok(gpu),
        [] => Err(UnknownGpu::NotListed),
        several => Err(UnknownGpu::Ambiguous { names: several.iter().map(|gpu| gpu.name).collect() }),
    }
}

/// Words that belong to the name of a model: an RTX 5070 is not an RTX 5070 Ti.
const OF_A_MODEL: [&str; 4] = ["pro", "ti", "super", "ada"];

/// Whether consecutive words of `name` are equal to `these`, with none of [`OF_A_MODEL`] directly before or after them. A size
/// that follows another word may omit its unit: `A100-40`, but not `40`.
fn has_words(name: &str, these: &str) -> bool {
    let words: Vec<String> = name.split([' ', '-']).map(plain).collect();
    let is_model = |word: Option<&String>| word.is_some_and(|word| OF_A_MODEL.contains(&word.as_str()));
    let matches = |first: usize, last: usize| {
        let run = words[first..=last].concat();
        let is_these = run == these || first < last && run.strip_suffix("gb") == Some(these);
        is_these && !is_model(words[..first].last()) && !is_model(words.get(last + 1))
    };
    !these.is_empty() && (0..words.len()).any(|first| (first..words.len()).any(|last| matches(first, last)))
}

fn plain(name: &str) -> String {
    name.replace([' ', '-', '_'], "").to_ascii_lowercase()
}

/// The first GPU of this compute capability in the table. If there is none, the first GPU of the next lower capability in the
/// table.
///
/// ```
/// assert_eq!(plimsoll_gpu::of_capability((8, 7)).map(|gpu| gpu.name), Some("RTX-3090"));
/// assert_eq!(plimsoll_gpu::of_capability((5, 2)), None);
/// ```
pub fn of_capability(capability: (i32, i32)) -> Option<&'static Gpu> {
    all_of(capability).next()
}

/// The GPU of this compute capability whose memory is closest to this many bytes. If no GPU has this capability, one of the next
/// lower capability in the table. On a tie, or if memory sizes differ by less than one percent, the first.
///
/// ```
/// assert_eq!(plimsoll_gpu::nearest_of(5 << 30, (9, 0)).map(|gpu| gpu.name), Some("H100"));
/// assert_eq!(plimsoll_gpu::nearest_of(140 << 30, (9, 0)).map(|gpu| gpu.name), Some("H200"));
/// assert_eq!(plimsoll_gpu::nearest_of(5 << 30, (5, 2)), None);
/// ```
pub fn nearest_of(memory_bytes: u64, capability: (i32, i32)) -> Option<&'static Gpu> {
    nearest_in(all_of(capability), memory_bytes)
}

/// All GPUs of a compute capability, or of the next lower one in the table.
fn all_of(capability: (i32, i32)) -> impl Iterator<Item = &'static Gpu> {
    let highest = GPUS.iter().map(|gpu| gpu.capability).filter(|&it| it <= capability).max();
    GPUS.iter().filter(move |gpu| Some(gpu.capability) == highest)
}

/// The GPU whose memory is closest to this many bytes, among those of at least this compute capability. On a tie, the first. Of
/// GPUs that share a capability and whose memory differs by less than one percent, only the first counts.
///
/// ```
/// assert_eq!(plimsoll_gpu::nearest(80 << 30, (9, 0)).map(|gpu| gpu.name), Some("H100"));
/// ```
pub fn nearest(memory_bytes: u64, least_capability: (i32, i32)) -> Option<&'static Gpu> {
    // A size alone means a GPU with memory of its own.
    let own = GPUS.iter().filter(|gpu| gpu.pool != Pool::Host);
    nearest_in(own.filter(|gpu| gpu.capability >= least_capability), memory_bytes)
}

/// The GPU among these whose memory is closest to this many bytes. See Note [One row per size].
fn nearest_in(gpus: impl Iterator<Item = &'static Gpu>, memory_bytes: u64) -> Option<&'static Gpu> {
    gpus.filter(|gpu| !is_repeated(gpu)).min_by_key(|gpu| gpu.memory_bytes.abs_diff(memory_bytes))
}

/// Whether an earlier row has the same capability and, within one percent, the same memory.
fn is_repeated(gpu: &Gpu) -> bool {
    let earlier = GPUS.iter().take_while(|other| other.name != gpu.name);
    let mut alike = earlier.filter(|other| other.capability == gpu.capability);
    alike.any(|other| other.memory_bytes.abs_diff(gpu.memory_bytes) < gpu.memory_bytes / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_as_people_name_it() {
        for (asked, name) in [
            ("h200", "H200"),
            ("RTX 4090", "RTX-4090"),
            ("4090", "RTX-4090"),
            ("A100-40", "A100-40GB"),
            ("a10g", "A10G"),
            ("RTX A6000", "A6000"),
            ("nvidia l4", "L4"),
            ("Tesla P100", "P100"),
            ("b200", "B200"),
            ("GB200", "GB200"),
            ("3060", "RTX-3060"),
            ("RTX 3060", "RTX-3060"),
            ("rtx3060", "RTX-3060"),
            ("NVIDIA GeForce RTX 4080", "RTX-4080"),
            ("H100", "H100"),
            ("H100 PCIe", "H100-PCIe"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("H20", "H20"),
            ("L40", "L40"),
            ("4070", "RTX-4070"),
            ("GeForce RTX 4070", "RTX-4070"),
            ("4070 Ti Super", "RTX-4070-Ti-SUPER"),
            ("4060 Ti 16", "RTX-4060-Ti-16GB"),
            ("5070 Ti", "RTX-5070-Ti"),
            ("2080ti", "RTX-2080-Ti"),
            ("A5000", "RTX-A5000"),
            ("RTX 6000 Ada", "RTX-6000-Ada"),
            ("RTX PRO 6000", "RTX-PRO-6000"),
            ("PRO 6000 Blackwell", "RTX-PRO-6000"),
            ("B300", "B300"),
            ("NVIDIA GB10", "GB10"),
            ("NVIDIA GH200 480GB", "GH200"),
        ] {
            assert_eq!(named(asked).map(|gpu| gpu.name), Ok(name), "{asked}");
        }
        for other in ["H9000", "H10", "L20", "A10", "P10", "RTX 6000", "GB", "16", "80"] {
            assert_eq!(named(other), Err(UnknownGpu::NotListed), "{other}");
        }
        // Other GPU models, which the table does not have.
        for other in ["5070", "RTX 4070 Ti", "RTX 4060", "2080", "RTX 2080", "6000", "RTX 5000 Ada"] {
            assert_eq!(named(other), Err(UnknownGpu::NotListed), "{other}");
        }
        assert_eq!(named(""), Err(UnknownGpu::NotListed));
        assert_eq!(named("nvidia"), Err(UnknownGpu::NotListed));
        let why = UnknownGpu::NotListed.to_string();
        assert!(
            why.contains("known are H200, H100, H100-PCIe, H20, GH200; B200, GB200; B300; RTX-5090, "),
            "{why}"
        );
    }

    #[test]
    fn every_name_finds_its_own_row() {
        for gpu in GPUS {
            assert_eq!(named(gpu.name), Ok(gpu));
        }
    }
    #[test]
    fn the_first_gpu_of_a_capability_describes_it() {
        for (capability, name) in [
            ((6, 0), "P100"),
            ((7, 0), "V100-32GB"),
            ((7, 5), "T4"),
            ((8, 0), "A100-80GB"),
            ((8, 6), "RTX-3090"),
            ((8, 9), "RTX-4090"),
            ((9, 0), "H200"),
            ((10, 0), "B200"),
            ((10, 3), "B300"),
            ((12, 0), "RTX-5090"),
            ((12, 1), "GB10"),
        ] {
            assert_eq!(of_capability(capability).map(|gpu| gpu.name), Some(name), "{capability:?}");
        }
    }

    #[test]
    fn a_size_finds_the_first_gpu_that_is_sold_with_it() {
        let gib = |number: u64| number << 30;
        for (bytes, name) in [
            (gib(8), "RTX-3070"),
            (gib(10), "RTX-3080"),
            (gib(12), "RTX-3060"),
            (gib(16), "RTX-4080"),
            (gib(24), "RTX-3090"),
            (gib(32), "RTX-5090"),
            (gib(40), "A100-40GB"),
            (gib(48), "A6000"),
            (80_000_000_000, "A100-80GB"),
            (gib(80), "H100"),
            (gib(96), "H20"),
            (gib(128), "H200"),
            (gib(141), "H200"),
            (gib(180), "B200"),
            (gib(288), "B300"),
        ] {
            assert_eq!(nearest(bytes, (8, 0)).map(|gpu| gpu.name), Some(name), "{bytes}");
        }
        for (bytes, capability, name) in [
            (gib(11), (7, 5), "RTX-2080-Ti"),
            (gib(24), (8, 0), "A30"),
            (gib(24), (8, 6), "RTX-3090"),
            (gib(16), (8, 9), "RTX-4080"),
            (gib(48), (8, 9), "RTX-6000-Ada"),
            (gib(5), (9, 0), "H100"),
            (gib(96), (12, 0), "RTX-PRO-6000"),
        ] {
            assert_eq!(nearest_of(bytes, capability).map(|gpu| gpu.name), Some(name), "{bytes}");
        }
    }
}
