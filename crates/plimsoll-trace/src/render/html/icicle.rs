//! What is held at the explained moment, by stack: [`json`], a tree of boxes, the outermost line at the root.
//!
//! Only Python counts, without the lines by which modules and decorators call what counts: `Linear.forward` is
//! told, `Module._call_impl` above it is not. Below the innermost line stands the operator.

use hashbrown::HashMap;
use plimsoll_alloc::Category;
use serde_json::{Value, json};

use super::Report;
use super::buckets::kind;
use super::numbers::{grains, octets, words};
use super::text::clipped;
use crate::explain::{DeviceExplanation, Name, is_library, is_python};
use crate::render::words as say;
use crate::snapshot::{FrameId, StackId};

/// What a box stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Label {
    All,
    User(FrameId),
    Library(FrameId),
    Operator(Name),
    NoPython,
}

/// A box; its parent stands before it.
struct Node {
    parent: usize,
    depth: usize,
    label: Label,
    bytes: u64,
    blocks: u32,
    /// Its bytes by kind are not kept: the kind of the block that came first is shown where all agree.
    category: Option<Option<Category>>,
}

/// A box's parent (itself for the root), name, bytes and blocks, and what it is: the kind of its blocks, 15
/// for several, and 16 more for a library. Of many boxes the largest are kept; a parent is never smaller.
pub(super) fn json(report: &Report<'_>, device: &DeviceExplanation, most: usize) -> Value {
    let nodes = tree(report, device);
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by_key(|&node| (std::cmp::Reverse(nodes[node].bytes), nodes[node].depth, node));
    order.truncate(most);
    let mut places = vec![0_u32; nodes.len()];
    let (mut names, mut known) = (Vec::new(), HashMap::new());
    let (mut parents, mut labels, mut sizes, mut blocks, mut looks) =
        <(Vec<_>, Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    for (place, node) in order.into_iter().enumerate() {
        places[node] = place as u32;
        let Node { parent, label, bytes, blocks: count, category, .. } = nodes[node];
        parents.push(places[parent]);
        labels.push(*known.entry(label).or_insert_with(|| {
            names.push(clipped(&label.text(report)));
            names.len() as u32 - 1
        }));
        sizes.push(grains(bytes));
        blocks.push(count);
        let library = if matches!(label, Label::Library(_)) { 16 } else { 0 };
        looks.push(category.map_or(15, |category| kind(category) as u8) + library);
    }
    json!({
        "parents": words(parents),
        "labels": words(labels),
        "bytes": words(sizes),
        "blocks": words(blocks),
        "looks": octets(looks),
        "names": names,
    })
}

fn tree(report: &Report<'_>, device: &DeviceExplanation) -> Vec<Node> {
    let root = Node { parent: 0, depth: 0, label: Label::All, bytes: 0, blocks: 0, category: None };
    let mut nodes = vec![root];
    let mut children: HashMap<(usize, Label), usize> = HashMap::new();
    let mut paths: HashMap<Option<StackId>, Vec<Label>> = HashMap::new();
    for (life, category) in device.held() {
        let path = paths.entry(life.stack).or_insert_with(|| path(report, life.stack));
        let mut at = 0;
        for &label in [Label::All].iter().chain(path.iter()) {
            if label != Label::All {
                let depth = nodes[at].depth + 1;
                let parent = at;
                at = *children.entry((parent, label)).or_insert_with(|| {
                    nodes.push(Node { parent, depth, label, bytes: 0, blocks: 0, category: None });
                    nodes.len() - 1
                });
            }
            let node = &mut nodes[at];
            let agrees = node.blocks == 0 || node.category == Some(category);
            node.category = agrees.then_some(category);
            node.bytes = node.bytes.saturating_add(life.bytes);
            node.blocks += 1;
        }
    }
    nodes
}

/// From the outermost line to the operator.
fn path(report: &Report<'_>, stack: Option<StackId>) -> Vec<Label> {
    let stacks = &report.snapshot.stacks;
    let (mut path, mut was_plumbing) = (Vec::new(), false);
    for id in stack.into_iter().flat_map(|stack| stacks.frame_ids(stack).rev()) {
        let file = report.snapshot.texts.get(stacks.get_frame(id).filename);
        if !is_python(file) {
            continue;
        }
        path.pop_if(|_| was_plumbing);
        path.push(if is_library(file) { Label::Library(id) } else { Label::User(id) });
        was_plumbing = is_plumbing(file);
    }
    if path.is_empty() {
        path.push(Label::NoPython);
    }
    path.extend(report.origins.get(stack).operator.map(Label::Operator));
    path
}

/// Whether a file's lines only call others: they are told where nothing else is.
fn is_plumbing(file: &str) -> bool {
    const FILES: [&str; 5] = [
        "torch/nn/modules/module.py",
        "torch/utils/_contextlib.py",
        "/contextlib.py",
        "/functools.py",
        "/runpy.py",
    ];
    let file = file.replace('\\', "/");
    file.starts_with("<frozen ") || FILES.iter().any(|plumbing| file.ends_with(plumbing))
}

impl Label {
    fn text(self, report: &Report<'_>) -> String {
        match self {
            Self::All => "all that is held".to_owned(),
            Self::NoPython => "no line of Python".to_owned(),
            Self::User(frame) | Self::Library(frame) => say::line(report.snapshot, frame),
            Self::Operator(name) => name.of(report.snapshot).to_owned(),
        }
    }
}
