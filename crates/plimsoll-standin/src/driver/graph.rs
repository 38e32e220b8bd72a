//! Captures and graphs, under the driver's names. A kernel's arguments can be changed between launches, which has no
//! effect here.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::calls;
use crate::outside;
use crate::stream::{ExecHandle, GraphHandle, NodeHandle, StreamHandle, exchange_mode, kernel_on, streams};

thread_local! {
    /// The last node of the capture that this thread queried last. Callers get its address.
    static TAIL: Cell<NodeHandle> = const { Cell::new(0) };
}

calls! { Driver:
    fn cuStreamBeginCapture_v2(stream: StreamHandle, _mode: c_int) {
        streams().begin(stream)
    }
    fn cuStreamEndCapture(stream: StreamHandle, graph: Out<GraphHandle>) {
        graph.put(streams().end(stream)?)
    }
    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) {
        mode.put(exchange_mode(mode.get()?))
    }
    fn cuStreamGetCaptureInfo_v2(
        stream: StreamHandle, status: Out<c_int>, number: Out<u64>, graph: Out<GraphHandle>,
        nodes: Out<*const NodeHandle>, count: Out<usize>,
    ) {
        let capture = streams().capture(stream)?;
        let tail = capture.and_then(|capture| capture.tail());
        TAIL.set(tail.unwrap_or(0));
        nodes.offer(TAIL.with(|tail| tail.as_ptr().cast_const()));
        count.offer(usize::from(tail.is_some()));
        number.offer(capture.map_or(0, |capture| capture.number));
        graph.offer(capture.map_or(0, |capture| capture.graph));
        status.put(c_int::from(capture.is_some()))
    }
    fn cuGraphInstantiateWithFlags(exec: Out<ExecHandle>, graph: GraphHandle, _flags: u64) {
        let nodes = streams().nodes(graph)?;
        let handle = streams().instantiate(graph)?;
        outside::made_graph(handle, nodes)?;
        exec.put(handle)
    }
    fn cuGraphLaunch(exec: ExecHandle, stream: StreamHandle) {
        streams().origin(exec)?;
        kernel_on(stream);
        Ok(())
    }
    fn cuGraphExecKernelNodeSetParams_v2(exec: ExecHandle, node: NodeHandle, _kernel: *const c_void) {
        streams().change(exec, node)
    }
    fn cuGraphExecDestroy(exec: ExecHandle) {
        outside::ended_graph(exec);
        streams().destroy_exec(exec)
    }
    fn cuGraphDestroy(graph: GraphHandle) {
        streams().destroy_graph(graph)
    }
}
