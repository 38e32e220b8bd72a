//! Reads a convolution's parameters from its operation descriptor.

use super::convolution::{Convolution, Layout, Pass, Precision};
use super::descriptor::Descriptor;
use crate::gpu::setup;

/// `cudnnBackendAttributeName_t`: an attribute's name.
mod name {
    pub(super) const DILATIONS: i32 = 102;
    pub(super) const STRIDES: i32 = 103;
    pub(super) const PADDINGS: i32 = 105;
    pub(super) const TENSOR_TYPE: i32 = 901;
    pub(super) const TENSOR_SIZES: i32 = 902;
    pub(super) const TENSOR_STRIDES: i32 = 903;
}

/// `CUDNN_DATA_FLOAT`, `CUDNN_DATA_HALF`, `CUDNN_DATA_BFLOAT16`; PyTorch queries no others.
const FLOAT: i64 = 0;
const HALF: i64 = 2;
const HALVES: [i64; 2] = [HALF, 9];

/// The convolution of a complete operation.
pub(super) fn convolution(operation: &Descriptor) -> Option<Convolution> {
    [Pass::Forward, Pass::Data, Pass::Weights].into_iter().find_map(|pass| described(operation, pass))
}

fn described(operation: &Descriptor, pass: Pass) -> Option<Convolution> {
    let [how, w, x, y] = attributes(pass).map(|attribute| operation.child(attribute));
    let sizes = |tensor: &Descriptor| -> Option<Vec<u64>> {
        let sizes = tensor.numbers(name::TENSOR_SIZES)?.into_iter();
        sizes.map(|size| u64::try_from(size).ok().filter(|size| *size > 0)).collect()
    };
    let (how, x) = (how?, x?);
    let all_are =
        |attribute, value| how.numbers(attribute).is_none_or(|all| all.iter().all(|one| *one == value));
    let element = *x.numbers(name::TENSOR_TYPE)?.first()?;
    let (precision, element_bytes) = match setup().gpu.capability {
        (8.., _) if element == FLOAT => (Precision::Float, 4),
        (7.., _) if HALVES.contains(&element) => (Precision::Half, 2),
        _ => (Precision::Plain, if HALVES.contains(&element) { 2 } else { 4 }),
    };
    let nhwc = x.numbers(name::TENSOR_STRIDES)?.get(1) == Some(&1);
    let is_dense = all_are(name::STRIDES, 1) && all_are(name::DILATIONS, 1);
    let in_place = all_are(name::STRIDES, 1) && all_are(name::PADDINGS, 0);
    let layout = if nhwc { Layout::Nhwc } else { Layout::Nchw };
    let (x, w, y) = (sizes(x)?, sizes(w?)?, sizes(y?)?);
    let whole = [&x, &w, &y].iter().all(|sizes| sizes.len() > 2) && x[1].is_multiple_of(w[1]);
    let is_fp16 = element == HALF;
    whole.then_some(Convolution {
        pass,
        precision,
        element_bytes,
        is_fp16,
        layout,
        x,
        w,
        y,
        in_place,
        is_dense,
    })
}

/// The operation's attributes: convolution, weights, input, output.
fn attributes(pass: Pass) -> [i32; 4] {
    match pass {
        Pass::Forward => [702, 703, 704, 705],
        Pass::Data => [708, 709, 710, 711],
        Pass::Weights => [714, 715, 716, 717],
    }
}
