//! What PyTorch may call and is not imitated: each call names itself on stderr, once, and answers "not
//! supported".
//!
//! Most of them share memory between processes or with other libraries.

use crate::call::unknown;

unknown! { Runtime:
    cudaGraphAddNode cudaGraphConditionalHandleCreate cudaGraphNodeGetDependencies cudaIpcCloseMemHandle
    cudaIpcGetEventHandle cudaIpcGetMemHandle cudaIpcOpenEventHandle cudaIpcOpenMemHandle cudaLibraryGetGlobal
    cudaLibraryGetKernel cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction
    cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload cudaMemPoolCreate cudaMemPoolDestroy
    cudaStreamBeginCaptureToGraph
}

unknown! { Driver:
    cuGetExportTable cuGreenCtxCreate cuGreenCtxDestroy cuIpcGetMemHandle cuMemExportToShareableHandle
    cuMemGetAllocationPropertiesFromHandle cuMemImportFromShareableHandle cuMulticastAddDevice
    cuMulticastBindMem cuMulticastCreate cuMulticastUnbind
}

// Products with a matrix of which half the values are zero: how it is compressed is not documented.
unknown! { Sparse:
    cusparseLtDenseDescriptorInit cusparseLtInit cusparseLtMatDescriptorDestroy cusparseLtMatmul
    cusparseLtMatmulAlgGetAttribute cusparseLtMatmulAlgSelectionInit cusparseLtMatmulAlgSetAttribute
    cusparseLtMatmulDescSetAttribute cusparseLtMatmulDescriptorInit cusparseLtMatmulGetWorkspace
    cusparseLtMatmulPlanDestroy cusparseLtMatmulPlanInit cusparseLtMatmulSearch cusparseLtSpMMACompress2
    cusparseLtSpMMACompressedSize2 cusparseLtStructuredDescriptorInit
}

// Nothing runs that could be profiled.
unknown! { Profiler:
    cuptiActivityDisable cuptiActivityEnable cuptiActivityEnableCudaEventDeviceTimestamps
    cuptiActivityEnableDriverApi cuptiActivityEnableRuntimeApi cuptiActivityFlushAll
    cuptiActivityGetNextRecord cuptiActivityGetNumDroppedRecords cuptiActivityPopExternalCorrelationId
    cuptiActivityPushExternalCorrelationId cuptiActivityRegisterCallbacks
    cuptiActivityRegisterTimestampCallback cuptiActivitySetAttribute cuptiEnableCallback cuptiEnableDomain
    cuptiFinalize cuptiSubscribe cuptiUnsubscribe
}
