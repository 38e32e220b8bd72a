//! A convolution's parameters, for the model in [`super::workspace`].

/// The pass, by the tensor that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Data,
    Weights,
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
    /// Whether cuDNN chooses different kernels without a device.
    ///
    /// Note [Depthwise]: for depthwise convolutions in 16 bits cuDNN 9.19 uses engines (5, 6 and 16 for the three
    /// passes) that it reports as unsupported without a driver. It then chooses others, with up to a hundred times the
    /// workspace. So the model is used for these.
    pub(super) fn needs_a_device(&self) -> bool {
        self.precision == Precision::Half && self.w[1] == 1 && self.x[1] > 1
    }
}
