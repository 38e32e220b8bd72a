//! Walks the graph before a backward pass, to find which operations lead to the requested tensors, and how many gradients will
//! reach each leaf that has hooks or is a target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::tensor::{Edge, Node, any_hooks};

/// The facts about the graph below the roots that a backward pass needs.
#[derive(Default)]
pub(super) struct Plan {
    /// The sequence numbers of operations that lead to a target; `None` if all must run.
    needed: Option<BTreeSet<u64>>,
    /// The number of gradients still to come for each leaf that has hooks or is a target, by its id.
    pub(super) coming: BTreeMap<usize, usize>,
}

impl Plan {
    /// Walks the graph, but only if there are targets or hooks.
    pub(super) fn of(roots: &[Edge], targets: Option<&[Edge]>) -> Plan {
        if targets.is_none() && !any_hooks() {
            return Plan::default();
        }
        let awaited = |edge: &Edge| match edge {
            Edge::Leaf(leaf) => {
                leaf.leaf_hooks().is_some()
                    || targets.is_some_and(|targets| targets.iter().any(|t| t.is(edge)))
            }
            Edge::Node(..) => false,
        };
        let mut plan = Plan::default();
        let mut seen: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
        let mut list: Vec<Edge> = roots.to_vec();
        while let Some(edge) = list.pop() {
            match &edge {
                Edge::Leaf(leaf) if awaited(&edge) => *plan.coming.entry(leaf.id()).or_default() += 1,
                Edge::Leaf(_) => {}
                Edge::Node(node, _) => {
                    if seen.insert(node.sequence, node.clone()).is_none() {
                        list.extend(node.edges().iter().flatten().cloned());
                    }
                }
            }
        }
        let Some(targets) = targets else { return plan };
        let mut needed = BTreeSet::new();
        // In ascending order: whether an operation's inputs lead to a target is known before its own turn comes.
        for (sequence, node) in &seen {
            let leads = |edge: &Edge| {
                targets.iter().any(|target| target.is(edge))
                    || matches!(edge, Edge::Node(node, _) if needed.contains(&node.sequence))
            };
            if node.edges().iter().flatten().any(leads) {
                needed.insert(*sequence);
            }
        }
        plan.needed = Some(needed);
        plan
    }

    /// Whether the derivative of an operation must run.
    pub(super) fn needs(&self, node: &Node) -> bool {
        self.needed.as_ref().is_none_or(|needed| needed.contains(&node.sequence))
    }
}
