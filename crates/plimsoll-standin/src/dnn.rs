//! cuDNN 9: every description is taken, nothing is computed. Convolutions reach PyTorch by the graph API
//! (`dnn/graph.rs`), which may answer workspaces by a model (`dnn/workspace.rs`); the older API, which PyTorch has
//! beside it, needs none. Normalization, recurrent networks and the CTC loss are in files of their own.

mod convolution;
mod ctc;
mod graph;
mod normalization;
mod recurrent;
mod tensor;
mod workspace;

use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, makers, nothing, unknown, work};
use crate::error::Outcome;
use crate::notice;
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
        _handle: u64, _x: u64, _w: u64, _convolution: u64, _y: u64, _algorithm: c_int, bytes: Out<u64>,
    ) {
        none(bytes)
    }
    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        _handle: u64, _w: u64, _dy: u64, _convolution: u64, _dx: u64, _algorithm: c_int, bytes: Out<u64>,
    ) {
        none(bytes)
    }
    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
        _handle: u64, _x: u64, _dy: u64, _convolution: u64, _dw: u64, _algorithm: c_int, bytes: Out<u64>,
    ) {
        none(bytes)
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
    cudnnCreate cudnnCreateActivationDescriptor cudnnCreateConvolutionDescriptor
    cudnnCreateDropoutDescriptor cudnnCreateFilterDescriptor cudnnCreatePoolingDescriptor
    cudnnCreateRNNDataDescriptor cudnnCreateRNNDescriptor cudnnCreateSpatialTransformerDescriptor
    cudnnCreateTensorDescriptor
}

nothing! { Dnn:
    cudnnDestroyActivationDescriptor cudnnDestroyConvolutionDescriptor
    cudnnDestroyFilterDescriptor
    cudnnDestroySpatialTransformerDescriptor
    cudnnSetActivationDescriptor
    cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor
    cudnnSetFilterNdDescriptor cudnnSetPooling2dDescriptor
    cudnnSetSpatialTransformerNdDescriptor
}

work! { Dnn:
    cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnPoolingForward
    cudnnRNNBackwardData_v8 cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnSpatialTfGridGeneratorBackward
    cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward
}

unknown! { Dnn:
    cudnnGetFilterNdDescriptor
}

/// Bytes of a workspace, by a model or none.
fn asked(model: impl FnOnce() -> u64) -> u64 {
    crate::workspace::asked(notice::CUDNN, model)
}

/// Answers that no workspace is needed.
fn none(bytes: Out<u64>) -> Outcome {
    bytes.put(crate::workspace::none(notice::CUDNN))
}

/// One algorithm, all zero: number 0, found well, in no time, without a workspace.
fn one_algorithm(count: Out<c_int>, found: Out<u8>) -> Outcome {
    found.put_bytes(&[0; ALGORITHM_BYTES])?;
    count.put(1)
}
