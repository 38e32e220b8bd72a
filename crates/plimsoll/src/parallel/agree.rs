//! Checks that all ranks have the same model and use it in the same way.

use plimsoll_tensor::{Error, ProcessGroup, Result, Tensor};
use twox_hash::XxHash3_64;

/// Compares the names, shapes and types of this rank's tensors with those of the other ranks.
pub(super) fn same_model(
    op: &'static str,
    tensors: &[&(String, Tensor)],
    group: &ProcessGroup,
) -> Result<()> {
    let line = |(name, tensor): &&(String, Tensor)| {
        format!("{name} {:?} {} {}\n", tensor.shape(), tensor.dtype(), tensor.requires_grad())
    };
    let text: String = tensors.iter().map(line).collect();
    match first_other(group, &text, "names of parameters")? {
        None => Ok(()),
        Some(rank) => {
            let message = format!(
                "rank {rank} has a different model from this rank, whose {} tensors begin with {}: names, shapes, types \
                 and which ones require gradients must be the same on all ranks",
                tensors.len(),
                tensors.first().map_or("nothing", |(name, _)| name.as_str())
            );
            Err(Error::argument(op, message))
        }
    }
}

/// Copies each tensor whose values differ between ranks from rank 0 to all ranks.
pub(super) fn same_values(tensors: &[&(String, Tensor)], group: &ProcessGroup) -> Result<()> {
    if group.size() == 1 || !tensors.iter().all(|(_, tensor)| tensor.device().has_values()) {
        return Ok(());
    }
    let mut own = Vec::with_capacity(8 * tensors.len());
    for (_, tensor) in tensors {
        own.extend(XxHash3_64::oneshot(&tensor.to_bytes()?).to_le_bytes());
    }
    let all = group.all_gather_bytes(&own, "checksums of parameters")?;
    for (i, (_, tensor)) in tensors.iter().enumerate() {
        let sum = |rank: &Vec<u8>| rank[8 * i..8 * i + 8].to_vec();
        if all.iter().any(|rank| sum(rank) != sum(&all[0])) {
            group.broadcast(tensor, 0)?;
        }
    }
    Ok(())
}

/// The first rank whose text differs from this rank's; `None` if all are the same.
pub(super) fn first_other(group: &ProcessGroup, text: &str, label: &str) -> Result<Option<usize>> {
    let own = XxHash3_64::oneshot(text.as_bytes()).to_le_bytes();
    let all = group.all_gather_bytes(&own, label)?;
    Ok(all.iter().position(|other| *other != own))
}

/// Formats a list of names, showing at most 8 of them.
pub(super) fn shown(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    match names.len() {
        0 => "none".to_owned(),
        n if n <= SHOWN => names.join(", "),
        n => format!("{} and {} more", names[..SHOWN].join(", "), n - SHOWN),
    }
}
