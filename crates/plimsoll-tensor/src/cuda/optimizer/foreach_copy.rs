//! Copies of many tensors in one launch.

use plimsoll_cuda::Args;

use super::table::{Column, room_for, table};
use crate::cuda::{CudaCall, Placed};
use crate::error::Result;

const TEXT: &str = concat!(include_str!("table.cu"), include_str!("foreach_copy.cu"));
/// Bytes per block; the same value as in the kernel source.
const CHUNK: u64 = 16_384;
/// The maximum number of tensors per launch: a kernel's arguments can have at most 32,764 bytes.
const MOST: usize = 512;

/// A tensor, and the tensor whose values it gets.
type Pair<'a> = (Placed<'a>, Placed<'a>);

/// `to…, from… -> to…` in place. Both lists have the same shapes and types, without gaps.
pub(crate) fn foreach_copy(call: &mut CudaCall<'_>) -> Result<()> {
    let pairs: Vec<Pair<'_>> = call.outs.iter().copied().zip(call.ins.iter().copied()).collect();
    let pairs: Vec<_> = pairs.into_iter().filter(|(to, _)| !to.is_empty()).collect();
    for alike in pairs.chunk_by(|(a, _), (b, _)| a.dtype.size() == b.dtype.size()) {
        alike.chunks(MOST).try_for_each(|some| launch(call, some))?;
    }
    Ok(())
}

fn launch(call: &mut CudaCall<'_>, pairs: &[Pair<'_>]) -> Result<()> {
    let room = room_for(pairs.len(), MOST);
    let element = match pairs[0].0.dtype.size() {
        8 => "u64",
        4 => "u32",
        2 => "u16",
        _ => "u8",
    };
    let source = call.source(TEXT).with("T", element).with("MOST", room.to_string());
    let bytes = |(to, _): &Pair<'_>| (to.len() * to.dtype.size()) as u64;
    let columns: [Column<'_, Pair<'_>>; 3] = [&bytes, &|(to, _)| to.address, &|(_, from)| from.address];
    let (words, blocks) = table(pairs, room, CHUNK, &columns);
    call.launch(source, [blocks, 1, 1], 256, Args::new().words(&words))
}
