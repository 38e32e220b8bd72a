//! The properties of a device that an operator may depend on.

/// The kind of kernels that a device runs or, if it is simulated, would run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Kernels for the host.
    Cpu,
    /// Kernels for NVIDIA GPUs.
    Cuda,
}

/// The properties of a device that an operator may depend on before it runs. A simulated device has the
/// same ones as the device that it simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The kind of kernels.
    pub kind: DeviceKind,
    /// The compute capability (major, minor) of a GPU.
    pub capability: Option<(i32, i32)>,
}
