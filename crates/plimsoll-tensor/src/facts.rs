//! What an operator may know of a device.

/// What kind of kernels a device runs or, if it is simulated, stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's kernels.
    Cpu,
    /// An NVIDIA GPU's kernels.
    Cuda,
}

/// What an operator may know of a device before it runs there: the same on a simulated device as on the one
/// that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Which kernels run.
    pub kind: DeviceKind,
    /// Compute capability, major and minor, of a GPU.
    pub capability: Option<(i32, i32)>,
}
