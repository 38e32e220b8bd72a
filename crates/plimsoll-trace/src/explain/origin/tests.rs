//! Tests of what stacks show.

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

fn check(frames: &[(&str, &str)], line: Option<&str>, operator: Option<&str>, activity: Activity) {
    let (snapshot, stack) = snapshot(frames);
    let origin = Origins::of(&snapshot).get(stack);
    let file = origin.line.map(|id| snapshot.texts.get(snapshot.stacks.get_frame(id).filename));
    assert_eq!((file, origin.activity), (line, activity), "{frames:?}");
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
        Activity::Forward,
    );
    check(&[LINEAR], Some(LINEAR.0), None, Activity::Forward);
    check(&[], None, None, Activity::Unknown);
}

#[test]
fn a_line_of_another_package_is_shown_beside_the_users() {
    let theirs = ("/x/site-packages/transformers/activations.py", "forward");
    let (snapshot, stack) = snapshot(&[LINEAR, theirs, ("train.py", "main")]);
    let origin = Origins::of(&snapshot).get(stack);
    let file =
        |line: Option<FrameId>| line.map(|id| snapshot.texts.get(snapshot.stacks.get_frame(id).filename));
    assert_eq!((file(origin.line), file(origin.package_line)), (Some("train.py"), Some(theirs.0)));
    check(&[LINEAR, theirs], Some(theirs.0), None, Activity::Forward);
}

#[test]
fn a_training_loops_line_has_the_line_of_the_layer_or_the_optimizer_that_it_called() {
    let call = ("/x/site-packages/torch/nn/modules/module.py", "_call_impl");
    let sequential = ("/x/site-packages/torch/nn/modules/container.py", "forward");
    let init = ("/x/site-packages/torch/optim/adamw.py", "_init_group");
    let step = ("/x/site-packages/torch/optim/optimizer.py", "wrapper");
    let check = |frames: &[(&str, &str)], layer: Option<&str>| {
        let (snapshot, stack) = snapshot(frames);
        let layer_line = Origins::of(&snapshot).get(stack).package_line;
        let file = layer_line.map(|id| snapshot.texts.get(snapshot.stacks.get_frame(id).filename));
        assert_eq!(file, layer, "{frames:?}");
    };
    check(&[LINEAR, call, sequential, call, ("train.py", "main")], Some(LINEAR.0));
    check(&[init, step, ("train.py", "main")], Some(init.0));
    // The line of the model's own `forward` already shows where the layer is called.
    check(&[LINEAR, call, ("model.py", "forward"), call, ("train.py", "main")], None);
    check(&[sequential, call, ("train.py", "main")], None);
    check(&[("/x/site-packages/torch/nn/modules/linear.py", "__init__"), ("train.py", "main")], None);
}

#[test]
fn what_makes_loads_or_copies_weights_builds_and_reducers_make_buckets() {
    let main = ("/home/me/train.py", "<module>");
    let op = ("libtorch_cpu.so", "at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>)");
    let building = [
        ("/x/site-packages/torch/nn/modules/rnn.py", "flatten_parameters"),
        ("/x/site-packages/torch/nn/parameter.py", "__deepcopy__"),
        ("/x/site-packages/transformers/modeling_utils.py", "from_pretrained"),
        ("/x/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", "__init__"),
        ("/home/me/deepspeed/runtime/zero/stage_1_and_2.py", "__init__"),
        ("/home/me/bitsandbytes/nn/modules.py", "_quantize"),
        ("/x/site-packages/torch/distributed/optim/zero_redundancy_optimizer.py", "_build_param_buckets"),
    ];
    for frame in building {
        check(&[op, frame, main], Some(main.0), Some("empty_strided"), Activity::Building);
    }
    let reducer = ("libtorch_cpu.so", "c10d::Reducer::initialize_buckets(std::vector<...>)");
    let forward = ("/x/site-packages/torch/nn/parallel/distributed.py", "_pre_forward");
    check(&[op, reducer, forward, main], Some(main.0), Some("empty_strided"), Activity::Bucketing);
}

#[test]
fn python_around_operators_is_no_line_of_anybodys() {
    for router in [
        ("/x/site-packages/torch/_native/registry.py", "eager_router"),
        ("<frozen plimsoll shadows>", "dispatched"),
    ] {
        check(&[router], None, None, Activity::Unknown);
        check(&[router, ("train.py", "main")], Some("train.py"), None, Activity::Forward);
    }
}

#[test]
fn the_first_of_the_users_categories_that_a_frame_matches_counts() {
    let (mut snapshot, stack) = snapshot(&[LINEAR, ("/home/me/experts.py", "forward")]);
    let names = ["layers", "experts", "none"].map(|name| snapshot.texts.intern(name).unwrap());
    let of = |text: &'static str| move |frame: &str| frame.contains(text);
    let (linear, experts, none) = (of("linear.py:1 forward"), of("experts.py"), of("absent"));
    let check = |order: [usize; 3], expected: usize| {
        let all: [&dyn Fn(&str) -> bool; 3] = [&linear, &experts, &none];
        let given = order.map(|nth| CustomCategory { name: names[nth], matches: all[nth] });
        let origins = Origins::of(&snapshot).with_categories(&snapshot, &given);
        assert_eq!(origins.get(stack).custom, Some(names[expected]));
        assert_eq!(origins.get(Some(StackId::EMPTY)).custom, None);
    };
    check([2, 1, 0], 1);
    check([0, 1, 2], 0);
}

#[test]
fn derivatives_are_recognised_by_their_node() {
    let op = ("", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)");
    let node = ("", "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)");
    let engine = ("", "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)");
    check(&[op, node, engine], None, Some("AddmmBackward0"), Activity::Backward);
    let keeps = ("", "torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)");
    check(&[op, keeps, engine], None, Some("mm"), Activity::Accumulating);
}

#[test]
fn optimizers_are_recognised_by_their_files() {
    let init = ("/x/site-packages/torch/optim/adamw.py", "_init_group");
    let step = ("/x/site-packages/torch/optim/adamw.py", "step");
    let user = ("train.py", "main");
    check(&[init, step, user], Some("train.py"), None, Activity::OptimizerState);
    check(&[step, user], Some("train.py"), None, Activity::OptimizerStep);
    check(
        &[("C:\\py\\Lib\\site-packages\\torch\\optim\\sgd.py", "step")],
        Some("C:\\py\\Lib\\site-packages\\torch\\optim\\sgd.py"),
        None,
        Activity::OptimizerStep,
    );
}

#[test]
fn optimizers_of_packages_are_recognised_by_their_functions() {
    let check = |path: &str, name, activity| {
        for folder in ["/x/site-packages/", "/home/me/"] {
            let frames = [(&*format!("{folder}{path}"), name), ("train.py", "main")];
            check(&frames, Some("train.py"), None, activity);
        }
    };
    let (zero, optim) = ("deepspeed/runtime/zero/stage_1_and_2.py", "bitsandbytes/optim/optimizer.py");
    check(zero, "step", Activity::OptimizerStep);
    check(zero, "backward", Activity::Bucketing);
    check(zero, "average_tensor", Activity::Forward);
    check("deepspeed/runtime/zero/partition_parameters.py", "_all_gather", Activity::Gathering);
    check(optim, "init_state", Activity::OptimizerState);
    check(optim, "step", Activity::OptimizerStep);
}

/// Stacks of DeepSpeed 0.19 and peft 0.21, innermost function first, as recorded on the stand-in.
#[test]
fn what_zero_builds_gathers_and_sends_is_told_apart() {
    let op = |name: &str| format!("at::_ops::{name}::call(at::Tensor const&)");
    let check = |operator: &str, frames: &[(&str, &str)], activity| {
        let native = op(operator);
        let paths: Vec<String> = frames.iter().map(|(file, _)| format!("/x/site-packages/{file}")).collect();
        let names = paths.iter().zip(frames).map(|(path, (_, name))| (path.as_str(), *name));
        let all: Vec<(&str, &str)> =
            [("", native.as_str())].into_iter().chain(names).chain([("train.py", "main")]).collect();
        check(&all, Some("train.py"), Some(operator), activity);
    };
    const ENGINE: (&str, &str) = ("deepspeed/runtime/engine.py", "__init__");
    let (one, three) = ("deepspeed/runtime/zero/stage_1_and_2.py", "deepspeed/runtime/zero/stage3.py");
    check("clone", &[(one, "__init__"), ENGINE], Activity::Building);
    check("cat", &[(one, "flatten_dense_tensors_aligned"), (one, "__init__"), ENGINE], Activity::Building);
    check("zeros", &[(one, "__init__"), ENGINE], Activity::Bucketing);
    let sets_up = [(three, "_setup_for_real_optimizer"), (three, "__init__"), ENGINE];
    check("zeros", &sets_up, Activity::Bucketing);
    check("empty_memory_format", &sets_up, Activity::Bucketing);
    let defragments = [
        ("deepspeed/runtime/zero/utils.py", "defragment"),
        (three, "_create_fp16_partitions_with_defragmentation"),
        (three, "__init__"),
    ];
    check("empty_memory_format", &defragments, Activity::Building);
    let first_step = [
        ("torch/optim/adamw.py", "_init_group"),
        (one, "initialize_optimizer_states"),
        (one, "__init__"),
        ENGINE,
    ];
    check("zeros_like", &first_step, Activity::OptimizerState);
    let waits = [
        ("deepspeed/utils/nvtx.py", "wrapped_fn"),
        ("deepspeed/runtime/zero/partition_parameters.py", "wait"),
        ("deepspeed/runtime/zero/partitioned_param_coordinator.py", "fetch_sub_module"),
    ];
    check("cat", &waits, Activity::Gathering);
    let linear = [("deepspeed/runtime/zero/linear.py", "backward"), ("torch/autograd/function.py", "apply")];
    check("matmul", &linear, Activity::Backward);
    let hook = [(one, "setup_buckets"), (one, "process_gradients"), (one, "grad_handling_hook")];
    check("empty_memory_format", &hook, Activity::Accumulating);
    let last = [(one, "reduce_ipg_grads"), ("deepspeed/runtime/engine.py", "allreduce_gradients")];
    check("to_dtype", &last, Activity::Backward);
    check("to_dtype", &[("peft/utils/other.py", "prepare_model_for_kbit_training")], Activity::Building);
}

#[test]
fn the_line_of_a_known_package_is_shown_beside_the_users() {
    let step = ("/x/site-packages/deepspeed/runtime/zero/stage_1_and_2.py", "step");
    let engine = ("/x/site-packages/deepspeed/runtime/engine.py", "_take_model_step");
    let (snapshot, stack) = snapshot(&[step, engine, ("train.py", "main")]);
    let line = Origins::of(&snapshot).get(stack).package_line.expect("a line");
    assert_eq!(snapshot.texts.get(snapshot.stacks.get_frame(line).filename), step.0);
}

#[test]
fn modules_that_are_brought_to_the_device_are_being_built() {
    let convert = ("/x/site-packages/torch/nn/modules/module.py", "convert");
    check(&[convert, ("a.py", "main")], Some("a.py"), None, Activity::Building);
}

const APPLY: (&str, &str) = ("/x/site-packages/torch/autograd/function.py", "apply");

#[test]
fn a_custom_derivative_is_recognised_by_the_frame_that_calls_it() {
    let (derivative, forward) = (("train.py", "backward"), ("train.py", "forward"));
    check(&[derivative, APPLY], Some("train.py"), None, Activity::Backward);
    check(&[forward, APPLY, ("train.py", "main")], Some("train.py"), None, Activity::Forward);
    check(&[derivative, ("train.py", "main")], Some("train.py"), None, Activity::Forward);
    let compiled = ("/x/site-packages/torch/_functorch/_aot_autograd/runtime_wrappers.py", "backward");
    let boxed = (APPLY.0, "apply_boxed");
    let call = ("/tmp/torchinductor_me/ab/cab.py", "call");
    check(&[call, compiled, boxed], Some(call.0), None, Activity::Backward);
}

#[test]
fn what_a_checkpoint_computes_again_is_separated_from_its_derivatives() {
    let checkpoint = |name| ("/x/site-packages/torch/utils/checkpoint.py", name);
    let (engine, user) = (("/x/site-packages/torch/autograd/graph.py", "_engine_run_backward"), "model.py");
    let check = |frames: &[(&str, &str)], activity| check(frames, Some(user), None, activity);
    check(&[LINEAR, (user, "forward"), checkpoint("recompute_fn")], Activity::Recomputing);
    check(&[LINEAR, (user, "forward"), checkpoint("unpack_hook"), engine], Activity::Recomputing);
    check(&[LINEAR, (user, "forward"), checkpoint("backward"), APPLY], Activity::Recomputing);
    check(&[engine, checkpoint("backward"), APPLY, (user, "main")], Activity::Backward);
    check(&[LINEAR, (user, "forward"), checkpoint("forward"), APPLY], Activity::Forward);
}

#[test]
fn sharded_parameters_are_made_gathered_and_their_gradients_sent() {
    let sharded = |name| ("/x/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param.py", name);
    let check = |frames: &[(&str, &str)], activity| {
        check(&[frames, &[("train.py", "main")]].concat(), Some("train.py"), None, activity);
    };
    check(&[sharded("_init_sharded_param")], Activity::Building);
    check(&[sharded("wait_for_unshard"), sharded("pre_backward")], Activity::Gathering);
    check(&[sharded("post_backward")], Activity::Backward);
    let buckets = ("/x/site-packages/torch/nn/parallel/distributed.py", "_ddp_init_helper");
    check(&[buckets, (buckets.0, "__init__")], Activity::Bucketing);
}
