//! Stacks as a tree of boxes, with the outermost line at the root: [`Boxes`].
//!
//! Only lines of Python are shown, without the code of modules and decorators that calls them: `Linear.forward` is
//! shown, but not `Module._call_impl` above it. The operator is below the innermost line.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde_json::{Value, json};

use super::numbers::{count, octets, words};
use super::text::clipped;
use crate::explain::{Name, is_library, is_python};
use crate::render::{Report, words as say};
use crate::snapshot::{FrameId, StackId};

/// The number of lines of a stack that are shown. Of a deeper stack, for example because of recursion, half of the
/// lines are from each end.
const DEPTH: usize = 60;

/// The lines that a box represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Label {
    All,
    User(FrameId),
    Library(FrameId),
    Operator(Name),
    NoPython,
    /// The lines that are left out.
    Between,
}

/// A box; its parent precedes it in the list.
struct Node {
    parent: usize,
    depth: usize,
    label: Label,
    /// The bytes of all listed blocks in the box, whether or not they are live at the same time.
    bytes: u64,
}

/// The tree of all requested stacks.
pub(super) struct Boxes {
    nodes: Vec<Node>,
    children: HashMap<(usize, Label), usize>,
    leaves: HashMap<Option<StackId>, usize>,
}

impl Default for Boxes {
    fn default() -> Self {
        let root = Node { parent: 0, depth: 0, label: Label::All, bytes: 0 };
        Self { nodes: vec![root], children: HashMap::new(), leaves: HashMap::new() }
    }
}

impl Boxes {
    /// The innermost box of a stack.
    pub(super) fn leaf(&mut self, report: &Report<'_>, stack: Option<StackId>) -> usize {
        if let Some(&leaf) = self.leaves.get(&stack) {
            return leaf;
        }
        let mut at = 0;
        for label in path(report, stack) {
            let (parent, depth, nodes) = (at, self.nodes[at].depth + 1, &mut self.nodes);
            at = *self.children.entry((parent, label)).or_insert_with(|| {
                nodes.push(Node { parent, depth, label, bytes: 0 });
                nodes.len() - 1
            });
        }
        self.leaves.insert(stack, at);
        at
    }

    /// Adds a block to a box and to all boxes around it.
    pub(super) fn add(&mut self, leaf: usize, bytes: u64) {
        let mut at = leaf;
        loop {
            let node = &mut self.nodes[at];
            node.bytes = node.bytes.saturating_add(bytes);
            if at == 0 {
                return;
            }
            at = node.parent;
        }
    }

    /// Keeps the largest boxes. A parent is never smaller than its child, so all parents are kept.
    pub(super) fn cut(self, most: usize) -> Cut {
        let nodes = self.nodes;
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&node| (Reverse(nodes[node].bytes), nodes[node].depth, node));
        order.truncate(most.max(1));
        let mut kept = vec![None; nodes.len()];
        for (place, &node) in order.iter().enumerate() {
            kept[node] = Some(count(place));
        }
        let mut places = vec![0; nodes.len()];
        for (node, &place) in kept.iter().enumerate() {
            places[node] = place.unwrap_or(places[nodes[node].parent]);
        }
        Cut { nodes, order, places }
    }
}

/// The boxes that are on the page.
pub(super) struct Cut {
    nodes: Vec<Node>,
    order: Vec<usize>,
    /// For each box of the tree, its index on the page, or the index of the nearest enclosing box.
    pub(super) places: Vec<u32>,
}

impl Cut {
    /// For each box: its parent (for the root, the root itself), its name, and whether its line is a library's. Parents
    /// come first.
    pub(super) fn json(&self, report: &Report<'_>, names: &mut Names) -> Value {
        let nodes = || self.order.iter().map(|&node| &self.nodes[node]);
        json!({
            "parents": words(nodes().map(|node| self.places[node.parent])),
            "labels": words(nodes().map(|node| names.id(report, node.label))),
            "library": octets(nodes().map(|node| u8::from(matches!(node.label, Label::Library(_))))),
        })
    }
}

/// The texts of one device, without duplicates.
#[derive(Default)]
pub(super) struct Names {
    known: HashMap<Label, u32>,
    names: Vec<String>,
}

impl Names {
    pub(super) fn id(&mut self, report: &Report<'_>, label: Label) -> u32 {
        let names = &mut self.names;
        *self.known.entry(label).or_insert_with(|| {
            names.push(clipped(&label.text(report)));
            count(names.len() - 1)
        })
    }

    pub(super) fn json(self) -> Value {
        self.names.into()
    }
}

/// The labels of a stack, from the outermost line to the operator.
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
    if path.len() > DEPTH {
        path.splice(DEPTH / 2..path.len() - DEPTH / 2, [Label::Between]);
    }
    path.extend(report.origins.get(stack).operator.map(Label::Operator));
    path
}

/// Whether a file's lines only call other code. Such lines are shown only if a stack has no other lines.
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
            Self::All => "all live memory".to_owned(),
            Self::NoPython => say::NO_LINE.to_owned(),
            Self::Between => "… lines in between".to_owned(),
            Self::User(frame) | Self::Library(frame) => say::line(report.snapshot, frame),
            Self::Operator(name) => name.of(report.snapshot).to_owned(),
        }
    }
}
