//! Captured work of a GPU: a CUDA graph, and the operators in it that vary between replays.
//!
//! Such an operator is kept with the views of its operands. Before a replay it describes its work again with the next
//! numbers, and each launch whose arguments differ is updated in the graph (`capture.rs`, Note [What varies]).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use plimsoll_alloc::{LabelId, StreamId};
use plimsoll_cuda::{CapturedGraph, GraphNode, Step};
use smallvec::SmallVec;

use super::shared::{Cause, Shared, lock};
use crate::backend::Replays;
use crate::cuda::CudaCall;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Varies};
use crate::label;
use crate::view::{Launch, QueuedView, View};

type Views = SmallVec<[QueuedView; 4]>;

/// A captured operator that varies between replays.
pub(super) struct Varying {
    varies: Varies,
    kernel: Arc<dyn Kernel>,
    ins: Views,
    outs: Views,
    scratch: Option<QueuedView>,
    cause: Cause,
    /// Its work as last captured or updated, with the graph nodes of its launches.
    steps: Vec<(Step, Option<GraphNode>)>,
}

impl Varying {
    fn describe(&self, of: &Shared, kernel: &dyn Kernel) -> Result<Vec<Step>> {
        let ins: SmallVec<[View<'_>; 4]> = self.ins.iter().map(QueuedView::view).collect();
        let outs: SmallVec<[View<'_>; 4]> = self.outs.iter().map(QueuedView::view).collect();
        let scratch = self.scratch.as_ref().map(QueuedView::view);
        let mut call = CudaCall::new(self.cause.op, of.facts(), Launch { ins: &ins, outs: &outs, scratch });
        kernel.cuda(&mut call)?;
        Ok(call.into_steps())
    }
}

/// The varying operators of the captures in progress, by thread.
#[derive(Default)]
pub(super) struct Captures(Mutex<HashMap<ThreadId, Vec<Varying>>>);

impl Captures {
    /// Takes the varying operators of this thread's capture, which has ended.
    pub(super) fn take(&self) -> Vec<Varying> {
        lock(&self.0).remove(&thread::current().id()).unwrap_or_default()
    }

    /// Captures a varying operator, and keeps what later replays need.
    pub(super) fn queue(
        &self,
        of: &Shared,
        (varies, kernel): (Varies, Arc<dyn Kernel>),
        launch: &Launch<'_>,
        on: StreamId,
        owner: LabelId,
    ) -> Result<()> {
        let copies = |views: &[View<'_>]| -> Views { views.iter().map(|view| view.to_queued()).collect() };
        let cause = Cause { op: kernel.name(), owner };
        let (ins, outs, scratch) =
            (copies(launch.ins), copies(launch.outs), launch.scratch.map(View::to_queued));
        let mut varying = Varying { varies, kernel, ins, outs, scratch, cause, steps: Vec::new() };
        for step in varying.describe(of, &*varying.kernel)? {
            let failed = |source| of.failed(source, cause);
            of.gpu.run(step.clone(), on, of.number_of(&step, cause)).map_err(failed)?;
            let node = match step {
                Step::Launch(_) => of.gpu.last_node().map_err(failed)?,
                _ => None,
            };
            varying.steps.push((step, node));
        }
        lock(&self.0).entry(thread::current().id()).or_default().push(varying);
        Ok(())
    }
}

/// Captured work.
pub(super) struct Captured {
    of: Arc<Shared>,
    graph: CapturedGraph,
    varying: Vec<Varying>,
    varies: Vec<Varies>,
}

impl Captured {
    pub(super) fn new(of: Arc<Shared>, graph: CapturedGraph, varying: Vec<Varying>) -> Captured {
        let varies = varying.iter().map(|varying| varying.varies).collect();
        Captured { of, graph, varying, varies }
    }
}

impl Replays for Captured {
    fn varying(&self) -> &[Varies] {
        &self.varies
    }

    fn kernel(&self, at: usize) -> &Arc<dyn Kernel> {
        &self.varying[at].kernel
    }

    fn change(&mut self, at: usize, kernel: Arc<dyn Kernel>) -> Result<()> {
        let Captured { of, graph, varying, .. } = self;
        let varying = &mut varying[at];
        let steps = varying.describe(of, &*kernel)?;
        let is_like = |(now, (before, _)): (&Step, &(Step, Option<GraphNode>))| is_like(now, before);
        if steps.len() != varying.steps.len() || !steps.iter().zip(&varying.steps).all(is_like) {
            let why = "its options need kernels other than the captured ones: capture the step again";
            return Err(Error::Captured { op: varying.cause.op, why });
        }
        for (step, (before, node)) in steps.into_iter().zip(&mut varying.steps) {
            let (Step::Launch(now), Step::Launch(then), Some(node)) = (&step, &*before, &*node) else {
                continue;
            };
            if now.args == then.args {
                continue;
            }
            let number = of.number_of(&step, varying.cause);
            let set = graph.set(*node, now.clone(), number);
            set.map_err(|source| of.failed(source, varying.cause))?;
            *before = step;
        }
        varying.kernel = kernel;
        Ok(())
    }

    fn replay(&self) -> Result<()> {
        let cause = Cause { op: "captured_step", owner: label::current_layer() };
        self.of.remember(cause);
        self.graph.launch().map_err(|source| self.of.failed(source, cause))?;
        if self.of.waits {
            self.of.gpu.wait_all().map_err(|source| self.of.failed(source, cause))?;
        }
        Ok(())
    }
}

/// Whether two steps are the same work except for the arguments of a kernel.
fn is_like(now: &Step, before: &Step) -> bool {
    match (now, before) {
        (Step::Launch(a), Step::Launch(b)) => {
            (a.grid, a.block, a.shared_bytes) == (b.grid, b.block, b.shared_bytes) && a.source.is(&b.source)
        }
        (Step::Product(a), Step::Product(b)) => a == b,
        (Step::Clear { address: a, bytes: n }, Step::Clear { address: b, bytes: m }) => (a, n) == (b, m),
        _ => false,
    }
}
