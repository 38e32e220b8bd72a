//! What the stand-in is told by its environment: the names of the variables, for the launcher, and their
//! reading.
//!
//! | variable | meaning | if it is not set |
//! |---|---|---|
//! | `PLIMSOLL_STANDIN_GPU` | a name from [`plimsoll_gpu::GPUS`], as `H100` | `A100-80GB` |
//! | `PLIMSOLL_STANDIN_MEMORY` | the device's memory in bytes | as the GPU has |
//! | `PLIMSOLL_STANDIN_CONTEXT` | what of that each process takes for its context, in bytes | 0 |
//! | `PLIMSOLL_STANDIN_SHARED` | the folder by which processes share the devices: `share.rs` | to each all of it |
//! | `PLIMSOLL_STANDIN_CC` | compute capability, as `8.9`; the rest as the first GPU of it | as the GPU has |
//! | `PLIMSOLL_STANDIN_DEVICES` | how many devices there are | 1 |
//! | `PLIMSOLL_STANDIN_ADDRESSES` | the order in which addresses are handed out: `up` or `down` | `up` |
//! | `PLIMSOLL_STANDIN_CUDNN_WORKSPACE` | workspaces of cuDNN and cuFFT: `none`, `model` or `library` | `none` |
//! | `PLIMSOLL_STANDIN_PLANNER` | the program that asks cuDNN where that is wanted: [`crate::planner`] | the model answers |
//! | `PLIMSOLL_STANDIN_FAULT` | calls that fail: `cudaMalloc:3=2,…` | none |
//! | `PLIMSOLL_STANDIN_NOTICES` | a folder for what processes are told: [`crate::notice`] | stderr alone |
//! | `PLIMSOLL_STANDIN_VERSION` | the launcher's version, compared with the library's | not compared |
//! | `CUDA_VISIBLE_DEVICES` | as with a real driver: numbers of devices | all |

use std::io::Write;
use std::sync::OnceLock;

/// Names the GPU that is imitated.
pub const GPU: &str = "PLIMSOLL_STANDIN_GPU";
/// Bytes of memory that each device has.
pub const MEMORY: &str = "PLIMSOLL_STANDIN_MEMORY";
/// Bytes of that which each process takes for its context.
pub const CONTEXT: &str = "PLIMSOLL_STANDIN_CONTEXT";
/// The folder by which processes share the devices.
pub const SHARED: &str = "PLIMSOLL_STANDIN_SHARED";
/// The compute capability, as `8.9`.
pub const CAPABILITY: &str = "PLIMSOLL_STANDIN_CC";
/// How many devices there are.
pub const DEVICES: &str = "PLIMSOLL_STANDIN_DEVICES";
/// The order in which addresses are handed out: `up` or `down`.
pub const ADDRESSES: &str = "PLIMSOLL_STANDIN_ADDRESSES";
/// Workspaces of cuDNN and cuFFT: `none`, `model` or `library`.
pub const CUDNN_WORKSPACE: &str = "PLIMSOLL_STANDIN_CUDNN_WORKSPACE";
/// The program that becomes the planner by its verb [`crate::place::PLANNER`].
pub const PLANNER: &str = "PLIMSOLL_STANDIN_PLANNER";
/// Calls that are to fail.
pub const FAULT: &str = "PLIMSOLL_STANDIN_FAULT";
/// A folder: what each process is told besides on stderr.
pub const NOTICES: &str = "PLIMSOLL_STANDIN_NOTICES";
/// The version of the program that set up the environment.
pub const VERSION: &str = "PLIMSOLL_STANDIN_VERSION";
/// CUDA's own: which devices this process sees.
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Which workspaces cuDNN and cuFFT ask for, where they are not documented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workspaces {
    /// None: what PyTorch itself asks for remains.
    None,
    /// Those of the models in `dnn/` and `fft.rs`.
    Model,
    /// Those that the library itself answers, where it can be asked without a device; else the models'.
    Library,
}

impl Workspaces {
    /// What the environment asks for.
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

/// The variable's text, if it is set and not empty.
pub(crate) fn text(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|text| !text.is_empty())
}

/// The variable's value; what cannot be read is told, with an example, and counts as not set.
pub(crate) fn value<T>(variable: &str, example: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = text(variable)?;
    let value = read(&text);
    if value.is_none() {
        complain(variable, &text, example);
    }
    value
}

/// Says that a variable's text cannot be read.
pub(crate) fn complain(variable: &str, text: &str, example: &str) {
    say(&format!("{variable}={text} cannot be read and is left out; an example: {example}"));
}

/// Says something on stderr, as one line that others' lines cannot break.
pub(crate) fn say(line: &str) {
    let line = format!("plimsoll-standin: {line}\n");
    // Nobody can be told that stderr is closed.
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
