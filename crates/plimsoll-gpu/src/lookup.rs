//! Look-ups in the table: [`named`] by name, [`of_capability`] by compute capability, [`nearest`] by memory, [`nearest_of`] by both.

use std::error::Error;
use std::fmt;

use crate::{GPUS, Gpu, vendor};

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
                let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.name).collect();
                write!(f, "not a known GPU; known are {}", names.join(", "))
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

/// The GPU with this name. Case, spaces and hyphens are ignored, the vendor's name may precede it, and some whole words of the
/// name are enough if they match only one GPU: `4090`, but not `H20` for an H200, which is another GPU.
///
/// ```
/// assert_eq!(plimsoll_gpu::named("rtx 4090")?.name, "RTX-4090");
/// assert!(plimsoll_gpu::named("H20").is_err());
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

/// Whether some words of a name in a row are these. Behind another word a size needs no unit: `A100-40`, but not `40`.
fn has_words(name: &str, these: &str) -> bool {
    let words: Vec<String> = name.split([' ', '-']).map(plain).collect();
    let runs = (0..words.len()).flat_map(|first| (first..words.len()).map(move |last| first..=last));
    let mut runs = runs.map(|run| (words[run.clone()].concat(), run.count() > 1));
    !these.is_empty()
        && runs.any(|(run, several)| run == these || several && run.strip_suffix("gb") == Some(these))
}

fn plain(name: &str) -> String {
    name.replace([' ', '-', '_'], "").to_ascii_lowercase()
}

/// The first GPU of this compute capability in the table; if there is none, of the next lower capability in the table.
///
/// ```
/// assert_eq!(plimsoll_gpu::of_capability((8, 7)).map(|gpu| gpu.name), Some("RTX-3090"));
/// assert_eq!(plimsoll_gpu::of_capability((5, 2)), None);
/// ```
pub fn of_capability(capability: (i32, i32)) -> Option<&'static Gpu> {
    all_of(capability).next()
}

/// The GPU with memory nearest to this many bytes, of those that have this compute capability; if there is none, of those with
/// the next lower capability in the table. On a tie, the first.
///
/// ```
/// assert_eq!(plimsoll_gpu::nearest_of(5 << 30, (9, 0)).map(|gpu| gpu.name), Some("H100"));
/// assert_eq!(plimsoll_gpu::nearest_of(140 << 30, (9, 0)).map(|gpu| gpu.name), Some("H200"));
/// assert_eq!(plimsoll_gpu::nearest_of(5 << 30, (5, 2)), None);
/// ```
pub fn nearest_of(memory_bytes: u64, capability: (i32, i32)) -> Option<&'static Gpu> {
    all_of(capability).min_by_key(|gpu| gpu.memory_bytes.abs_diff(memory_bytes))
}

/// All of a compute capability, or of the next lower one in the table.
fn all_of(capability: (i32, i32)) -> impl Iterator<Item = &'static Gpu> {
    let highest = GPUS.iter().map(|gpu| gpu.capability).filter(|&it| it <= capability).max();
    GPUS.iter().filter(move |gpu| Some(gpu.capability) == highest)
}

/// The GPU with memory nearest to this many bytes, of those with at least this compute capability; on a tie, the first.
///
/// ```
/// assert_eq!(plimsoll_gpu::nearest(80 << 30, (9, 0)).map(|gpu| gpu.name), Some("H100"));
/// ```
pub fn nearest(memory_bytes: u64, least_capability: (i32, i32)) -> Option<&'static Gpu> {
    let able = GPUS.iter().filter(|gpu| gpu.capability >= least_capability);
    able.min_by_key(|gpu| gpu.memory_bytes.abs_diff(memory_bytes))
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
        ] {
            assert_eq!(named(asked).map(|gpu| gpu.name), Ok(name), "{asked}");
        }
        for other in ["H9000", "H20", "L40", "A10", "P10", "RTX 6000", "GB", "16", "80"] {
            assert_eq!(named(other), Err(UnknownGpu::NotListed), "{other}");
        }
        assert_eq!(named(""), Err(UnknownGpu::NotListed));
        assert_eq!(named("nvidia"), Err(UnknownGpu::NotListed));
        assert!(UnknownGpu::NotListed.to_string().contains("known are H200, "));
    }

    #[test]
    fn every_name_finds_its_own_row() {
        for gpu in GPUS {
            assert_eq!(named(gpu.name), Ok(gpu));
        }
    }
}
