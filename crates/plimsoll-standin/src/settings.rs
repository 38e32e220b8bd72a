//! The stand-in's environment variables: their names, for the launcher, and their parsing.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `PLIMSOLL_STANDIN_GPU` | a GPU as [`plimsoll_gpu::described`] reads it, such as `H100` or `H100:3g.40gb` | `A100-80GB` |
//! | `PLIMSOLL_STANDIN_MEMORY` | the device's memory in bytes | the GPU's |
//! | `PLIMSOLL_STANDIN_BEYOND` | bytes that each device has beyond what it reports | 0 |
//! | `PLIMSOLL_STANDIN_OTHERS` | bytes of each device that other programs use | 0 |
//! | `PLIMSOLL_STANDIN_CONTEXT` | bytes of the device's memory for each process's CUDA context and libraries, to which NCCL's are added; or `laws`, which charges each call with the memory that it takes on a GPU | 0, which also leaves out NCCL's memory |
//! | `PLIMSOLL_STANDIN_SHARED` | the folder through which processes share the devices: `share.rs` | devices are not shared |
//! | `PLIMSOLL_STANDIN_CC` | compute capability, such as `8.9`; other properties are those of the first GPU with it | the GPU's |
//! | `PLIMSOLL_STANDIN_DEVICES` | the number of devices | 1 |
//! | `PLIMSOLL_STANDIN_ADDRESSES` | the order of allocation addresses: `driver`, as on an H200, or `up` | `driver` |
//! | `PLIMSOLL_STANDIN_CUDNN_WORKSPACE` | workspaces of cuDNN and cuFFT: `none`, `model` or `library` | `none` |
//! | `PLIMSOLL_STANDIN_PLANNER` | the program that runs cuDNN for `library`: [`crate::planner`] | the model answers |
//! | `PLIMSOLL_STANDIN_ANSWERS` | the file in which processes keep what the planner answered | answers are not kept |
//! | `PLIMSOLL_STANDIN_FAULT` | calls to fail: `cudaMalloc:3=2,…` | none |
//! | `PLIMSOLL_STANDIN_NOTICES` | a folder for each process's notices: [`crate::notice`] | stderr only |
//! | `PLIMSOLL_STANDIN_VERSION` | the launcher's version, compared with the library's | not compared |
//! | `CUDA_VISIBLE_DEVICES` | device numbers, as with a real driver | all |

use std::io::Write;
use std::sync::OnceLock;

/// The name or the description of the simulated GPU.
pub const GPU: &str = "PLIMSOLL_STANDIN_GPU";
/// Memory of each device, in bytes.
pub const MEMORY: &str = "PLIMSOLL_STANDIN_MEMORY";
/// Bytes that each device has beyond what it reports, so that the program sees the GPU's real size but does not run
/// out of memory there.
pub const BEYOND: &str = "PLIMSOLL_STANDIN_BEYOND";
/// Bytes of each device that other programs use.
pub const OTHERS: &str = "PLIMSOLL_STANDIN_OTHERS";
/// Bytes of device memory for each process's CUDA context and libraries, or `laws`.
pub const CONTEXT: &str = "PLIMSOLL_STANDIN_CONTEXT";
/// The folder through which processes share the devices.
pub const SHARED: &str = "PLIMSOLL_STANDIN_SHARED";
/// The compute capability, such as `8.9`.
pub const CAPABILITY: &str = "PLIMSOLL_STANDIN_CC";
/// The number of devices.
pub const DEVICES: &str = "PLIMSOLL_STANDIN_DEVICES";
/// The order of allocation addresses: `driver` or `up`.
pub const ADDRESSES: &str = "PLIMSOLL_STANDIN_ADDRESSES";
/// Workspaces of cuDNN and cuFFT: `none`, `model` or `library`.
pub const CUDNN_WORKSPACE: &str = "PLIMSOLL_STANDIN_CUDNN_WORKSPACE";
/// The program that runs as the planner with the subcommand [`crate::place::PLANNER`].
pub const PLANNER: &str = "PLIMSOLL_STANDIN_PLANNER";
/// The file in which processes keep what the planner answered.
pub const ANSWERS: &str = "PLIMSOLL_STANDIN_ANSWERS";
/// The calls to fail.
pub const FAULT: &str = "PLIMSOLL_STANDIN_FAULT";
/// A folder for each process's notices, in addition to stderr.
pub const NOTICES: &str = "PLIMSOLL_STANDIN_NOTICES";
/// The version of the program that set up the environment.
pub const VERSION: &str = "PLIMSOLL_STANDIN_VERSION";
/// CUDA's own variable: the devices that this process sees.
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// How cuDNN's and cuFFT's undocumented workspace sizes are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workspaces {
    /// No bytes, so that only PyTorch's own workspaces count.
    None,
    /// The sizes from the models in `dnn/` and `fft.rs`.
    Model,
    /// The library's own size if it answers without a device, otherwise the model's.
    Library,
}

impl Workspaces {
    /// Reads the environment.
    pub(crate) fn wanted() -> Self {
        static WANTED: OnceLock<Workspaces> = OnceLock::new();
        let read = |text: &str| match text {
            "none" => Some(Workspaces::None),
            "model" => Some(Workspaces::Model),
            "library" => Some(Workspaces::Library),
            _ => None,
        };
        *WANTED.get_or_init(|| {
            value(CUDNN_WORKSPACE, "library (or model, none)", read).unwrap_or(Workspaces::None)
        })
    }
}

/// The text of the variable, if it is set and not empty.
pub(crate) fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|text| !text.is_empty())
}

/// The value of the variable. Text that does not parse is reported, with an example, and counts as unset.
pub(crate) fn value<T>(variable: &str, example: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = text(variable)?;
    let value = read(&text);
    if value.is_none() {
        complain(variable, &text, example);
    }
    value
}

/// Reports a variable that does not parse.
pub(crate) fn complain(variable: &str, text: &str, example: &str) {
    say(&format!("{variable}={text} is not valid and is ignored; example: {example}"));
}

/// Writes one line to stderr in a single write, so that lines of other processes do not split it.
pub(crate) fn say(line: &str) {
    let line = format!("plimsoll-standin: {line}\n");
    // There is no way to report a closed stderr.
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
