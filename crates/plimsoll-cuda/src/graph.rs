//! CUDA graphs: what a thread queues is captured instead of run, and launched as one, any number of times.
//!
//! Note [Captures]. The stream that is captured is one of our own, which the thread's work is sent to (`streams.rs`): work that
//! other threads queue on the same [`StreamId`] runs as before. The mode is relaxed, so calls that a capture would otherwise
//! forbid (memory for the allocator, loading a kernel) are allowed; what must not happen meanwhile, such as waiting for the
//! stream, is refused above this crate. A kernel whose arguments differ from launch to launch is a node whose arguments are
//! set before the launch: work that was launched before keeps its own.

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

/// Makes a call and checks it, as in `driver.rs`.
macro_rules! call {
    ($gpu:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let functions = $gpu.graph_functions()?;
        // SAFETY: device addresses and handles are numbers; other pointers are to locals of the method that makes the call.
        let code = unsafe { (functions.$name)($($argument),*) };
        if code == 0 { Ok(()) } else { Err($gpu.driver().error(stringify!($name), code)) }
    }};
}

/// A node of a captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNode(Handle);

/// Work that was captured, ready to be launched.
pub struct CapturedGraph {
    gpu: Arc<Gpu>,
    on: StreamId,
    graph: Handle,
    exec: Handle,
}

impl Gpu {
    /// Captures the work that this thread queues on a stream from now on, until [`Gpu::end_capture`]. None of it runs.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin_capture(&self, on: StreamId) -> Result<()> {
        self.bind()?;
        self.graph_functions()?;
        // Made now if it is not there: a launch of the graph needs it.
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
    /// The driver's: a call that a capture does not allow has spoiled it. No capture is under way then, either.
    pub fn end_capture(self: &Arc<Gpu>) -> Result<CapturedGraph> {
        let (on, graph) = self.end()?;
        let mut exec = 0;
        if let Err(error) = call!(self, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)) {
            call!(self, cuGraphDestroy(graph))?;
            return Err(error);
        }
        Ok(CapturedGraph { gpu: self.clone(), on, graph, exec })
    }

    /// Ends this thread's capture and drops what was captured. Nothing where there is none.
    pub fn abandon_capture(&self) {
        // A spoiled capture has no graph.
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

    /// Whether this thread captures work of this device.
    pub fn is_capturing(&self) -> bool {
        self.streams().captured().is_some()
    }

    /// The node of the work that this thread captured last; none where it captures nothing, or nothing yet.
    ///
    /// # Errors
    /// The driver's.
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
        // SAFETY: the driver's list of as many nodes, which stays until the next call on this stream.
        Ok(Some(GraphNode(unsafe { *nodes })))
    }
}

impl CapturedGraph {
    /// Queues all of it on the stream that was captured.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self) -> Result<()> {
        self.gpu.bind()?;
        let stream = self.gpu.streams().itself(self.gpu.driver(), self.on)?;
        call!(self.gpu, cuGraphLaunch(self.exec, stream))
    }

    /// Sets the arguments of a kernel for the launches from now on. `id` as for [`Gpu::run`].
    ///
    /// # Errors
    /// The driver's: the node is of another graph, or another kernel's.
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
        // What was launched may still run.
        let stream = self.gpu.streams().itself(self.gpu.driver(), self.on)?;
        self.gpu.driver().synchronize_stream(stream)?;
        call!(self.gpu, cuGraphExecDestroy(self.exec))?;
        call!(self.gpu, cuGraphDestroy(self.graph))
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // After a lost context the process's end gives everything back.
        let _ = self.destroy();
    }
}
