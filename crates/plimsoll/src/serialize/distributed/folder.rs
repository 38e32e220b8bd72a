//! Where checkpoints of several ranks are stored: the folders `step-N`, and the link `latest`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::manifest::MANIFEST;

/// The link to the newest checkpoint.
pub(super) const LATEST: &str = "latest";
/// The folder of a checkpoint with the model's files.
pub(super) const MODEL: &str = "model";
/// The folder of a checkpoint with the files of the optimizer's state.
pub(super) const OPTIMIZER: &str = "optimizer";

/// The name of a rank's file, as in PyTorch.
pub(super) fn file_name(rank: usize) -> String {
    format!("shard-{:05}-model-00001-of-00001.safetensors", rank + 1)
}

/// Whether a file is named like PyTorch's sharded files.
pub(super) fn is_file_name(name: &str) -> bool {
    name.starts_with("shard-") && name.ends_with(".safetensors")
}

/// The name of a step's folder; `nth` counts the folders of the same step.
pub(super) fn step_name(step: u64, nth: usize) -> String {
    match nth {
        0 => format!("step-{step:08}"),
        nth => format!("step-{step:08}-{}", nth + 1),
    }
}

/// The step and count of a folder with such a name.
fn step_of(name: &str) -> Option<(u64, usize)> {
    let number = name.strip_prefix("step-")?;
    let (step, nth) = match number.split_once('-') {
        Some((step, nth)) => (step, nth.parse::<usize>().ok()?.checked_sub(1)?),
        None => (number, 0),
    };
    let step = step.parse().ok()?;
    (step_name(step, nth) == name).then_some((step, nth))
}

/// All folders named after a step, complete or not, with their numbers; the last step comes first.
pub(super) fn steps_in(run: &Path) -> Vec<((u64, usize), PathBuf)> {
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    let mut found: Vec<((u64, usize), PathBuf)> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some((step_of(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found
}

/// Whether a checkpoint in this folder is complete.
pub(super) fn is_complete(folder: &Path) -> bool {
    folder.join(MANIFEST).is_file()
}

/// The complete checkpoints that several ranks have saved into a folder: first the one that the link `latest` points
/// to, then the others, from the last step to the first. Each is a folder that
/// [`Checkpoint::open`](crate::serialize::Checkpoint::open) opens.
///
/// ```
/// assert!(plimsoll::serialize::checkpoints_in("/no/such/folder").is_empty());
/// ```
pub fn checkpoints_in(run: impl AsRef<Path>) -> Vec<PathBuf> {
    let run = run.as_ref();
    let latest = latest(run);
    let mut found: Vec<PathBuf> = latest.iter().cloned().collect();
    let all = steps_in(run).into_iter().map(|(_, folder)| folder).filter(|folder| is_complete(folder));
    found.extend(all.filter(|folder| Some(folder) != latest.as_ref()));
    found
}

/// The checkpoint that the link points to, if it is complete.
fn latest(run: &Path) -> Option<PathBuf> {
    let target = fs::read_link(run.join(LATEST)).ok()?;
    let folder = run.join(target);
    is_complete(&folder).then_some(folder)
}

/// The checkpoint that a path refers to: the folder itself, or the newest checkpoint in it.
pub(super) fn find(path: &Path) -> Option<PathBuf> {
    if is_complete(path) { Some(path.to_owned()) } else { checkpoints_in(path).into_iter().next() }
}

/// Removes a checkpoint. It stops counting as complete before its first file is removed.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(MANIFEST)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::remove_dir_all(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_steps_have_only_names_that_we_write() {
        for (name, expected) in [
            ("step-00001200", Some((1200, 0))),
            ("step-00001200-2", Some((1200, 1))),
            ("step-123456789", Some((123_456_789, 0))),
            ("step-1200", None),
            ("step-00001200-1", None),
            ("step-00001200-x", None),
            ("step-", None),
            ("steps", None),
        ] {
            assert_eq!(step_of(name), expected, "{name}");
        }
    }
}
