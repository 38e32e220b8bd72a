//! cuDNN 9: every description is taken, nothing is computed. Convolutions reach PyTorch by the graph API
//! (`dnn/graph.rs`), which may answer workspaces by a model (`dnn/workspace.rs`); the older API, which PyTorch has
//! beside it, needs none. Recurrent networks are in `dnn/recurrent.rs`. What CTC needs is not documented: it is refused.

mod graph;
mod normalization;
mod recurrent;
mod workspace;

use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, makers, nothing, unknown, work};
use crate::error::Outcome;
use crate::stream::StreamHandle;

/// `sizeof(cudnnConvolutionFwdAlgoPerf_t)`, and of the two for the backward pass: algorithm, status, time,
/// workspace in bytes, whether it is deterministic, its mathematics.
const ALGORITHM_BYTES: usize = 48;

calls! { Dnn:
    fn cudnnSetStream(_handle: u64, _stream: StreamHandle) {
        Ok(())
    }
    fn cudnnGetStream(_handle: u64, stream: Out<StreamHandle>) {
        stream.put(0)
    }
    fn cudnnGetConvolutionForwardWorkspaceSize(
        _handle: u64, _x: u64, _w: u64, _convolution: u64, _y: u64, _algorithm: c_int, bytes: Out<usize>,
    ) {
        bytes.put(0)
    }
    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        _handle: u64, _w: u64, _dy: u64, _convolution: u64, _dx: u64, _algorithm: c_int, bytes: Out<usize>,
    ) {
        bytes.put(0)
    }
    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
        _handle: u64, _x: u64, _dy: u64, _convolution: u64, _dw: u64, _algorithm: c_int, bytes: Out<usize>,
    ) {
        bytes.put(0)
    }
    fn cudnnGetConvolutionForwardAlgorithm_v7(
        _handle: u64, _x: u64, _w: u64, _convolution: u64, _y: u64, _wanted: c_int, count: Out<c_int>,
        found: Out<u8>,
    ) {
        one_algorithm(count, found)
    }
    fn cudnnGetConvolutionBackwardDataAlgorithm_v7(
        _handle: u64, _w: u64, _dy: u64, _convolution: u64, _dx: u64, _wanted: c_int, count: Out<c_int>,
        found: Out<u8>,
    ) {
        one_algorithm(count, found)
    }
    fn cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        _handle: u64, _x: u64, _dy: u64, _convolution: u64, _dw: u64, _wanted: c_int, count: Out<c_int>,
        found: Out<u8>,
    ) {
        one_algorithm(count, found)
    }
    fn cudnnFindConvolutionForwardAlgorithmEx(
        _handle: u64, _x: u64, _xs: *const c_void, _w: u64, _ws: *const c_void, _convolution: u64, _y: u64,
        _ys: *const c_void, _wanted: c_int, count: Out<c_int>, found: Out<u8>,
    ) {
        one_algorithm(count, found)
    }
    fn cudnnFindConvolutionBackwardDataAlgorithmEx(
        _handle: u64, _w: u64, _ws: *const c_void, _dy: u64, _dys: *const c_void, _convolution: u64, _dx: u64,
        _dxs: *const c_void, _wanted: c_int, count: Out<c_int>, found: Out<u8>,
    ) {
        one_algorithm(count, found)
    }
    fn cudnnFindConvolutionBackwardFilterAlgorithmEx(
        _handle: u64, _x: u64, _xs: *const c_void, _dy: u64, _dys: *const c_void, _convolution: u64, _dw: u64,
        _dws: *const c_void, _wanted: c_int, count: Out<c_int>, found: Out<u8>,
    ) {
        one_algorithm(count, found)
    }
}

makers! { Dnn:
    cudnnCreate cudnnCreateActivationDescriptor cudnnCreateCTCLossDescriptor cudnnCreateConvolutionDescriptor
    cudnnCreateDropoutDescriptor cudnnCreateFilterDescriptor cudnnCreatePoolingDescriptor
    cudnnCreateRNNDataDescriptor cudnnCreateRNNDescriptor cudnnCreateSpatialTransformerDescriptor
    cudnnCreateTensorDescriptor
}

nothing! { Dnn:
    cudnnDestroyActivationDescriptor cudnnDestroyCTCLossDescriptor cudnnDestroyConvolutionDescriptor
    cudnnDestroyFilterDescriptor
    cudnnDestroySpatialTransformerDescriptor
    cudnnSetActivationDescriptor cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v9
    cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor
    cudnnSetFilterNdDescriptor cudnnSetPooling2dDescriptor
    cudnnSetSpatialTransformerNdDescriptor
}

work! { Dnn:
    cudnnBackendExecute cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTrainingEx cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnPoolingForward
    cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward
    cudnnSpatialTfSamplerForward
}

unknown! { Dnn:
    cudnnCTCLoss cudnnCTCLoss_v8 cudnnGetCTCLossWorkspaceSize
    cudnnGetCTCLossWorkspaceSize_v8 cudnnGetFilterNdDescriptor

}

/// One algorithm, all zero: number 0, found well, in no time, without a workspace.
fn one_algorithm(count: Out<c_int>, found: Out<u8>) -> Outcome {
    found.put_bytes(&[0; ALGORITHM_BYTES])?;
    count.put(1)
}
