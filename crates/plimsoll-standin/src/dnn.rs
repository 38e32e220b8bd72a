//! cuDNN 9: accepts every descriptor, computes nothing. PyTorch runs convolutions through the graph API
//! (`dnn/graph.rs`), whose workspaces come from cuDNN itself or from a model (`dnn/workspace.rs`). The legacy
//! convolution API reports no workspace. Normalization, recurrent networks and the CTC loss are in separate files.

mod convolution;
mod ctc;
mod described;
mod descriptor;
mod graph;
mod normalization;
mod recurrent;
mod tensor;
mod workspace;

use std::ffi::{c_int, c_void};

use plimsoll_gpu::outside::Library;

use crate::argument::Out;
use crate::call::{calls, makers, new_handle, nothing, unknown};
use crate::error::Outcome;
use crate::notice;
use crate::outside;
use crate::stream::{StreamHandle, work};

/// `sizeof(cudnnConvolutionFwdAlgoPerf_t)`, the same for both backward passes: algorithm, status, time, workspace
/// bytes, determinism, math type.
const ALGORITHM_BYTES: usize = 48;

calls! { Dnn:
    fn cudnnCreate(handle: Out<u64>) {
        outside::used(Library::CuDnn)?;
        handle.put(new_handle())
    }
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
    cudnnCreateActivationDescriptor cudnnCreateConvolutionDescriptor
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

/// The workspace in bytes: the model's, or 0.
fn asked(model: impl FnOnce() -> u64) -> u64 {
    crate::workspace::asked(notice::CUDNN, model)
}

/// Reports that no workspace is needed.
fn none(bytes: Out<u64>) -> Outcome {
    bytes.put(crate::workspace::none(notice::CUDNN))
}

/// One algorithm, all zero: number 0, success, zero time, no workspace.
fn one_algorithm(count: Out<c_int>, found: Out<u8>) -> Outcome {
    found.put_bytes(&[0; ALGORITHM_BYTES])?;
    count.put(1)
}
