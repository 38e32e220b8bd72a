//! Lists the memory that a graph keeps alive, and the operations that keep it, to find out why memory is not freed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use plimsoll_alloc::Bytes;

use crate::data::Data;
use crate::device::Device;
use crate::dtype::DType;
use crate::label::{self, Category};
use crate::tensor::{Edge, Node, Tensor};

/// One allocation that a graph keeps alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its size in bytes, without the allocator's rounding.
    pub bytes: u64,
    /// The tensor's shape, as saved by the most recent operation.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
    /// The owner, as in the memory account: a layer, a parameter or an operation.
    pub owner: String,
    /// The memory category.
    pub category: Category,
    /// The device that holds the memory.
    pub device: Device,
    /// The operations whose derivatives keep it, newest first, each with its layer: `mul (in head)`. `accumulate_grad`
    /// stands for a leaf that is waiting for its gradient.
    pub through: Vec<String>,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kept { bytes, shape, dtype, owner, through, .. } = self;
        write!(f, "{bytes} bytes, {dtype} {shape:?} of {owner}, kept by {}", through.join(", "))
    }
}

/// Lists the allocations that the graphs ending in these tensors keep alive, largest first. They are freed by a
/// backward pass, or when the last of these tensors is dropped, unless something else holds them too. For tensors that
/// will be recomputed, the list has what they are recomputed from; for tensors that a hook packed, it has what `pack`
/// returned, if that is a tensor. This runs nothing and changes nothing.
///
/// ```
/// use plimsoll_tensor::autograd::kept_by;
/// use plimsoll_tensor::{Device, Tensor};
/// let device = Device::cpu();
/// let x = Tensor::ones(&[1024], &device)?.requires_grad_(true)?;
/// // A loss that is kept for a log keeps its whole graph.
/// let loss = x.exp()?.mul(&x.sin()?)?.sum()?;
/// let kept = kept_by(&[&loss]);
/// assert_eq!(kept.iter().map(|kept| kept.bytes).collect::<Vec<_>>(), [4096; 3]);
/// assert_eq!(kept[0].through, ["mul", "exp"]);
/// assert!(kept_by(&[&loss.detach()]).is_empty());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn kept_by(roots: &[&Tensor]) -> Vec<Kept> {
    let mut nodes: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
    let mut leaves: Vec<Tensor> = Vec::new();
    let mut list: Vec<Edge> =
        roots.iter().filter(|root| !root.is_leaf()).filter_map(|root| root.edge()).collect();
    while let Some(edge) = list.pop() {
        match edge {
            Edge::Leaf(leaf) => leaves.push(leaf),
            Edge::Node(node, _) => {
                if nodes.insert(node.sequence, node.clone()).is_none() {
                    list.extend(node.edges().iter().flatten().cloned());
                }
            }
        }
    }
    let mut found = FoundStorages::default();
    for node in nodes.values().rev() {
        let owner = label::text(node.layer);
        let name =
            if owner.is_empty() { node.name().to_owned() } else { format!("{} (in {owner})", node.name()) };
        node.kept(&mut |data| found.add(data, &name));
    }
    let mut seen = BTreeSet::new();
    for leaf in leaves.iter().filter(|leaf| seen.insert(leaf.id())) {
        found.add(leaf.data(), "accumulate_grad");
    }
    let mut all = found.all;
    all.sort_by_key(|kept| std::cmp::Reverse(kept.bytes));
    all
}

/// The memory that a graph keeps alive: [`Tensor::saved_memory`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedMemory {
    /// What the graph frees, unless something else holds it: activations, inputs and leaves that are not parameters,
    /// largest first.
    pub saved: Vec<Kept>,
    /// Parameters and buffers that the graph reads. The model holds them anyway.
    pub parameters: Vec<Kept>,
}

impl SavedMemory {
    /// Bytes of [`SavedMemory::saved`].
    pub fn bytes(&self) -> u64 {
        bytes(&self.saved)
    }

    /// Bytes of [`SavedMemory::parameters`].
    pub fn parameter_bytes(&self) -> u64 {
        bytes(&self.parameters)
    }
}

fn bytes(list: &[Kept]) -> u64 {
    list.iter().map(|kept| kept.bytes).sum()
}

impl fmt::Display for SavedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ROWS: usize = 20;
        let (saved, parameters) = (self.bytes(), self.parameter_bytes());
        write!(f, "the graph keeps {} alive, and reads {} of parameters", Bytes(saved), Bytes(parameters))?;
        let share = |bytes: u64| 100.0 * bytes as f64 / saved.max(1) as f64;
        for Kept { bytes, shape, dtype, owner, through, .. } in self.saved.iter().take(ROWS) {
            let (share, through) = (share(*bytes), through.join(", "));
            write!(
                f,
                "\n{share:5.1} %  {}  {dtype} {shape:?} of {owner}, saved by {through}",
                Bytes(*bytes)
            )?;
        }
        match self.saved.get(ROWS..) {
            None | Some([]) => Ok(()),
            Some(rest) => write!(f, "\n{:5.1} %  in {} others", share(bytes(rest)), rest.len()),
        }
    }
}

impl Tensor {
    /// The memory that the graph of this tensor keeps alive, by allocation: each with its owner and the operations that saved it.
    /// Allocations that several operations saved count once. For several tensors, use [`kept_by`].
    ///
    /// ```
    /// use plimsoll_tensor::label::{Category, intern};
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let w = Tensor::ones(&[8, 8], &device)?.requires_grad_(true)?;
    /// w.set_owner(Category::Parameter, intern("fc.weight"));
    /// let x = Tensor::ones(&[1024, 8], &device)?;
    /// let loss = x.matmul(&w)?.relu()?.sum()?;
    /// let memory = loss.saved_memory();
    /// assert_eq!((memory.bytes(), memory.parameter_bytes()), (2 * 1024 * 8 * 4, 8 * 8 * 4));
    /// println!("{memory}");
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn saved_memory(&self) -> SavedMemory {
        let is_held = |kept: &Kept| matches!(kept.category, Category::Parameter | Category::Buffer);
        let (parameters, saved) = kept_by(&[self]).into_iter().partition(is_held);
        SavedMemory { saved, parameters }
    }
}

/// The storages in the order in which they were found, and the index of each.
#[derive(Default)]
struct FoundStorages {
    all: Vec<Kept>,
    places: BTreeMap<usize, usize>,
}

impl FoundStorages {
    fn add(&mut self, data: &Data, through: &str) {
        let at = *self.places.entry(data.storage.id()).or_insert(self.all.len());
        if at == self.all.len() {
            let tag = data.storage.tag();
            self.all.push(Kept {
                bytes: data.storage.bytes(),
                shape: data.layout.shape().to_vec(),
                dtype: data.dtype,
                owner: label::text(tag.label),
                category: tag.category,
                device: data.storage.device().clone(),
                through: Vec::new(),
            });
        }
        let list = &mut self.all[at].through;
        if list.last().is_none_or(|last| last != through) {
            list.push(through.to_owned());
        }
    }
}
