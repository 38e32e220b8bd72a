//! Reads slices by index, and sums slices by index.

use plimsoll_cuda::{Args, Step};
use smallvec::SmallVec;

use crate::cuda::space::Space;
use crate::cuda::{CudaCall, Placed, blocks_for, fault, name};
use crate::dtype::DType;
use crate::error::Result;
use crate::layout::Dims;

const PICK: &str = include_str!("pick.cu");
const ADD_SLICES: &str = include_str!("add_slices.cu");
const GROUP_SLICES: &str = include_str!("group_slices.cu");

/// With more slices than this, they are first grouped, so that not every slice is compared with all others.
const UNGROUPED_SLICES: usize = 2048;
/// Bytes for the beginnings of the groups: 257 numbers of 32 bits, rounded up.
const STARTS_BYTES: usize = 1536;

/// Bytes of scratch for sums of this many slices.
pub(crate) fn add_slices_scratch(count: usize) -> u64 {
    if count > UNGROUPED_SLICES { (STARTS_BYTES + count * 4) as u64 } else { 0 }
}

pub(in crate::cuda) fn word(dtype: DType) -> &'static str {
    match dtype.size() {
        8 => "u64",
        4 => "u32",
        2 => "u16",
        _ => "u8",
    }
}

/// `out[…] = x[… + index · step]`: `x_strides` and `index_strides` are the strides along the output's dimensions. The output
/// is row-major, and `count` is the size of the indexed dimension.
pub(crate) fn pick(
    call: &mut CudaCall<'_>,
    (x_strides, step, count): (&[usize], usize, usize),
    index_strides: &[usize],
) -> Result<()> {
    let ([x, index], out) =
        (<[Placed<'_>; 2]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    if out.is_empty() {
        return Ok(());
    }
    let strides = [Dims::from_slice(x_strides), Dims::from_slice(index_strides)];
    let dims: SmallVec<[usize; 6]> = (0..out.shape().len()).filter(|&dim| out.shape()[dim] != 1).collect();
    let mut space = Space::collapsed(out.shape(), &strides, &dims);
    let together = words_together(&space, x, out, step);
    widen(&mut space, together);
    let (len, step) = (out.len() / together, step / together);
    let source = call
        .source(PICK)
        .with("W", wide_word(x.dtype.size() * together))
        .with("I", name(index.dtype))
        .with("RANK", space.rank().to_string());
    let args = Args::new().address(out.address).address(x.address).address(index.address).size(len);
    let args = args.size(count).size(step).words(&space.words()).fault(fault::INDEX);
    call.launch(source, [blocks_for(len, 256, if together > 1 { 1 } else { 4 }), 1, 1], 256, args)
}

/// How many elements can be moved as one word of up to 16 bytes: elements of a slice that are contiguous and aligned.
fn words_together(space: &Space, x: Placed<'_>, out: Placed<'_>, step: usize) -> usize {
    let [of_x, of_index] = &space.strides[..] else { return 1 };
    let side_by_side = of_x.last() == Some(&1) && of_index.last() == Some(&0);
    let fits = |count: usize| {
        let bytes = (count * x.dtype.size()) as u64;
        let others = of_x.iter().rev().skip(1).chain([&step]);
        bytes <= 16
            && x.address.is_multiple_of(bytes)
            && out.address.is_multiple_of(bytes)
            && space.size.last().is_some_and(|size| size.is_multiple_of(count))
            && others.into_iter().all(|stride| stride.is_multiple_of(count))
    };
    if side_by_side { [16, 8, 4, 2].into_iter().find(|&count| fits(count)).unwrap_or(1) } else { 1 }
}

/// Rewrites the space in words of this many elements, which are contiguous in the first operand and share one element of the
/// second.
fn widen(space: &mut Space, together: usize) {
    let last = space.rank() - 1;
    space.size[last] /= together;
    space.strides[0].iter_mut().take(last).for_each(|stride| *stride /= together);
}

/// The word type with this many bytes.
fn wide_word(bytes: usize) -> &'static str {
    match bytes {
        16 => "Pack<u64, 2>",
        8 => "u64",
        4 => "u32",
        2 => "u16",
        _ => "u8",
    }
}

/// `slices, index -> out`: adds each slice along `dim` to zeros at its index. The index is contiguous, the output row-major.
pub(crate) fn add_slices(call: &mut CudaCall<'_>, dim: usize, skipped: Option<usize>) -> Result<()> {
    let ([slices, index], out) =
        (<[Placed<'_>; 2]>::try_from(&call.ins[..]).or_else(|_| call.missing())?, call.outs[0]);
    let dtype = call.float(&[slices, out])?;
    if out.is_empty() {
        return Ok(());
    }
    call.push(Step::Clear { address: out.address, bytes: (out.len() * dtype.size()) as u64 });
    let strides = [Dims::from_slice(slices.layout.strides()), Dims::from_slice(out.layout.strides())];
    let others = (0..out.shape().len()).filter(|&d| d != dim && out.shape()[d] != 1);
    let space = Space::collapsed(out.shape(), &strides, &others.collect::<SmallVec<[usize; 6]>>());
    let (rows, count) = (out.shape()[dim], index.len());
    let source = call
        .source(ADD_SLICES)
        .with("A", name(dtype.accumulator()))
        .with("T", name(dtype))
        .with("I", name(index.dtype))
        .with("AT_ONCE", "4")
        .with("RANK", space.rank().to_string());
    let (mut starts, mut list) = (0, 0);
    if count > UNGROUPED_SLICES {
        starts = call.scratch_address();
        list = starts + STARTS_BYTES as u64;
        let args = Args::new().address(starts).address(list).address(index.address).size(count);
        call.launch(call.source(GROUP_SLICES).with("I", name(index.dtype)), [256, 1, 1], 1024, args)?;
    }
    let args = Args::new().address(out.address).address(slices.address).address(index.address);
    let args = args.address(starts).address(list).size(count);
    let args = args.size(out.len() / rows).size(rows).size(slices.layout.strides()[dim]);
    let args = args.size(out.layout.strides()[dim]).i64(skipped.map_or(-1, |row| row as i64));
    call.launch(source, [count, 1, 1], 256, args.words(&space.words()).fault(fault::INDEX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    #[test]
    fn rows_of_a_table_are_copied_in_words_of_16_bytes_where_they_lie_so() {
        let check = |cols: usize, address: u64| {
            let (table, out) = (Layout::contiguous(&[9, cols]), Layout::contiguous(&[4, cols]));
            let placed = |layout| Placed { address, dtype: DType::BF16, layout };
            let strides = [Dims::from_slice(&[0, 1]), Dims::from_slice(&[1, 0])];
            let mut space = Space::collapsed(&[4, cols], &strides, &[0, 1]);
            let together = words_together(&space, placed(&table), placed(&out), cols);
            widen(&mut space, together);
            (together, space.size[1])
        };
        assert_eq!(check(768, 512), (8, 96));
        assert_eq!(check(12, 512), (4, 3));
        assert_eq!(check(768, 2), (1, 768));
        assert_eq!(check(5, 512), (1, 5));
    }
}
