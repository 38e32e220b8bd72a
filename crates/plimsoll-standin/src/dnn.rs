//! cuDNN 9: every description is taken, every plan needs no workspace, nothing is computed. Recurrent
//! networks, CTC and dropout states have sizes of their own that are not documented, and are refused.

use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, makers, new_handle, nothing, unknown, work};
use crate::error::Outcome;
use crate::stream::StreamHandle;

/// Types of an attribute of the graph API that PyTorch asks for: `cudnnBackendAttributeType_t`.
mod kind {
    pub(super) const INT64: i32 = 3;
    pub(super) const DESCRIPTOR: i32 = 15;
    pub(super) const INT32: i32 = 23;
    pub(super) const CHAR: i32 = 24;
}

/// `sizeof(cudnnConvolutionFwdAlgoPerf_t)`, and of the two for the backward pass: algorithm, status, time,
/// workspace in bytes, whether it is deterministic, its mathematics.
const ALGORITHM_BYTES: usize = 48;

/// The text that stands for a plan: two characters of JSON, an empty object.
const PLAN: &[u8] = b"{}";

calls! { Dnn:
    fn cudnnSetStream(_handle: u64, _stream: StreamHandle) {
        Ok(())
    }
    fn cudnnGetStream(_handle: u64, stream: Out<StreamHandle>) {
        stream.put(0)
    }
    fn cudnnBackendCreateDescriptor(_kind: c_int, descriptor: Out<u64>) {
        descriptor.put(new_handle())
    }
    /// Every attribute is zero, the workspace of a plan among them; one descriptor is found wherever some are
    /// looked for: the caller has made it and gives it to be filled.
    fn cudnnBackendGetAttribute(
        _descriptor: u64, _name: c_int, kind: c_int, wanted: i64, count: Out<i64>, values: Out<u8>,
    ) {
        backend_attribute(kind, wanted, count, values)
    }
    fn cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
        _handle: u64, _mode: c_int, _operation: c_int, _x: u64, _z: u64, _y: u64, _scale: u64,
        _activation: u64,
        bytes: Out<usize>,
    ) {
        bytes.put(0)
    }
    fn cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
        _handle: u64, _mode: c_int, _operation: c_int, _activation: u64, _x: u64, bytes: Out<usize>,
    ) {
        bytes.put(0)
    }
    fn cudnnGetBatchNormalizationBackwardExWorkspaceSize(
        _handle: u64, _mode: c_int, _operation: c_int, _x: u64, _y: u64, _dy: u64, _dz: u64, _dx: u64,
        _scale: u64,
        _activation: u64, bytes: Out<usize>,
    ) {
        bytes.put(0)
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
    cudnnBackendDestroyDescriptor cudnnBackendFinalize cudnnBackendSetAttribute
    cudnnDestroyActivationDescriptor cudnnDestroyCTCLossDescriptor cudnnDestroyConvolutionDescriptor
    cudnnDestroyDropoutDescriptor cudnnDestroyFilterDescriptor cudnnDestroyRNNDataDescriptor
    cudnnDestroyRNNDescriptor cudnnDestroySpatialTransformerDescriptor cudnnDestroyTensorDescriptor
    cudnnSetActivationDescriptor cudnnSetCTCLossDescriptorEx cudnnSetCTCLossDescriptor_v9
    cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType cudnnSetConvolutionNdDescriptor
    cudnnSetDropoutDescriptor cudnnSetFilterNdDescriptor cudnnSetPooling2dDescriptor cudnnSetRNNDataDescriptor
    cudnnSetRNNDescriptor_v8 cudnnSetSpatialTransformerNdDescriptor cudnnSetTensorNdDescriptor
}

work! { Dnn:
    cudnnBackendExecute cudnnBatchNormalizationBackwardEx cudnnBatchNormalizationForwardInference
    cudnnBatchNormalizationForwardTrainingEx cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnPoolingForward
    cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward cudnnSpatialTfSamplerBackward
    cudnnSpatialTfSamplerForward
}

unknown! { Dnn:
    cudnnCTCLoss cudnnCTCLoss_v8 cudnnDropoutGetStatesSize cudnnGetCTCLossWorkspaceSize
    cudnnGetCTCLossWorkspaceSize_v8 cudnnGetFilterNdDescriptor cudnnGetRNNTempSpaceSizes
    cudnnGetRNNWeightParams cudnnGetRNNWeightSpaceSize cudnnGetTensorNdDescriptor cudnnRNNBackwardData_v8
    cudnnRNNBackwardWeights_v8 cudnnRNNForward cudnnRestoreDropoutDescriptor
}

/// Answers for an attribute of the graph API.
fn backend_attribute(kind: c_int, wanted: i64, count: Out<i64>, values: Out<u8>) -> Outcome {
    let room = usize::try_from(wanted).unwrap_or(0);
    let (number, bytes) = match kind {
        kind::DESCRIPTOR => (1, Vec::new()),
        kind::INT64 => (wanted.max(1), vec![0; room * 8]),
        kind::INT32 => (wanted.max(1), vec![0; room * 4]),
        kind::CHAR => (PLAN.len() as i64, PLAN.iter().copied().chain([0].repeat(room)).take(room).collect()),
        _ => (0, Vec::new()),
    };
    count.offer(number);
    if bytes.is_empty() { Ok(()) } else { values.put_bytes(&bytes) }
}

/// One algorithm, all zero: number 0, found well, in no time, without a workspace.
fn one_algorithm(count: Out<c_int>, found: Out<u8>) -> Outcome {
    found.put_bytes(&[0; ALGORITHM_BYTES])?;
    count.put(1)
}
