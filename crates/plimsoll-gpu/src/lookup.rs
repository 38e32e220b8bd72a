//! How a GPU is found in the table: [`named`] by its name, [`of_capability`] by its compute capability, [`nearest`] by
//! its memory.

use std::error::Error;
use std::fmt;

use crate::{GPUS, Gpu, vendor};

/// Why no GPU has the name that was given.
///
/// ```
/// use plimsoll_gpu::{UnknownGpu, named};
/// assert!(matches!(named("MI300X"), Err(UnknownGpu::OtherVendor { vendor: "AMD", .. })));
/// assert_eq!(named("A100"), Err(UnknownGpu::Ambiguous { names: vec!["A100-80GB", "A100-40GB"] }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownGpu {
    /// It is not in the table.
    NotListed,
    /// It is a part of several names.
    Ambiguous {
        /// Those names, in the table's order.
        names: Vec<&'static str>,
    },
    /// It is not NVIDIA's.
    OtherVendor {
        /// Whose it is.
        vendor: &'static str,
        /// Its memory, where that is known.
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
                "not an NVIDIA GPU but one of {vendor}'s: PyTorch for it is another build, with other kernels"
            ),
        }
    }
}

impl Error for UnknownGpu {}

/// The GPU of this name. Case, spaces and hyphens do not matter, the vendor's name may stand before it, and a part of
/// a name is enough if only one GPU has it.
///
/// ```
/// assert_eq!(plimsoll_gpu::named("rtx 4090")?.name, "RTX-4090");
/// assert_eq!(plimsoll_gpu::named("NVIDIA A100-SXM4-80GB")?.name, "A100-80GB");
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
///
/// # Errors
///
/// [`UnknownGpu`]: no GPU has it, or several.
pub fn named(name: &str) -> Result<&'static Gpu, UnknownGpu> {
    let asked = plain(name);
    if let Some(gpu) = GPUS.iter().find(|gpu| plain(gpu.name) == asked || plain(gpu.card) == asked) {
        return Ok(gpu);
    }
    if let Some((vendor, memory_bytes)) = vendor::of(&asked) {
        return Err(UnknownGpu::OtherVendor { vendor, memory_bytes });
    }
    let part = asked.trim_start_matches("nvidia");
    let has_part = |name: &str| !part.is_empty() && plain(name).contains(part);
    let alike: Vec<_> = GPUS.iter().filter(|gpu| has_part(gpu.name) || has_part(gpu.card)).collect();
    match alike.as_slice() {
        [gpu] => Ok(gpu),
        [] => Err(UnknownGpu::NotListed),
        several => Err(UnknownGpu::Ambiguous { names: several.iter().map(|gpu| gpu.name).collect() }),
    }
}

fn plain(name: &str) -> String {
    name.replace([' ', '-', '_'], "").to_ascii_lowercase()
}

/// The first listed GPU of this compute capability; if there is none, of the next lower one that is listed.
///
/// ```
/// assert_eq!(plimsoll_gpu::of_capability((8, 7)).map(|gpu| gpu.name), Some("RTX-3090"));
/// assert_eq!(plimsoll_gpu::of_capability((5, 2)), None);
/// ```
pub fn of_capability(capability: (i32, i32)) -> Option<&'static Gpu> {
    let lower = GPUS.iter().filter(|gpu| gpu.capability <= capability);
    let highest = lower.clone().map(|gpu| gpu.capability).max()?;
    lower.clone().find(|gpu| gpu.capability == highest)
}

/// The listed GPU whose memory is nearest to so many bytes, of those that have at least this compute capability; of two
/// equally near, the first.
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
        assert_eq!(named("H9000"), Err(UnknownGpu::NotListed));
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
