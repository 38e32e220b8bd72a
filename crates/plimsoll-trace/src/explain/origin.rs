//! Where a block was asked for, as a person would say it: the user's line, the operator, and what the program
//! was doing. [`Origins`] tells it of each stack, once.
//!
//! A stack of PyTorch's begins with its allocator and ends in the interpreter; between lie hundreds of C++
//! frames, the library's Python and, somewhere, the line that its user wrote. The innermost such line counts.

use crate::snapshot::{Frame, FrameId, Snapshot, StackId, TextId};

/// What a stack tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    /// The innermost line outside the interpreter and the libraries; where there is none, that of an installed
    /// package, or else of a library.
    pub line: Option<FrameId>,
    /// The innermost line of an installed package that is not PyTorch's own, below the user's line: a model of
    /// somebody else's.
    pub package_line: Option<FrameId>,
    /// The outermost operator below that line, as `at::_ops` names it.
    pub operator: Option<Name>,
    /// What the program was doing.
    pub doing: Doing,
}

/// A part of a text of the snapshot: a name inside a C++ frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    text: TextId,
    from: u32,
    to: u32,
}

impl Name {
    /// The name itself.
    pub fn of<'a>(&self, snapshot: &'a Snapshot) -> &'a str {
        snapshot.texts.get(self.text).get(self.from as usize..self.to as usize).unwrap_or_default()
    }
}

/// What a program does when it asks for memory, as far as its stack shows. Where a stack shows several, the
/// last of them here counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Doing {
    /// Nothing that can be told: there are no frames, or none of those below.
    #[default]
    Unknown,
    /// It runs Python or operators outside all of the following.
    Forward,
    /// A module is built, or brought to the device.
    Building,
    /// A derivative is computed.
    Backward,
    /// The backward pass computes again what a checkpoint did not keep.
    Recomputing,
    /// A gradient is kept for a parameter.
    Accumulating,
    /// An optimizer makes its step.
    OptimizerStep,
    /// An optimizer makes what it remembers between steps.
    OptimizerState,
    /// A parameter that is spread over devices is put together for a while.
    Gathering,
    /// Room is made in which gradients are sent to other devices.
    Bucketing,
    /// A library asks for scratch: cuBLAS, cuDNN.
    Workspace,
}

/// The origin of every stack of a snapshot, by its id.
#[derive(Debug, Clone)]
pub struct Origins {
    of_stacks: Vec<Origin>,
    has_native: bool,
}

impl Origins {
    /// Reads every frame once and every stack once.
    pub fn of(snapshot: &Snapshot) -> Self {
        let stacks = &snapshot.stacks;
        let frames = (0..stacks.frame_count()).filter_map(FrameId::new);
        let marks: Vec<Mark> = frames.clone().map(|id| mark(snapshot, stacks.get_frame(id))).collect();
        let derives: Vec<bool> = frames.clone().map(|id| derives(snapshot, stacks.get_frame(id))).collect();
        let ids = (0..stacks.len()).filter_map(StackId::new);
        let of_stacks = ids.map(|id| origin(&marks, &derives, stacks.frame_ids(id))).collect();
        let file = |id| snapshot.texts.get(stacks.get_frame(id).filename);
        let has_native = frames.map(file).any(|file| !is_python(file));
        Self { of_stacks, has_native }
    }

    /// Whether some frame is not one of Python: only then the backward pass's own thread has frames.
    pub(super) fn has_native(&self) -> bool {
        self.has_native
    }

    /// What a stack tells; nothing where there is no stack.
    pub fn get(&self, stack: Option<StackId>) -> Origin {
        stack.and_then(|id| self.of_stacks.get(id.index())).copied().unwrap_or_default()
    }
}

/// What one frame says by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// A line that a user wrote.
    User,
    /// A line of a library, with what it shows.
    Library(Doing),
    /// A function with a derivative of its own is called: the derivative itself, if the frame below is it.
    Apply,
    /// A checkpoint computes again what it did not keep, unless a frame below computes a derivative.
    Checkpoint,
    /// A line of an installed package that is not PyTorch's own.
    Package,
    /// An operator is called.
    Operator(Name),
    /// A derivative is computed, by the node of this name where it has one.
    Derivative(Option<Name>),
    /// Another frame that shows what is done.
    Native(Doing),
    /// Nothing.
    Plain,
}

fn origin(marks: &[Mark], derives: &[bool], frames: impl Iterator<Item = FrameId>) -> Origin {
    let mut origin = Origin::default();
    let (mut library, mut below_python, mut has_frames, mut derived) = (None, true, false, false);
    for id in frames {
        has_frames = true;
        let is_derived = std::mem::replace(&mut derived, derives[id.index()]);
        let doing = match marks[id.index()] {
            Mark::User => {
                origin.line = origin.line.or(Some(id));
                below_python = false;
                Doing::Unknown
            }
            Mark::Library(doing) => {
                library = library.or(Some(id));
                below_python = false;
                doing
            }
            Mark::Apply | Mark::Checkpoint => {
                library = library.or(Some(id));
                below_python = false;
                match marks[id.index()] {
                    Mark::Apply if is_derived => Doing::Backward,
                    Mark::Checkpoint if origin.doing < Doing::Backward => Doing::Recomputing,
                    _ => Doing::Unknown,
                }
            }
            Mark::Package => {
                library = library.or(Some(id));
                if origin.line.is_none() {
                    origin.package_line = origin.package_line.or(Some(id));
                }
                below_python = false;
                Doing::Unknown
            }
            Mark::Operator(name) => {
                if below_python {
                    origin.operator = Some(name);
                }
                Doing::Unknown
            }
            Mark::Derivative(node) => {
                origin.operator = node.or(origin.operator);
                below_python &= node.is_none();
                Doing::Backward
            }
            Mark::Native(doing) => doing,
            Mark::Plain => Doing::Unknown,
        };
        origin.doing = origin.doing.max(doing);
    }
    if origin.line.is_none() {
        origin.line = origin.package_line.take().or(library);
    }
    if has_frames {
        origin.doing = origin.doing.max(Doing::Forward);
    }
    origin
}

fn mark(snapshot: &Snapshot, frame: &Frame) -> Mark {
    let (file, name) = (snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name));
    if is_python(file) {
        if !is_library(file) {
            Mark::User
        } else if is_package(file) {
            Mark::Package
        } else {
            library_mark(file, name)
        }
    } else {
        native(frame.name, name)
    }
}

/// Whether a frame of this file is one of Python.
pub(crate) fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.ends_with(".py_") || file.starts_with('<') || file.contains("ipykernel")
}

/// Installed packages, the standard library, and PyTorch's own folders wherever they lie.
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
    file.starts_with("<frozen ") || PARTS.iter().any(|part| file.contains(part))
}

/// An installed package that is not PyTorch itself.
pub(super) fn is_package(file: &str) -> bool {
    let installed = ["site-packages", "dist-packages"].iter().find_map(|folder| file.split_once(folder));
    installed.is_some_and(|(_, package)| !package[1.min(package.len())..].starts_with("torch"))
}

/// Whether a frame is a derivative that a program defines, of a compiled program too.
fn derives(snapshot: &Snapshot, frame: &Frame) -> bool {
    matches!(snapshot.texts.get(frame.name), "backward" | "vjp")
}

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
    Mark::Library(library_doing(&file, name))
}

fn library_doing(file: &str, name: &str) -> Doing {
    if file.contains("/torch/optim/") {
        return if name == "_init_group" { Doing::OptimizerState } else { Doing::OptimizerStep };
    }
    let is_engine = file.ends_with("/torch/autograd/graph.py") && name == "_engine_run_backward";
    if is_engine || file.ends_with("/torch/autograd/__init__.py") && name == "_make_grads" {
        return Doing::Backward;
    }
    if file.ends_with("/torch/nn/parallel/distributed.py") && name == "_ddp_init_helper" {
        return Doing::Bucketing;
    }
    let is_sharded = file.contains("/torch/distributed/fsdp/");
    if is_sharded && name.contains("unshard") {
        return Doing::Gathering;
    }
    if is_sharded && name.contains("backward") {
        return Doing::Backward;
    }
    let is_module = file.ends_with("/torch/nn/modules/module.py") && matches!(name, "_apply" | "convert");
    let is_made = file.contains("/torch/nn/") && matches!(name, "__init__" | "reset_parameters");
    let is_made = is_made || is_sharded && name.starts_with("_init");
    if is_module || is_made || file.ends_with("/torch/nn/init.py") { Doing::Building } else { Doing::Unknown }
}

fn native(id: TextId, name: &str) -> Mark {
    let between = |before: &str, behind: &str| {
        let from = name.find(before)? + before.len();
        let to = from + name[from..].find(behind)?;
        Some(Name { text: id, from: u32::try_from(from).ok()?, to: u32::try_from(to).ok()? })
    };
    if name.starts_with("at::_ops::") {
        return between("at::_ops::", "::call").map_or(Mark::Plain, Mark::Operator);
    }
    if name.contains("AccumulateGrad") {
        return Mark::Native(Doing::Accumulating);
    }
    if name.contains("torch::autograd::generated::") {
        return Mark::Derivative(between("torch::autograd::generated::", "::apply"));
    }
    const ENGINE: [&str; 3] =
        ["torch::autograd::Engine::", "torch::autograd::PyNode::apply", "BackwardCFunction"];
    if ENGINE.iter().any(|part| name.contains(part)) {
        return Mark::Derivative(None);
    }
    const SCRATCH: [&str; 4] = ["getCurrentCUDABlas", "getCUDABlasLt", "CuBlasLtWorkspace", "getWorkspace"];
    if SCRATCH.iter().any(|part| name.contains(part)) || name.contains("cudnn") && name.contains("orkspace") {
        return Mark::Native(Doing::Workspace);
    }
    Mark::Plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot with one stack, innermost frame first.
    fn snapshot(frames: &[(&str, &str)]) -> (Snapshot, Option<StackId>) {
        let mut snapshot = Snapshot::default();
        let ids: Vec<FrameId> = frames
            .iter()
            .map(|(file, name)| {
                let filename = snapshot.texts.intern(file).unwrap();
                let name = snapshot.texts.intern(name).unwrap();
                snapshot.stacks.frame(Frame { filename, name, line: 1, fx: None }).unwrap()
            })
            .collect();
        let stack = snapshot.stacks.stack(&ids);
        (snapshot, stack)
    }

    fn check(frames: &[(&str, &str)], line: Option<&str>, operator: Option<&str>, doing: Doing) {
        let (snapshot, stack) = snapshot(frames);
        let origin = Origins::of(&snapshot).get(stack);
        let file = origin.line.map(|id| snapshot.texts.get(snapshot.stacks.get_frame(id).filename));
        assert_eq!((file, origin.doing), (line, doing), "{frames:?}");
        assert_eq!(origin.operator.map(|name| name.of(&snapshot)), operator, "{frames:?}");
    }

    const LINEAR: (&str, &str) = ("/x/site-packages/torch/nn/modules/linear.py", "forward");

    #[test]
    fn the_users_innermost_line_and_the_outermost_operator_below_it_count() {
        let inner = ("libtorch_cpu.so", "at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>)");
        let outer = ("libtorch_cpu.so", "at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)");
        let again = ("libtorch_cpu.so", "at::_ops::mul_Tensor::redispatch(c10::DispatchKeySet)");
        let user = ("/home/me/model.py", "forward");
        let main = ("/home/me/train.py", "<module>");
        check(
            &[inner, again, outer, LINEAR, user, main],
            Some("/home/me/model.py"),
            Some("mul_Tensor"),
            Doing::Forward,
        );
        check(&[LINEAR], Some(LINEAR.0), None, Doing::Forward);
        check(&[], None, None, Doing::Unknown);
    }

    #[test]
    fn a_line_of_somebody_elses_package_is_told_beside_the_users() {
        let theirs = ("/x/site-packages/transformers/activations.py", "forward");
        let (snapshot, stack) = snapshot(&[LINEAR, theirs, ("train.py", "main")]);
        let origin = Origins::of(&snapshot).get(stack);
        let file =
            |line: Option<FrameId>| line.map(|id| snapshot.texts.get(snapshot.stacks.get_frame(id).filename));
        assert_eq!((file(origin.line), file(origin.package_line)), (Some("train.py"), Some(theirs.0)));
        check(&[LINEAR, theirs], Some(theirs.0), None, Doing::Forward);
    }

    #[test]
    fn derivatives_are_told_by_their_node() {
        let op = ("", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)");
        let node = ("", "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)");
        let engine = ("", "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)");
        check(&[op, node, engine], None, Some("AddmmBackward0"), Doing::Backward);
        let keeps = ("", "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)");
        check(&[op, keeps, engine], None, Some("mm"), Doing::Accumulating);
    }

    #[test]
    fn optimizers_are_told_by_their_files() {
        let init = ("/x/site-packages/torch/optim/adamw.py", "_init_group");
        let step = ("/x/site-packages/torch/optim/adamw.py", "step");
        let user = ("train.py", "main");
        check(&[init, step, user], Some("train.py"), None, Doing::OptimizerState);
        check(&[step, user], Some("train.py"), None, Doing::OptimizerStep);
        check(
            &[("C:\\py\\Lib\\site-packages\\torch\\optim\\sgd.py", "step")],
            Some("C:\\py\\Lib\\site-packages\\torch\\optim\\sgd.py"),
            None,
            Doing::OptimizerStep,
        );
    }

    #[test]
    fn modules_that_are_brought_to_the_device_are_being_built() {
        let convert = ("/x/site-packages/torch/nn/modules/module.py", "convert");
        check(&[convert, ("a.py", "main")], Some("a.py"), None, Doing::Building);
    }

    const APPLY: (&str, &str) = ("/x/site-packages/torch/autograd/function.py", "apply");

    #[test]
    fn a_derivative_that_a_program_defines_is_told_by_the_frame_that_calls_it() {
        let (derivative, forward) = (("train.py", "backward"), ("train.py", "forward"));
        check(&[derivative, APPLY], Some("train.py"), None, Doing::Backward);
        check(&[forward, APPLY, ("train.py", "main")], Some("train.py"), None, Doing::Forward);
        check(&[derivative, ("train.py", "main")], Some("train.py"), None, Doing::Forward);
        let compiled = ("/x/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py", "backward");
        let boxed = (APPLY.0, "apply_boxed");
        let call = ("/tmp/torchinductor_me/ab/cab.py", "call");
        check(&[call, compiled, boxed], Some(call.0), None, Doing::Backward);
    }

    #[test]
    fn what_a_checkpoint_computes_again_is_told_from_the_derivatives_that_it_asks_for() {
        let checkpoint = |name| ("/x/site-packages/torch/utils/checkpoint.py", name);
        let (engine, user) =
            (("/x/site-packages/torch/autograd/graph.py", "_engine_run_backward"), "model.py");
        let check = |frames: &[(&str, &str)], doing| check(frames, Some(user), None, doing);
        check(&[LINEAR, (user, "forward"), checkpoint("recompute_fn")], Doing::Recomputing);
        check(&[LINEAR, (user, "forward"), checkpoint("unpack_hook"), engine], Doing::Recomputing);
        check(&[LINEAR, (user, "forward"), checkpoint("backward"), APPLY], Doing::Recomputing);
        check(&[engine, checkpoint("backward"), APPLY, (user, "main")], Doing::Backward);
        check(&[LINEAR, (user, "forward"), checkpoint("forward"), APPLY], Doing::Forward);
    }

    #[test]
    fn sharded_parameters_are_made_gathered_and_their_gradients_sent() {
        let sharded = |name| ("/x/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param.py", name);
        let check = |frames: &[(&str, &str)], doing| {
            check(&[frames, &[("train.py", "main")]].concat(), Some("train.py"), None, doing);
        };
        check(&[sharded("_init_sharded_param")], Doing::Building);
        check(&[sharded("wait_for_unshard"), sharded("pre_backward")], Doing::Gathering);
        check(&[sharded("post_backward")], Doing::Backward);
        let buckets = ("/x/site-packages/torch/nn/parallel/distributed.py", "_ddp_init_helper");
        check(&[buckets, (buckets.0, "__init__")], Doing::Bucketing);
    }
}
