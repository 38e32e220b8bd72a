//! The requests and scopes of a compiler, before or during the run of a compiled program. A compiler traces with its
//! own tensors and times kernels on the device. Its requests repeat at regular intervals but are not steps.

use crate::snapshot::Snapshot;

/// Whether a scope belongs to `torch.compile` or to one of its kernels, judged by its name.
pub(super) fn is_scope(name: &str) -> bool {
    const BEGINS: [&str; 14] = [
        "## Call CompiledFxGraph",
        "AOTDispatcher",
        "CachingAutotuner",
        "CompiledFunction",
        "CompiledFxGraph",
        "Pregraph bytecode",
        "TORCHDYNAMO",
        "Torch-Compiled Region",
        "TorchDynamo",
        "_CALLABLE",
        "_compile.",
        "autotun",
        "inductor_",
        "triton_",
    ];
    name.ends_with("(dynamo_timed)")
        || name.ends_with("_inductor_wrapper_call")
        || name.contains("_data: ") && name.contains("compile_id=")
        || BEGINS.iter().any(|begin| name.starts_with(begin))
}

/// For each stack, by its id, whether it is in a compiler or its autotuner.
pub(super) fn in_compiler(snapshot: &Snapshot) -> Vec<bool> {
    snapshot.stacks_with(is_compiler)
}

fn is_compiler(file: &str, name: &str) -> bool {
    let is_of =
        |end: &str| file.ends_with(end) || file.contains('\\') && file.replace('\\', "/").ends_with(end);
    // Files that only compile, and the compiling functions of files that also run compiled code.
    const COMPILE: [&str; 7] = [
        "/torch/_dynamo/convert_frame.py",
        "/torch/_inductor/runtime/benchmarking.py",
        "/torch/_inductor/select_algorithm.py",
        "/torch/_inductor/autotune_process.py",
        "/torch/_subclasses/fake_tensor.py",
        "/triton/runtime/autotuner.py",
        "/triton/testing.py",
    ];
    const TUNES: [&str; 4] =
        ["benchmark_all_configs", "autotune_to_one_config", "coordinate_descent_tuning", "bench"];
    (is_of("/torch/_inductor/runtime/triton_heuristics.py") && TUNES.contains(&name))
        || (is_of("/torch/_inductor/compile_fx.py") && name.contains("compile"))
        // Triton's autotuner requests memory only while it times kernels; the kernels themselves do not request memory.
        || COMPILE.iter().any(|end| is_of(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_of_the_compiler_are_known_by_their_names() {
        for name in [
            "CachingAutotuner.benchmark_all_configs (dynamo_timed)",
            "Torch-Compiled Region: 0/0",
            "## Call CompiledFxGraph fabc ##",
            "triton_poi_fused_add_0",
            "entire_frame_compile_data: fn_name=_compile.compile_inner, compile_id=0/0",
            "graph_0_inductor_wrapper_call",
        ] {
            assert!(is_scope(name), "{name}");
        }
        for name in ["train_step", "step", "compile", "forward"] {
            assert!(!is_scope(name), "{name}");
        }
    }
}
