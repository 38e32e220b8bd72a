//! A convolution's parameters, read from its operation descriptor, for the model in [`super::workspace`].

use super::graph::Descriptor;
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

/// The pass, by the tensor that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Data,
    Weights,
}

impl Pass {
    /// The operation's attributes: convolution, weights, input, output.
    fn attributes(self) -> [i32; 4] {
        match self {
            Pass::Forward => [702, 703, 704, 705],
            Pass::Data => [708, 709, 710, 711],
            Pass::Weights => [714, 715, 716, 717],
        }
    }
}

/// The kind of kernels that may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    /// Tensor cores, 16-bit inputs.
    Half,
    /// Tensor cores, 32-bit inputs rounded to TF32.
    Float,
    /// No tensor cores.
    Plain,
}

/// Memory layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Nchw,
    Nhwc,
}

/// A convolution's shape. Sizes are in PyTorch's order: `[N, C, …]`, `[K, C / groups, …]`, `[N, K, …]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Convolution {
    pub(super) pass: Pass,
    pub(super) precision: Precision,
    pub(super) element_bytes: u64,
    /// Whether the type is `float16`.
    pub(super) is_fp16: bool,
    pub(super) layout: Layout,
    pub(super) x: Vec<u64>,
    pub(super) w: Vec<u64>,
    pub(super) y: Vec<u64>,
    /// Whether stride is 1 and padding 0.
    pub(super) in_place: bool,
    /// Whether stride and dilation are 1.
    pub(super) is_dense: bool,
}

impl Convolution {
    /// The convolution of a complete operation.
    pub(super) fn of(operation: &Descriptor) -> Option<Convolution> {
        [Pass::Forward, Pass::Data, Pass::Weights].into_iter().find_map(|pass| described(operation, pass))
    }

    /// Whether cuDNN chooses different kernels without a device.
    ///
    /// Note [Depthwise]: for depthwise convolutions in 16 bits cuDNN 9.19 uses engines (5, 6 and 16 for the three
    /// passes) that it reports as unsupported without a driver. It then chooses others, with up to a hundred times the
    /// workspace. So the model answers for these.
    pub(super) fn needs_a_device(&self) -> bool {
        self.precision == Precision::Half && self.w[1] == 1 && self.x[1] > 1
    }
}

fn described(operation: &Descriptor, pass: Pass) -> Option<Convolution> {
    let [how, w, x, y] = pass.attributes().map(|attribute| operation.child(attribute));
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
