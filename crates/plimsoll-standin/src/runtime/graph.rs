//! Captured graphs: they can be counted, instantiated, launched and destroyed.

use std::ffi::c_void;

use crate::argument::Out;
use crate::call::{calls, makers, nothing};
use crate::stream::{GraphHandle, streams, work};

calls! { Runtime:
    /// The number of nodes; their handles are not reported.
    fn cudaGraphGetNodes(graph: GraphHandle, _nodes: *mut c_void, count: Out<usize>) {
        count.put(usize::try_from(streams().nodes(graph)?).unwrap_or(usize::MAX))
    }
    fn cudaGraphDestroy(graph: GraphHandle) {
        streams().destroy_graph(graph)
    }
    /// A graph's memory pool is empty.
    fn cudaDeviceGetGraphMemAttribute(_device: i32, _attribute: i32, bytes: Out<u64>) {
        bytes.put(0)
    }
}

makers! { Runtime: cudaGraphInstantiate cudaGraphInstantiateWithFlags cudaUserObjectCreate }

work! { Runtime: cudaGraphLaunch }

nothing! { Runtime:
    cudaGraphUpload cudaGraphExecDestroy cudaGraphDebugDotPrint cudaGraphRetainUserObject
    cudaUserObjectRelease cudaDeviceSetGraphMemAttribute cudaDeviceGraphMemTrim
    cudaStreamUpdateCaptureDependencies
}
