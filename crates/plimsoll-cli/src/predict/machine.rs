//! The GPU of this machine, for a command without `--gpu`.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::exit::{Exit, Failure};
use crate::output;

/// A GPU in the form of `--gpu` and `--cc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    /// A name in the table, or a size.
    pub(crate) gpu: String,
    pub(crate) cc: Option<String>,
}

/// The GPU that the options name. Without `--gpu`, it is this machine's first GPU.
///
/// # Errors
/// If no GPU is named, and this machine has none.
pub(crate) fn named(gpu: Option<&str>, cc: Option<&str>) -> Result<Named, Failure> {
    static FOUND: OnceLock<Option<Named>> = OnceLock::new();
    let cc = cc.map(str::to_owned);
    if let Some(gpu) = gpu {
        return Ok(Named { gpu: gpu.to_owned(), cc });
    }
    let found = FOUND.get_or_init(|| {
        let found = smi().or_else(driver);
        if let Some(Named { gpu, cc }) = &found {
            let cc = cc.as_ref().map_or_else(String::new, |cc| format!(" --cc {cc}"));
            output::progress(&format!("no --gpu: using this machine's GPU, --gpu {gpu}{cc}"));
        }
        found
    });
    match found {
        Some(found) => Ok(Named { cc: cc.or_else(|| found.cc.clone()), ..found.clone() }),
        None => Err(Failure::new(
            Exit::Usage,
            "no GPU is named, and this machine has none. Name it: --gpu RTX-4090 (`plimsoll predict --list` prints the names), or \
             give its memory: --gpu 24GiB, with --cc 8.9 for its compute capability",
        )),
    }
}

/// The first GPU, according to `nvidia-smi`.
fn smi() -> Option<Named> {
    let output = Command::new("nvidia-smi")
        .args(["--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    row(String::from_utf8_lossy(&output.stdout).lines().next()?)
}

/// A line such as `NVIDIA GeForce RTX 4090, 24564, 8.9`.
fn row(line: &str) -> Option<Named> {
    let mut fields = line.split(',').map(str::trim);
    let (name, memory) = (fields.next()?, fields.next()?);
    if let Some(listed) = listed(name) {
        return Some(listed);
    }
    let mebibytes: u64 = memory.parse().ok()?;
    let is_number = |text: &&str| text.split_once('.').is_some_and(|(major, _)| major.parse::<u8>().is_ok());
    let cc = fields.next().filter(is_number).map(str::to_owned);
    Some(Named { gpu: format!("{mebibytes}MiB"), cc })
}

/// The driver's description in `/proc`, if `nvidia-smi` is not installed.
fn driver() -> Option<Named> {
    let entries = fs::read_dir("/proc/driver/nvidia/gpus").ok()?;
    let mut folders: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let text = fs::read_to_string(folders.first()?.join("information")).ok()?;
    listed(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim())
}

fn listed(name: &str) -> Option<Named> {
    let gpu = plimsoll_gpu::named(name).ok()?;
    Some(Named { gpu: gpu.name.to_owned(), cc: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_found_by_its_name_and_another_one_by_its_size() {
        let found = |line| row(line).map(|it| (it.gpu, it.cc));
        assert_eq!(found("NVIDIA GeForce RTX 4090, 24564, 8.9"), Some(("RTX-4090".to_owned(), None)));
        assert_eq!(
            found("NVIDIA Thing 7, 24564, 8.9"),
            Some(("24564MiB".to_owned(), Some("8.9".to_owned())))
        );
        assert_eq!(found("NVIDIA Thing 7, 24564, [N/A]"), Some(("24564MiB".to_owned(), None)));
        assert_eq!(found("NVIDIA Thing 7, [N/A], 8.9"), None);
        assert_eq!(found("No devices were found"), None);
    }

    #[test]
    fn a_gpu_that_is_named_is_that_one() {
        let named = named(Some("T4"), None).unwrap();
        assert_eq!((named.gpu.as_str(), named.cc), ("T4", None));
    }
}
