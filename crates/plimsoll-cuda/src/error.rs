//! The errors of this crate, each with what to do about it.

/// The result of a call in this crate.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// Why a GPU cannot be used, or why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library was not found, or the file is not a library.
    #[error("{library} is missing: {advice}; looked for {names} in {}", .places.join(", "))]
    Missing {
        /// The library.
        library: &'static str,
        /// Its file names.
        names: String,
        /// Every place that was searched, with the loader's message if it says more than "file not found".
        places: Vec<String>,
        /// Advice on what to install.
        advice: &'static str,
    },
    /// A library lacks a function that is needed.
    #[error("{library} ({path}) has no function {function}: its version is too old; {advice}")]
    TooOld {
        /// The library.
        library: &'static str,
        /// Its file.
        path: String,
        /// The function.
        function: &'static str,
        /// Advice on what to do.
        advice: &'static str,
    },
    /// The version of a library cannot be used.
    #[error("{library} ({path}) cannot be used: {why}")]
    WrongVersion {
        /// The library.
        library: &'static str,
        /// Its file.
        path: String,
        /// The problem with its version, and advice on what to install.
        why: String,
    },
    /// The driver finds no device.
    #[error("the driver sees no GPU: {why}")]
    NoDevice {
        /// The reason, from the driver or the environment.
        why: String,
    },
    /// There is no device with this number.
    #[error("cuda:{ordinal}: there {} here, numbered from 0", devices(*.count))]
    NoSuchDevice {
        /// The number.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The device is too old for the kernels.
    #[error(
        "{name} has compute capability {}.{}, but kernels need 7.5 (Turing) or newer: use another GPU, or the CPU",
        .capability.0, .capability.1
    )]
    OldDevice {
        /// The device's product name.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// The device has no memory left.
    #[error("{call}: the device is out of memory")]
    OutOfMemory {
        /// The name of the call.
        call: &'static str,
    },
    /// A call failed.
    #[error("{call}: {name} ({text}){}", lost(*.is_sticky))]
    Call {
        /// The name of the call.
        call: &'static str,
        /// NVIDIA's name for the error.
        name: String,
        /// NVIDIA's description of the error.
        text: String,
        /// Whether the context is lost, so that every later call also fails.
        is_sticky: bool,
    },
    /// The handle is from before the device was reset.
    #[error(
        "this handle is from before cuda:{ordinal} was reset, and so are its tensors: use the device that `Device::reset` returned"
    )]
    Reset {
        /// The device.
        ordinal: u32,
    },
    /// NVRTC could not compile a kernel's text: a bug in the operator that it belongs to.
    #[error("the kernel `{kernel}` does not compile for {arch}:\n{log}")]
    Compile {
        /// The kernel.
        kernel: String,
        /// The architecture.
        arch: String,
        /// The compiler's messages.
        log: String,
    },
    /// cuBLASLt has no algorithm for a product.
    #[error("cuBLASLt has no algorithm for {product}")]
    NoAlgorithm {
        /// The product's sizes and types.
        product: String,
    },
}

impl CudaError {
    /// The error for a driver that finds no device, with the likely reason.
    pub(crate) fn no_device() -> CudaError {
        let why = match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(devices) => {
                format!("CUDA_VISIBLE_DEVICES is \"{devices}\": unset it, or name devices that exist")
            }
            Err(_) => "`nvidia-smi` lists the devices that exist".to_owned(),
        };
        CudaError::NoDevice { why }
    }

    /// Whether the context is lost: the device can be used again only by a new process.
    pub fn is_sticky(&self) -> bool {
        matches!(self, CudaError::Call { is_sticky: true, .. })
    }
}

fn lost(is_sticky: bool) -> &'static str {
    if is_sticky { "; the context is lost: end this process to use the device again" } else { "" }
}

fn devices(count: u32) -> String {
    if count == 1 { "is 1 device".to_owned() } else { format!("are {count} devices") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_itself_and_every_place() {
        let error = CudaError::Missing {
            library: "NVRTC",
            names: "libnvrtc.so.13, libnvrtc.so.12".to_owned(),
            places: vec!["the loader's path".to_owned(), "/opt/cuda/lib64".to_owned()],
            advice: "`pip install nvidia-cuda-nvrtc`",
        };
        assert_eq!(
            error.to_string(),
            "NVRTC is missing: `pip install nvidia-cuda-nvrtc`; looked for libnvrtc.so.13, libnvrtc.so.12 in the loader's path, \
             /opt/cuda/lib64"
        );
    }

    #[test]
    fn a_device_number_too_high_says_how_many_there_are() {
        let error = |count| CudaError::NoSuchDevice { ordinal: 7, count }.to_string();
        assert_eq!(error(1), "cuda:7: there is 1 device here, numbered from 0");
        assert_eq!(error(4), "cuda:7: there are 4 devices here, numbered from 0");
    }
}
