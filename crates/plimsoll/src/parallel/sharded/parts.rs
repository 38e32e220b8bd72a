//! Saving and loading a model whose layers are divided among tensor-parallel ranks.
//!
//! A checkpoint consists of rows. A part that consists of neighbouring rows is written as it is. Any other part, such
//! as columns or thirds of queries, keys and values, is gathered into a whole tensor, and each rank writes an equal
//! part of its rows. So the files are the same as in sharded training, and any number of ranks can read them.

use plimsoll_tensor::{Device, Error, ProcessGroup, Result, Tensor, no_grad};

use super::FullyShardedDataParallel;
use crate::nn::Part;
use crate::serialize::TensorRows;
use crate::state_dict::{SerializeError, TensorSource};

impl FullyShardedDataParallel {
    /// The ranks with which this one shares layers, if there are any.
    pub(super) fn parts_group(&self) -> Option<&ProcessGroup> {
        self.parameters.iter().find_map(|parameter| parameter.part.as_ref().map(Part::group))
    }

    /// # Errors
    /// If tensor-parallel ranks are not the last dimension of the mesh, so that the ranks that write are not the first
    /// of them.
    pub(super) fn want_neighbours(&self) -> Result<()> {
        let (Some(group), root) = (self.parts_group(), self.ranks.root.ranks()) else { return Ok(()) };
        let places: Vec<Option<usize>> =
            group.ranks().iter().map(|rank| root.iter().position(|other| other == rank)).collect();
        let follows = |pair: &[Option<usize>]| pair[0].is_some_and(|first| pair[1] == Some(first + 1));
        if places.windows(2).all(follows) {
            return Ok(());
        }
        let message = format!(
            "the ranks {:?} share layers, but are not neighbours in the mesh of {root:?}: give `fully_shard` a submesh of a mesh \
             whose last dimension consists of these ranks",
            group.ranks()
        );
        Err(Error::argument("checkpoint", message))
    }

    /// The rows that this rank writes of a tensor; `own` is its part. `None` if other ranks write them. Copies are on
    /// `host`.
    pub(super) fn rows_of_part(
        &self,
        part: &Part,
        name: String,
        own: &Tensor,
        host: &Device,
    ) -> Result<Option<TensorRows>> {
        if self.ranks.all.rank() > 0 {
            return Ok(None); // the other groups have the same data
        }
        let mut offsets = vec![0; part.whole_shape().len()];
        if part.is_rows() {
            offsets[0] = part.rows()[0].start;
            return Ok(Some(TensorRows { name, rows: own.clone(), offsets }));
        }
        let (rank, ranks, count) = (part.group().rank(), part.group().size(), part.whole_shape()[0]);
        let border = |rank: usize| count * rank / ranks;
        let whole = part.gather(own)?;
        let rows = no_grad(|| whole.narrow(0, border(rank), border(rank + 1) - border(rank)))?;
        offsets[0] = border(rank);
        let rows = no_grad(|| rows.to_device(host))?;
        Ok((rows.numel() > 0).then_some(TensorRows { name, rows, offsets }))
    }
}

/// Reads a rank's part of a tensor. The whole tensor is read to the host only if the part does not consist of rows.
pub(super) fn read_part(
    part: &Part,
    source: &dyn TensorSource,
    name: &str,
    device: &Device,
) -> Result<Tensor, SerializeError> {
    if part.is_rows() {
        return source.rows(name, part.rows()[0].clone(), device);
    }
    let host = if device.has_values() { Device::cpu_with(Default::default()) } else { device.clone() };
    let whole = source.tensor(name, &host)?;
    Ok(no_grad(|| part.of(&whole)?.to_device(device))?)
}
