//! What ranks tell each other when they save together.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use plimsoll_tensor::{Error, ProcessGroup, Result};

use crate::state_dict::SerializeError;

/// The texts of all ranks, in rank order.
pub(super) fn gather_texts(group: &ProcessGroup, own: &str, label: &str) -> Result<Vec<String>> {
    let lengths = group.all_gather_bytes(&(own.len() as u64).to_le_bytes(), label)?;
    let length = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes) as usize;
    let lengths: Vec<usize> = lengths.iter().map(length).collect();
    let mut padded = own.as_bytes().to_vec();
    padded.resize(lengths.iter().copied().max().unwrap_or(0), 0);
    let all = group.all_gather_bytes(&padded, label)?;
    let text = |(bytes, len): (&Vec<u8>, usize)| String::from_utf8_lossy(&bytes[..len]).into_owned();
    Ok(all.iter().zip(lengths).map(text).collect())
}

/// Whether all ranks succeeded in a step; `own` is this rank's error, if it failed.
///
/// # Errors
/// This rank's error, or else the first one of another rank.
pub(super) fn all_succeeded(group: &ProcessGroup, own: Option<Error>, label: &str) -> Result<()> {
    let all = gather_texts(group, &own.as_ref().map(ToString::to_string).unwrap_or_default(), label)?;
    match (own, all.iter().enumerate().find(|(_, why)| !why.is_empty())) {
        (Some(own), _) => Err(own),
        (None, Some((rank, why))) => Err(Error::argument("checkpoint", format!("rank {rank}: {why}"))),
        (None, None) => Ok(()),
    }
}

/// Whether all ranks see the same folder. All ranks must call it with the existing folder into which they will save
/// together. Each rank writes a small file that rank 0 must see, and must itself see rank 0's file. The files are then
/// removed.
///
/// ```
/// use plimsoll::ProcessGroup;
/// use plimsoll::serialize::check_shared;
/// check_shared(std::env::temp_dir(), &ProcessGroup::threads(1)[0])?;
/// # Ok::<(), plimsoll::serialize::SerializeError>(())
/// ```
///
/// # Errors
/// [`SerializeError::NotShared`], on all ranks; a rank that cannot write there; [`plimsoll_tensor::Error::Distributed`].
pub fn check_shared(folder: impl AsRef<Path>, group: &ProcessGroup) -> Result<(), SerializeError> {
    let (folder, rank) = (folder.as_ref(), group.rank());
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let token = gather_texts(group, &format!("{}-{time}", std::process::id()), "shared folder")?.remove(0);
    let path_of = |rank: usize| folder.join(format!(".plimsoll-shared-{token}-{rank}"));
    let written = fs::write(path_of(rank), &token);
    let outcomes = gather_texts(group, &outcome(&written), "shared folder")?;
    let sees = |rank: usize| fs::read_to_string(path_of(rank)).is_ok_and(|text| text == token);
    // If a rank could not write, that does not mean that it sees a different folder.
    let unseen = match rank {
        0 => (0..group.size()).find(|&rank| outcomes[rank].is_empty() && !sees(rank)),
        _ => (outcomes[0].is_empty() && written.is_ok() && !sees(0)).then_some(rank),
    };
    let unseen =
        gather_texts(group, &unseen.map_or(String::new(), |rank| rank.to_string()), "shared folder")?;
    // If this fails, an empty file with a descriptive name stays.
    let _ = fs::remove_file(path_of(rank));
    if let Err(source) = written {
        return Err(SerializeError::io(folder, source));
    }
    if let Some(rank) = unseen.iter().find_map(|text| text.parse().ok()) {
        return Err(SerializeError::NotShared { folder: folder.to_owned(), rank });
    }
    match outcomes.iter().enumerate().find(|(_, why)| !why.is_empty()) {
        None => Ok(()),
        Some((rank, why)) => {
            let message = format!("rank {rank} cannot write there: {why}");
            Err(SerializeError::format(folder, message))
        }
    }
}

/// Why something failed; empty if it did not.
fn outcome(result: &std::io::Result<()>) -> String {
    result.as_ref().err().map(ToString::to_string).unwrap_or_default()
}
