//! What PyTorch may call and is not imitated: each call names itself on stderr, once, and answers "not
//! supported".
//!
//! Products of sparse matrices make results whose size depends on values; the other calls share memory
//! between processes or with other libraries.

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

unknown! { Sparse:
    cusparseCbsrmm cusparseCbsrmv cusparseCbsrsm2_analysis cusparseCbsrsm2_bufferSize cusparseCbsrsm2_solve
    cusparseCbsrsv2_analysis cusparseCbsrsv2_bufferSize cusparseCbsrsv2_solve cusparseCcsrgeam2
    cusparseCcsrgeam2_bufferSizeExt cusparseCreate cusparseCreateBsrsm2Info cusparseCreateBsrsv2Info
    cusparseCreateCoo cusparseCreateCsr cusparseCreateDnMat cusparseCreateDnVec
    cusparseCreateIdentityPermutation cusparseCreateMatDescr cusparseCsrSetPointers cusparseCsrSetStridedBatch
    cusparseDbsrmm cusparseDbsrmv cusparseDbsrsm2_analysis cusparseDbsrsm2_bufferSize cusparseDbsrsm2_solve
    cusparseDbsrsv2_analysis cusparseDbsrsv2_bufferSize cusparseDbsrsv2_solve cusparseDcsrgeam2
    cusparseDcsrgeam2_bufferSizeExt cusparseDestroy cusparseDestroyBsrsm2Info cusparseDestroyBsrsv2Info
    cusparseDestroyDnMat cusparseDestroyDnVec cusparseDestroyMatDescr cusparseDestroySpMat
    cusparseDnMatSetStridedBatch cusparseGetErrorString cusparseLtDenseDescriptorInit cusparseLtInit
    cusparseLtMatDescriptorDestroy cusparseLtMatmul cusparseLtMatmulAlgGetAttribute
    cusparseLtMatmulAlgSelectionInit cusparseLtMatmulAlgSetAttribute cusparseLtMatmulDescSetAttribute
    cusparseLtMatmulDescriptorInit cusparseLtMatmulGetWorkspace cusparseLtMatmulPlanDestroy
    cusparseLtMatmulPlanInit cusparseLtMatmulSearch cusparseLtSpMMACompress2 cusparseLtSpMMACompressedSize2
    cusparseLtStructuredDescriptorInit cusparseSDDMM cusparseSDDMM_bufferSize cusparseSDDMM_preprocess
    cusparseSbsrmm cusparseSbsrmv cusparseSbsrsm2_analysis cusparseSbsrsm2_bufferSize cusparseSbsrsm2_solve
    cusparseSbsrsv2_analysis cusparseSbsrsv2_bufferSize cusparseSbsrsv2_solve cusparseScsrgeam2
    cusparseScsrgeam2_bufferSizeExt cusparseSetMatDiagType cusparseSetMatFillMode cusparseSetMatIndexBase
    cusparseSetMatType cusparseSetPointerMode cusparseSetStream cusparseSpGEMM_compute cusparseSpGEMM_copy
    cusparseSpGEMM_createDescr cusparseSpGEMM_destroyDescr cusparseSpGEMM_workEstimation cusparseSpMM
    cusparseSpMM_bufferSize cusparseSpMV cusparseSpMV_bufferSize cusparseSpMatGetSize
    cusparseSpMatSetAttribute cusparseSpSM_analysis cusparseSpSM_bufferSize cusparseSpSM_createDescr
    cusparseSpSM_destroyDescr cusparseSpSM_solve cusparseSpSV_analysis cusparseSpSV_bufferSize
    cusparseSpSV_createDescr cusparseSpSV_destroyDescr cusparseSpSV_solve cusparseXbsrsm2_zeroPivot
    cusparseXbsrsv2_zeroPivot cusparseXcoo2csr cusparseXcoosortByRow cusparseXcoosort_bufferSizeExt
    cusparseXcsrgeam2Nnz cusparseXcsrsort cusparseXcsrsort_bufferSizeExt cusparseZbsrmm cusparseZbsrmv
    cusparseZbsrsm2_analysis cusparseZbsrsm2_bufferSize cusparseZbsrsm2_solve cusparseZbsrsv2_analysis
    cusparseZbsrsv2_bufferSize cusparseZbsrsv2_solve cusparseZcsrgeam2 cusparseZcsrgeam2_bufferSizeExt
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
