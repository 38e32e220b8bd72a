//! Unsupported calls that PyTorch may make: each is reported once on stderr, and returns "not supported". Most of them
//! share memory with other libraries.

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
