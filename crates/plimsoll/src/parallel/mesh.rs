//! The world as a grid of ranks with named dimensions: [`DeviceMesh`].

use std::fmt;

use plimsoll_tensor::{Error, ProcessGroup, Result};

const NAME: &str = "DeviceMesh";

/// The ranks of a world as a grid with named dimensions. Like `torch.distributed.device_mesh.init_device_mesh`: the last dimension
/// has neighbouring ranks. For each dimension there is a group of ranks that differ only in that dimension, including
/// this rank.
///
/// On several hosts, give the last dimension as many ranks as a host has GPUs, so that its collectives stay within a
/// host.
///
/// ```
/// use plimsoll::ProcessGroup;
/// use plimsoll::parallel::DeviceMesh;
/// let ranks = ProcessGroup::threads(8); // processes: `dist::init_from_env`
/// let mesh = DeviceMesh::new(&ranks[6], &[("replicate", 2), ("shard", 4)])?;
/// assert_eq!(mesh.group("shard")?.ranks(), [4, 5, 6, 7]);
/// assert_eq!(mesh.group("replicate")?.ranks(), [2, 6]);
/// assert_eq!((mesh.local_rank("replicate")?, mesh.local_rank("shard")?), (1, 2));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceMesh {
    /// The ranks of this mesh.
    world: ProcessGroup,
    /// The ranks of the mesh that this one is part of.
    root: ProcessGroup,
    /// The group of each dimension, with its name.
    dims: Vec<(String, ProcessGroup)>,
}

impl DeviceMesh {
    /// Arranges all ranks of a [`World`](crate::dist::World) or a group. All ranks must call this with the same dimensions.
    ///
    /// # Errors
    /// If the product of the sizes is not the number of ranks, two dimensions have the same name, or a name is empty.
    pub fn new(world: &impl AsRef<ProcessGroup>, dims: &[(&str, usize)]) -> Result<DeviceMesh> {
        let world = world.as_ref();
        let ranks = dims.iter().try_fold(1usize, |ranks, (_, size)| ranks.checked_mul(*size));
        if dims.is_empty() || ranks != Some(world.size()) {
            let message = format!(
                "{} on {} ranks: the product of the sizes must be the number of ranks",
                shown(dims),
                world.size()
            );
            return Err(Error::argument(NAME, message));
        }
        let is_double = |at: usize| dims[..at].iter().any(|(name, _)| *name == dims[at].0);
        if let Some(at) = (0..dims.len()).find(|at| dims[*at].0.is_empty() || is_double(*at)) {
            let message = format!("{}: each dimension needs a name of its own", shown(&dims[at..=at]));
            return Err(Error::argument(NAME, message));
        }
        let group_of = |at: usize| {
            let (name, size) = dims[at];
            // The distance between neighbours in this dimension.
            let step: usize = dims[at + 1..].iter().map(|(_, size)| size).product();
            let own = world.rank() / step % size;
            let first = world.rank() - own * step;
            let ranks: Vec<usize> = (0..size).map(|other| first + other * step).collect();
            let group = if size == world.size() { world.clone() } else { world.new_group(&ranks, name)? };
            Ok((name.to_owned(), group))
        };
        let dims = (0..dims.len()).map(group_of).collect::<Result<_>>()?;
        Ok(DeviceMesh { world: world.clone(), root: world.clone(), dims })
    }

    /// The ranks that differ from this one only in the dimension `name`, as a mesh. Like `mesh["dp"]` in PyTorch.
    ///
    /// ```
    /// use plimsoll::ProcessGroup;
    /// use plimsoll::parallel::DeviceMesh;
    /// let mesh = DeviceMesh::new(&ProcessGroup::simulated(5, 8), &[("dp", 2), ("tp", 4)])?;
    /// assert_eq!(mesh.submesh("dp")?.world().ranks(), [1, 5]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such dimension.
    pub fn submesh(&self, name: &str) -> Result<DeviceMesh> {
        let group = self.group(name)?.clone();
        let dims = vec![(name.to_owned(), group.clone())];
        Ok(DeviceMesh { world: group, root: self.root.clone(), dims })
    }

    /// The ranks of this mesh.
    pub fn world(&self) -> &ProcessGroup {
        &self.world
    }

    /// The names of the dimensions, and their sizes.
    pub fn dims(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.dims.iter().map(|(name, group)| (name.as_str(), group.size()))
    }

    /// The ranks that differ from this one only in the dimension `name`. Like `DeviceMesh.get_group`.
    ///
    /// # Errors
    /// If there is no such dimension.
    pub fn group(&self, name: &str) -> Result<&ProcessGroup> {
        let found = self.dims.iter().find(|(other, _)| other == name);
        found.map(|(_, group)| group).ok_or_else(|| {
            let dims: Vec<(&str, usize)> = self.dims().collect();
            Error::argument(NAME, format!("there is no dimension `{name}` in {}", shown(&dims)))
        })
    }

    /// This rank's position in the dimension `name`. Like `DeviceMesh.get_local_rank`.
    ///
    /// # Errors
    /// If there is no such dimension.
    pub fn local_rank(&self, name: &str) -> Result<usize> {
        Ok(self.group(name)?.rank())
    }

    /// The ranks of the mesh that this one is part of.
    pub(super) fn root(&self) -> &ProcessGroup {
        &self.root
    }

    /// The groups of all dimensions, in order.
    pub(super) fn groups(&self) -> Vec<&ProcessGroup> {
        self.dims.iter().map(|(_, group)| group).collect()
    }
}

/// A mesh with one dimension, `shard`.
impl From<&ProcessGroup> for DeviceMesh {
    fn from(world: &ProcessGroup) -> DeviceMesh {
        let dims = vec![("shard".to_owned(), world.clone())];
        DeviceMesh { world: world.clone(), root: world.clone(), dims }
    }
}

impl From<&DeviceMesh> for DeviceMesh {
    fn from(mesh: &DeviceMesh) -> DeviceMesh {
        mesh.clone()
    }
}

impl fmt::Debug for DeviceMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<(&str, usize)> = self.dims().collect();
        write!(f, "DeviceMesh({}, rank {})", shown(&dims), self.world.rank())
    }
}

/// Formats dimensions: `replicate=2,shard=4`.
fn shown(dims: &[(&str, usize)]) -> String {
    let each: Vec<String> = dims.iter().map(|(name, size)| format!("{name}={size}")).collect();
    if each.is_empty() { "no dimensions".to_owned() } else { each.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_dimension_has_neighbours() {
        for rank in 0..12 {
            let world = ProcessGroup::simulated(rank, 12);
            let mesh = DeviceMesh::new(&world, &[("a", 2), ("b", 3), ("c", 2)]).unwrap();
            let at: Vec<usize> = ["a", "b", "c"].map(|name| mesh.local_rank(name).unwrap()).to_vec();
            assert_eq!(at[0] * 6 + at[1] * 2 + at[2], rank);
            assert_eq!(mesh.group("a").unwrap().ranks(), [rank % 6, rank % 6 + 6]);
            assert_eq!(mesh.group("c").unwrap().ranks(), [rank / 2 * 2, rank / 2 * 2 + 1]);
        }
    }

    #[test]
    fn what_is_no_grid_of_all_ranks_is_refused() {
        let world = ProcessGroup::simulated(0, 6);
        let refused = |dims: &[(&str, usize)]| DeviceMesh::new(&world, dims).unwrap_err().to_string();
        assert!(refused(&[("a", 2), ("b", 2)]).contains("a=2,b=2 on 6 ranks"));
        assert!(refused(&[]).contains("no dimensions on 6 ranks"));
        assert!(refused(&[("a", 0), ("b", 6)]).contains("a=0,b=6"));
        assert!(refused(&[("a", 2), ("a", 3)]).contains("a name of its own"));
        assert!(refused(&[("a", usize::MAX), ("b", 2)]).contains("6 ranks"));
        let mesh = DeviceMesh::new(&world, &[("a", 2), ("b", 3)]).unwrap();
        assert!(mesh.group("c").unwrap_err().to_string().contains("no dimension `c` in a=2,b=3"));
        assert_eq!(format!("{mesh:?}"), "DeviceMesh(a=2,b=3, rank 0)");
    }
}
