//! Captured graphs: they can be counted, instantiated, launched and destroyed.

use std::ffi::c_void;

use crate::argument::Out;
use crate::call::{calls, makers, new_handle, nothing};
use crate::error::Outcome;
use crate::outside;
use crate::stream::{ExecHandle, GraphHandle, streams, work};

calls! { Runtime:
    /// The number of nodes; their handles are not reported.
    fn cudaGraphGetNodes(graph: GraphHandle, _nodes: *mut c_void, count: Out<usize>) {
        count.put(usize::try_from(streams().nodes(graph)?).unwrap_or(usize::MAX))
    }
    fn cudaGraphDestroy(graph: GraphHandle) {
        streams().destroy_graph(graph)
    }
    fn cudaGraphInstantiate(exec: Out<ExecHandle>, graph: GraphHandle) {
        instantiate(exec, graph)
    }
    fn cudaGraphInstantiateWithFlags(exec: Out<ExecHandle>, graph: GraphHandle) {
        instantiate(exec, graph)
    }
    fn cudaGraphExecDestroy(exec: ExecHandle) {
        outside::ended_graph(exec);
        Ok(())
    }
    /// A graph's memory pool is empty.
    fn cudaDeviceGetGraphMemAttribute(_device: i32, _attribute: i32, bytes: Out<u64>) {
        bytes.put(0)
    }
}

makers! { Runtime: cudaUserObjectCreate }

work! { Runtime: cudaGraphLaunch }

nothing! { Runtime:
    cudaGraphUpload cudaGraphDebugDotPrint cudaGraphRetainUserObject
    cudaUserObjectRelease cudaDeviceSetGraphMemAttribute cudaDeviceGraphMemTrim
    cudaStreamUpdateCaptureDependencies
}

/// CUDA 11's form and CUDA 12's differ in what follows the graph, which does not matter.
fn instantiate(exec: Out<ExecHandle>, graph: GraphHandle) -> Outcome {
    let nodes = streams().nodes(graph)?;
    let handle = new_handle();
    outside::made_graph(handle, nodes)?;
    exec.put(handle)
}
