//! Where a block was requested: the user's line, the operator, and what the program was doing. [`Origins`] has this for
//! each stack.
//!
//! A stack begins with PyTorch's allocator and ends in the interpreter. In between are hundreds of C++ frames, the
//! library's Python frames and, somewhere, the line that the user wrote. The innermost line that the user wrote is the
//! origin.

use super::forward_line::{ForwardLine, FoundBy};
use crate::snapshot::{Frame, FrameId, Snapshot, StackId, TextId};

/// The information in a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The innermost line outside the interpreter and the libraries. If there is none, the line of an installed
    /// package, or else of a library.
    pub line: Option<FrameId>,
    /// The library line that the user's line called: the innermost line of an installed package other than PyTorch,
    /// such as a model library. If the user's line is not in a module's `forward`, as in a training loop, this can also
    /// be the innermost line of PyTorch's layers, optimizers or compiled code.
    pub package_line: Option<FrameId>,
    /// The outermost operator that the line calls, named as in `at::_ops`.
    pub operator: Option<Name>,
    /// For a derivative, the line of its forward operator, if the recording has it.
    pub forward: Option<ForwardLine>,
    /// The activity of the program when it requested the block.
    pub activity: Activity,
    /// The name of the user's own category for stacks like this.
    pub custom: Option<TextId>,
}

/// A category that the user defines: it contains all blocks whose stack has a matching frame.
pub struct CustomCategory<'a> {
    /// The name of the category, as a string in the snapshot.
    pub name: TextId,
    /// Whether a frame matches. Frames are written `FILE:LINE FUNCTION`.
    pub matches: &'a dyn Fn(&str) -> bool,
}

/// Part of a string in the snapshot, such as a name inside a C++ frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    text: TextId,
    from: u32,
    to: u32,
}

impl Name {
    /// The operator that a C++ frame calls, named as in `at::_ops`.
    pub(super) fn of_operator(id: TextId, name: &str) -> Option<Self> {
        if name.starts_with("at::_ops::") { Self::between(id, name, "at::_ops::", "::") } else { None }
    }

    /// The text between two parts of a string.
    fn between(id: TextId, text: &str, before: &str, behind: &str) -> Option<Self> {
        let from = text.find(before)? + before.len();
        let to = from + text[from..].find(behind)?;
        Some(Self { text: id, from: u32::try_from(from).ok()?, to: u32::try_from(to).ok()? })
    }

    /// The name's text.
    pub fn of<'a>(&self, snapshot: &'a Snapshot) -> &'a str {
        snapshot.texts.get(self.text).get(self.from as usize..self.to as usize).unwrap_or_default()
    }
}

/// The activity in which a program requests memory, as its stack shows. If a stack shows several activities, the last one
/// in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Activity {
    /// Unknown: there are no frames, or they show none of the activities below.
    #[default]
    Unknown,
    /// Running Python or operators, outside all of the activities below.
    Forward,
    /// Building a module, or moving it to the device.
    Building,
    /// Computing a derivative.
    Backward,
    /// Recomputing, in the backward pass, the activations that a checkpoint did not keep.
    Recomputing,
    /// Accumulating a parameter's gradient.
    Accumulating,
    /// Running an optimizer step.
    OptimizerStep,
    /// Creating optimizer state.
    OptimizerState,
    /// Gathering a sharded parameter.
    Gathering,
    /// Allocating the buckets in which gradients are sent to other devices.
    Bucketing,
    /// Allocating a library's workspace: cuBLAS, cuDNN.
    Workspace,
}

/// The origin of every stack in a snapshot, by its id.
#[derive(Debug, Clone)]
pub struct Origins {
    of_stacks: Vec<Origin>,
    has_native: bool,
    /// The names of the user's categories, in the order given.
    categories: Vec<TextId>,
}

impl Origins {
    /// Reads every frame and every stack once.
    pub fn of(snapshot: &Snapshot) -> Self {
        let stacks = &snapshot.stacks;
        let frames = (0..stacks.frame_count()).filter_map(FrameId::new);
        let marks: Vec<Mark> = frames.clone().map(|id| mark(snapshot, stacks.get_frame(id))).collect();
        let derives: Vec<bool> = frames.clone().map(|id| derives(snapshot, stacks.get_frame(id))).collect();
        let ids = (0..stacks.len()).filter_map(StackId::new);
        let mut of_stacks: Vec<Origin> = Vec::with_capacity(stacks.len());
        for id in ids {
            let forward = stacks.forward(id).and_then(|forward| of_stacks.get(forward.index())).copied();
            let forward = forward.and_then(|Origin { line, package_line, .. }| {
                Some(ForwardLine { frame: line?, package_line, by: FoundBy::Recorded })
            });
            of_stacks.push(Origin { forward, ..origin(snapshot, &marks, &derives, stacks.frame_ids(id)) });
        }
        let file = |id| snapshot.texts.get(stacks.get_frame(id).filename);
        let has_native = frames.map(file).any(|file| !is_python(file));
        Self { of_stacks, has_native, categories: Vec::new() }
    }

    /// Sets the category of each stack to the first of these categories that matches one of its frames. Tests each frame
    /// once.
    #[must_use]
    pub fn with_categories(mut self, snapshot: &Snapshot, categories: &[CustomCategory<'_>]) -> Self {
        if categories.is_empty() {
            return self;
        }
        let stacks = &snapshot.stacks;
        let of_frame = |id: FrameId| {
            let Frame { filename, name, line, .. } = *stacks.get_frame(id);
            let text = format!("{}:{line} {}", snapshot.texts.get(filename), snapshot.texts.get(name));
            categories.iter().position(|category| (category.matches)(&text))
        };
        let frames: Vec<Option<usize>> =
            (0..stacks.frame_count()).filter_map(FrameId::new).map(of_frame).collect();
        for (nth, origin) in self.of_stacks.iter_mut().enumerate() {
            let Some(stack) = StackId::new(nth) else { break };
            let first = stacks.frame_ids(stack).filter_map(|frame| frames[frame.index()]).min();
            origin.custom = first.map(|first| categories[first].name);
        }
        self.categories = categories.iter().map(|category| category.name).collect();
        self
    }

    /// The names of the user's categories, in the order given, perhaps with duplicates.
    pub fn categories(&self) -> &[TextId] {
        &self.categories
    }

    /// The category of this recording that corresponds to a category of another recording with the same list of
    /// categories.
    pub(super) fn category_of(&self, other: &Self, name: TextId) -> Option<TextId> {
        let place = other.categories.iter().position(|&known| known == name)?;
        self.categories.get(place).copied()
    }

    /// Whether there is any frame that is not Python. Only if there is one can requests on the thread of the backward
    /// pass have frames.
    pub(super) fn has_native(&self) -> bool {
        self.has_native
    }

    /// The origin of a stack; empty if there is no stack.
    pub fn get(&self, stack: Option<StackId>) -> Origin {
        stack.and_then(|id| self.of_stacks.get(id.index())).copied().unwrap_or_default()
    }
}

/// What a single frame shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// A line that a user wrote.
    User,
    /// A name that a program of our own runtime gave its allocations, usually a layer's name.
    Label,
    /// A line of a library, and the activity that it shows.
    Library(Activity),
    /// A line of PyTorch's layers, optimizers or compiled code, and the activity that it shows.
    Layer(Activity),
    /// A module's call to its `forward`.
    ModuleCall,
    /// A call to a custom autograd function. The call computes a derivative if the frame below it is the function's
    /// `backward`.
    Apply,
    /// A checkpoint that recomputes activations that it did not keep, unless a frame below it computes a derivative.
    Checkpoint,
    /// A line of an installed package other than PyTorch.
    Package,
    /// A line of such a package, and the activity that it shows unless a frame below shows another one.
    Known(Activity),
    /// The constructor of ZeRO's optimizer: it copies the parameters, and its empty buffers are for gradients.
    Flattens,
    /// A call to an operator.
    Operator(Name),
    /// The computation of a derivative, with the name of the node if the frame shows it.
    Derivative(Option<Name>),
    /// Python code around operators, on any thread, including the thread of the backward pass: PyTorch's own code and
    /// `predict`'s.
    Dispatch,
    /// Another frame that shows an activity.
    Native(Activity),
    /// A frame that shows none of the above.
    Plain,
}

fn origin(
    snapshot: &Snapshot,
    marks: &[Mark],
    derives: &[bool],
    frames: impl Iterator<Item = FrameId>,
) -> Origin {
    let mut origin = Origin::default();
    let (mut library, mut below_python, mut has_frames, mut derived) = (None, true, false, false);
    let (mut layer, mut in_module) = (None, false);
    for id in frames {
        has_frames |= marks[id.index()] != Mark::Dispatch;
        let is_derived = std::mem::replace(&mut derived, derives[id.index()]);
        let activity = match marks[id.index()] {
            Mark::User => {
                origin.line = origin.line.or(Some(id));
                below_python = false;
                Activity::Unknown
            }
            Mark::Label => {
                origin.package_line = origin.line.replace(id);
                in_module = true;
                below_python = false;
                Activity::Unknown
            }
            Mark::Library(activity) | Mark::Layer(activity) => {
                library = library.or(Some(id));
                if origin.line.is_none() && matches!(marks[id.index()], Mark::Layer(_)) {
                    layer = layer.or(Some(id));
                }
                below_python = false;
                activity
            }
            Mark::ModuleCall => {
                library = library.or(Some(id));
                in_module |= origin.line.is_some();
                below_python = false;
                Activity::Unknown
            }
            Mark::Apply | Mark::Checkpoint => {
                library = library.or(Some(id));
                below_python = false;
                match marks[id.index()] {
                    Mark::Apply if is_derived => Activity::Backward,
                    Mark::Checkpoint if origin.activity < Activity::Backward => Activity::Recomputing,
                    _ => Activity::Unknown,
                }
            }
            Mark::Package | Mark::Known(_) | Mark::Flattens => {
                library = library.or(Some(id));
                if origin.line.is_none() {
                    origin.package_line = origin.package_line.or(Some(id));
                }
                below_python = false;
                let is_new = || origin.operator.is_some_and(|name| NEW.contains(&name.of(snapshot)));
                match marks[id.index()] {
                    Mark::Known(activity) if origin.activity <= Activity::Building => activity,
                    Mark::Flattens if origin.activity == Activity::Unknown && is_new() => Activity::Bucketing,
                    Mark::Flattens if origin.activity == Activity::Unknown => Activity::Building,
                    _ => Activity::Unknown,
                }
            }
            Mark::Operator(name) => {
                if below_python {
                    origin.operator = Some(name);
                }
                Activity::Unknown
            }
            Mark::Derivative(node) => {
                origin.operator = node.or(origin.operator);
                below_python &= node.is_none();
                Activity::Backward
            }
            Mark::Native(activity) => activity,
            Mark::Dispatch | Mark::Plain => Activity::Unknown,
        };
        origin.activity = origin.activity.max(activity);
    }
    if origin.line.is_none() {
        origin.line = origin.package_line.take().or(library);
    } else if !in_module && origin.activity != Activity::Building {
        origin.package_line = origin.package_line.or(layer);
    }
    if has_frames {
        origin.activity = origin.activity.max(Activity::Forward);
    }
    origin
}

fn mark(snapshot: &Snapshot, frame: &Frame) -> Mark {
    let (file, name) = (snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name));
    if is_python(file) {
        if file == "<label>" {
            Mark::Label
        } else if !is_library(file) {
            Mark::User
        } else if is_package(file) {
            package_mark(file, name)
        } else {
            library_mark(file, name)
        }
    } else {
        native(frame.name, name)
    }
}

/// Whether a frame of this file is Python.
pub(crate) fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.ends_with(".py_") || file.starts_with('<') || file.contains("ipykernel")
}

/// Whether a file belongs to an installed package, the standard library, or PyTorch, wherever it is installed.
pub(crate) fn is_library(file: &str) -> bool {
    const PARTS: [&str; 12] = [
        "/site-packages/",
        "/dist-packages/",
        "\\site-packages\\",
        "/lib/python3",
        "\\lib\\python",
        "/torch/nn/",
        "/torch/optim/",
        "/torch/autograd/",
        "/torch/utils/",
        "/torch/_",
        "/torchinductor_",
        "/torch/amp/",
    ];
    file.starts_with("<frozen ") || PARTS.iter().chain(&KNOWN).any(|part| file.contains(part))
}

/// Packages that are recognised in any folder: their functions show the purpose of a block.
const KNOWN: [&str; 3] = ["/deepspeed/runtime/", "/bitsandbytes/nn/", "/bitsandbytes/optim/"];

/// Whether a file belongs to an installed package other than PyTorch.
pub(super) fn is_package(file: &str) -> bool {
    let installed = ["site-packages", "dist-packages"].iter().find_map(|folder| file.split_once(folder));
    installed.is_some_and(|(_, package)| !package[1.min(package.len())..].starts_with("torch"))
        || KNOWN.iter().any(|part| file.contains(part))
}

/// Whether a frame is a derivative that the program defines, whether or not it is compiled.
fn derives(snapshot: &Snapshot, frame: &Frame) -> bool {
    matches!(snapshot.texts.get(frame.name), "backward" | "vjp")
}

/// What a package's function shows: it loads or converts a model's weights (transformers, diffusers, accelerate, peft),
/// copies them to flat buffers, gathers them or sends gradients (DeepSpeed's ZeRO), quantises them (bitsandbytes), or
/// is an optimizer.
fn package_mark(file: &str, name: &str) -> Mark {
    const LOADS: [&str; 7] = [
        "from_pretrained",
        "load_checkpoint_in_model",
        "load_checkpoint_and_dispatch",
        "from_single_file",
        "prepare_model_for_kbit_training",
        "get_peft_model",
        "inject_adapter_in_model",
    ];
    let file = file.replace('\\', "/");
    let is_in = |folder: &str| file.contains(folder);
    let zero = is_in("/deepspeed/runtime/zero/");
    let optimizer = is_in("/deepspeed/runtime/zero/stage");
    let gathers = ["all_gather", "allgather", "fetch_sub_module"].iter().any(|part| name.contains(part));
    let activity = match name {
        "__init__" if optimizer => return Mark::Flattens,
        _ if LOADS.contains(&name) => Activity::Building,
        "__init__" if is_in("/deepspeed/runtime/") => Activity::Building,
        _ if zero && name.starts_with("_create_fp") => Activity::Building,
        "step" if is_in("/deepspeed/runtime/") => Activity::OptimizerStep,
        // These functions allocate the buckets, the second one in the backward pass.
        "backward" if optimizer => Activity::Bucketing,
        "setup_buckets" if optimizer => Activity::Accumulating,
        // Gradient hooks, and the rest of their work at the end of the backward pass.
        "grad_handling_hook" | "reduce_ready_partitions_and_remove_grads" if optimizer => Activity::Backward,
        _ if optimizer && name.contains("_ipg_grads") => Activity::Backward,
        _ if is_in("/deepspeed/runtime/zero/part") && (gathers || name == "wait") => Activity::Gathering,
        "_quantize" | "cuda" | "to" | "from_prequantized" if is_in("/bitsandbytes/nn/") => Activity::Building,
        "init_state" if is_in("/bitsandbytes/optim/") => Activity::OptimizerState,
        "step" if is_in("/bitsandbytes/optim/") => Activity::OptimizerStep,
        _ => return Mark::Package,
    };
    Mark::Known(activity)
}

/// Operators that create a tensor without a source.
const NEW: [&str; 3] = ["empty_memory_format", "zeros", "zeros_like"];

fn library_mark(file: &str, name: &str) -> Mark {
    let file = file.replace('\\', "/");
    if file.ends_with("/torch/autograd/function.py") && name.starts_with("apply") {
        return Mark::Apply;
    }
    if file.ends_with("/torch/utils/checkpoint.py")
        && matches!(name, "unpack_hook" | "recompute_fn" | "backward")
    {
        return Mark::Checkpoint;
    }
    if file.ends_with("/torch/nn/modules/module.py") && name == "_call_impl" {
        return Mark::ModuleCall;
    }
    const AROUND: [&str; 5] = [
        "/torch/_native/",
        "<frozen plimsoll shadows>",
        "<frozen plimsoll experts>",
        "<frozen plimsoll bounds>",
        "<frozen plimsoll boxes>",
    ];
    if AROUND.iter().any(|part| file.contains(part)) {
        return Mark::Dispatch;
    }
    let activity = library_activity(&file, name);
    if is_layer(&file) { Mark::Layer(activity) } else { Mark::Library(activity) }
}

/// Whether a PyTorch file contains layers, optimizers or compiled code. Lines in other files of PyTorch only show that
/// some code was called.
fn is_layer(file: &str) -> bool {
    const CALLERS: [&str; 4] = [
        "/nn/modules/module.py",
        "/nn/modules/container.py",
        "/optim/optimizer.py",
        "/optim/lr_scheduler.py",
    ];
    const LAYERS: [&str; 4] =
        ["/torch/nn/modules/", "/torch/nn/functional.py", "/torch/optim/", "/torchinductor_"];
    LAYERS.iter().any(|part| file.contains(part)) && !CALLERS.iter().any(|caller| file.ends_with(caller))
}

fn library_activity(file: &str, name: &str) -> Activity {
    if file.contains("/torch/optim/") {
        return if name == "_init_group" { Activity::OptimizerState } else { Activity::OptimizerStep };
    }
    let is_engine = file.ends_with("/torch/autograd/graph.py") && name == "_engine_run_backward";
    if is_engine || file.ends_with("/torch/autograd/__init__.py") && name == "_make_grads" {
        return Activity::Backward;
    }
    if file.ends_with("/torch/nn/parallel/distributed.py") && name == "_ddp_init_helper" {
        return Activity::Bucketing;
    }
    // ZeroRedundancyOptimizer keeps the parameters in its own buffers.
    if file.ends_with("/torch/distributed/optim/zero_redundancy_optimizer.py")
        && matches!(name, "_build_param_buckets" | "_build_ddp_param_buckets")
    {
        return Activity::Building;
    }
    let is_sharded = file.contains("/torch/distributed/fsdp/");
    if is_sharded && name.contains("unshard") {
        return Activity::Gathering;
    }
    if is_sharded && name.contains("backward") {
        return Activity::Backward;
    }
    let is_module = file.ends_with("/torch/nn/modules/module.py") && matches!(name, "_apply" | "convert");
    const MAKES: [&str; 4] = ["__init__", "reset_parameters", "flatten_parameters", "__deepcopy__"];
    let is_made = file.contains("/torch/nn/") && MAKES.contains(&name);
    let is_made = is_made || is_sharded && name.starts_with("_init");
    if is_module || is_made || file.ends_with("/torch/nn/init.py") {
        Activity::Building
    } else {
        Activity::Unknown
    }
}

fn native(id: TextId, name: &str) -> Mark {
    let between = |before: &str, behind: &str| Name::between(id, name, before, behind);
    if name.starts_with("at::_ops::") {
        return between("at::_ops::", "::call").map_or(Mark::Plain, Mark::Operator);
    }
    if name.contains("AccumulateGrad") {
        return Mark::Native(Activity::Accumulating);
    }
    if name.contains("torch::autograd::generated::") {
        return Mark::Derivative(between("torch::autograd::generated::", "::apply"));
    }
    const ENGINE: [&str; 3] =
        ["torch::autograd::Engine::", "torch::autograd::PyNode::apply", "BackwardCFunction"];
    if ENGINE.iter().any(|part| name.contains(part)) {
        return Mark::Derivative(None);
    }
    // DDP makes new buckets in the second step, in the order in which gradients were computed.
    if name.contains("c10d::Reducer::initialize_buckets") {
        return Mark::Native(Activity::Bucketing);
    }
    const SCRATCH: [&str; 4] = ["getCurrentCUDABlas", "getCUDABlasLt", "CuBlasLtWorkspace", "getWorkspace"];
    if SCRATCH.iter().any(|part| name.contains(part)) || name.contains("cudnn") && name.contains("orkspace") {
        return Mark::Native(Activity::Workspace);
    }
    Mark::Plain
}

#[cfg(test)]
mod tests;
