//! CUDA graphs: a thread's work is captured instead of run, and then launched as a unit, any number of times.
//!
//! Note [Captures]. The captured stream is a separate one, to which the thread's work is redirected (`streams.rs`), so work
//! that other threads queue on the same [`StreamId`] runs as usual. The capture mode is relaxed, so calls that a capture would
//! otherwise forbid (memory for the allocator, loading a kernel) are allowed; `plimsoll-tensor` refuses operations that must
//! not happen during a capture, such as waiting for the stream. If a kernel's arguments differ between launches, the arguments
//! of its node are set before each launch; work that was already launched keeps its own.

use std::ffi::c_int;
use std::sync::Arc;

use plimsoll_alloc::StreamId;

use crate::driver::Handle;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::graph_functions::KernelNode;
use crate::step::Launch;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// Makes a call and checks its result, as in `driver.rs`.
macro_rules! call {
    ($gpu:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let functions = $gpu.graph_functions()?;
        // SAFETY: device addresses and handles are plain numbers; other pointers are to locals of the method that makes the
        // call.
        let code = unsafe { (functions.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err($gpu.driver().error(stringify!($name), code)) }
    }};
}

/// A node of a captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNode(Handle);

/// Captured work that can be launched.
pub struct CapturedGraph {
    gpu: Arc<Gpu>,
    on: StreamId,
    graph: Handle,
    exec: Handle,
}

impl Gpu {
    /// Starts to capture the work that this thread queues on a stream, until [`Gpu::end_capture`]. None of it runs.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn begin_capture(&self, on: StreamId) -> Result<()> {
        self.bind()?;
        self.graph_functions()?;
        // Creates the stream now if needed, since a launch of the graph uses it.
        self.streams().itself(self.driver(), on)?;
        let onto = self.driver().create_stream()?;
        let begun = call!(self, cuStreamBeginCapture_v2(onto, RELAXED));
        match begun {
            Ok(()) => self.streams().capture(on, onto),
            Err(_) => self.driver().destroy_stream(onto)?,
        }
        begun
    }

    /// Ends this thread's capture.
    ///
    /// # Errors
    /// The driver's errors. If a call that is not allowed in a capture has invalidated it, the capture ends as well.
    pub fn end_capture(self: &Arc<Gpu>) -> Result<CapturedGraph> {
        let (on, graph) = self.end()?;
        let mut exec = 0;
        if let Err(error) = call!(self, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)) {
            call!(self, cuGraphDestroy(graph))?;
            return Err(error);
        }
        Ok(CapturedGraph { gpu: self.clone(), on, graph, exec })
    }

    /// Ends this thread's capture, if any, and drops the captured work.
    pub fn abandon_capture(&self) {
        // An invalidated capture has no graph.
        if let Ok((_, graph)) = self.end() {
            let _ = self.destroy_graph(graph);
        }
    }

    fn destroy_graph(&self, graph: Handle) -> Result<()> {
        call!(self, cuGraphDestroy(graph))
    }

    fn end(&self) -> Result<(StreamId, Handle)> {
        self.bind()?;
        let Some((on, onto)) = self.streams().captured() else { return Ok((StreamId::default(), 0)) };
        self.streams().end_capture();
        let mut graph = 0;
        let ended = call!(self, cuStreamEndCapture(onto, &raw mut graph));
        self.driver().destroy_stream(onto).and(ended)?;
        Ok((on, graph))
    }

    /// Whether this thread is capturing work of this device.
    pub fn is_capturing(&self) -> bool {
        self.streams().captured().is_some()
    }

    /// The node of the work that this thread captured last; `None` if it is not capturing or has captured nothing yet.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn last_node(&self) -> Result<Option<GraphNode>> {
        let Some((_, onto)) = self.streams().captured() else { return Ok(None) };
        let (mut status, mut number, mut graph) = (0, 0, 0);
        let (mut nodes, mut count) = (std::ptr::null::<Handle>(), 0);
        call!(
            self,
            cuStreamGetCaptureInfo_v2(
                onto,
                &raw mut status,
                &raw mut number,
                &raw mut graph,
                &raw mut nodes,
                &raw mut count
            )
        )?;
        if count == 0 || nodes.is_null() {
            return Ok(None);
        }
        // SAFETY: the driver's list has this many nodes, and stays valid until the next call on this stream.
        Ok(Some(GraphNode(unsafe { *nodes })))
    }
}

impl CapturedGraph {
    /// Queues all of the work on the captured stream.
    ///
    /// # Errors
    /// The driver's errors.
    pub fn launch(&self) -> Result<()> {
        self.gpu.bind()?;
        let stream = self.gpu.streams().itself(self.gpu.driver(), self.on)?;
        call!(self.gpu, cuGraphLaunch(self.exec, stream))
    }

    /// Sets the arguments of a kernel for all later launches. `id` is as for [`Gpu::run`].
    ///
    /// # Errors
    /// The driver's errors: for example, the node belongs to another graph or another kernel.
    pub fn set(&self, node: GraphNode, mut launch: Launch, id: u64) -> Result<()> {
        self.gpu.bind()?;
        let function = self.gpu.ready(&mut launch, id)?;
        let mut arguments = launch.args.places();
        let kernel = KernelNode {
            function,
            grid: launch.grid,
            block: [launch.block, 1, 1],
            shared_bytes: launch.shared_bytes,
            arguments: arguments.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kernel: 0,
            context: 0,
        };
        call!(self.gpu, cuGraphExecKernelNodeSetParams_v2(self.exec, node.0, &raw const kernel))
    }

    fn destroy(&self) -> Result<()> {
        self.gpu.bind()?;
        // Launched work may still be running.
        let stream = self.gpu.streams().itself(self.gpu.driver(), self.on)?;
        self.gpu.driver().synchronize_stream(stream)?;
        call!(self.gpu, cuGraphExecDestroy(self.exec))?;
        call!(self.gpu, cuGraphDestroy(self.graph))
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // If the context is lost, everything is freed when the process ends.
        let _ = self.destroy();
    }
}
