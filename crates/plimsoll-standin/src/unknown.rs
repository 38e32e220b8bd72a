//! What PyTorch may call and is not imitated: each call names itself on stderr, once, and answers "not
//! supported".
//!
//! Most of them share memory with other libraries.

use crate::call::unknown;

unknown! { Runtime:
    cudaGraphAddNode cudaGraphConditionalHandleCreate cudaGraphNodeGetDependencies cudaLibraryGetGlobal
    cudaLibraryGetKernel cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction
    cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload cudaMemPoolCreate cudaMemPoolDestroy
    cudaStreamBeginCaptureToGraph
}

unknown! { Driver:
    cuMemExportToShareableHandle cuMemGetAllocationPropertiesFromHandle cuMemImportFromShareableHandle
    cuMulticastAddDevice cuMulticastBindMem cuMulticastCreate cuMulticastUnbind
}
