//! The peaks with warm compile caches.
//!
//! `torch.compile` caches compiled code and the kernels that it measured as fastest. In `predict` every run starts
//! with empty caches (`../launch/surroundings.rs`), so each run compiles. `torch.compile` also times kernels, with
//! additional buffers: copies of their arguments, and one buffer as large as the GPU's cache. A program that finds its
//! kernels in the caches does not make these requests. These requests are recognized by their stacks, and the recording
//! is replayed without them.

use plimsoll_trace::snapshot::{Event, Snapshot};

use super::judged::Analysis;
use super::without::Without;
use crate::protocol::CompileCaches;

/// Replays the recording without the requests that these caches avoid; `None` if there are no such requests.
pub(crate) fn replay(analysis: &Analysis, caches: CompileCaches) -> Option<Without> {
    let saved = saved(&analysis.explained.snapshot, caches);
    Without::of(analysis, |event| is_saved(&saved, event))
}

/// Whether an event has one of these stacks.
fn is_saved(saved: &[bool], event: &Event) -> bool {
    event.stack.is_some_and(|stack| saved[stack.index()])
}

/// For each stack, by ID: whether these caches avoid the requests with this stack.
pub(crate) fn saved(snapshot: &Snapshot, caches: CompileCaches) -> Vec<bool> {
    let saves = |file: &str, name: &str| {
        let is_compiling = |functions: &[&str]| {
            file.ends_with("/torch/_inductor/compile_fx.py") && functions.contains(&name)
        };
        (caches.timings && is_timing(file, name))
            || (caches.graphs && is_compiling(&GRAPHS))
            || (caches.graphs && caches.autograd && is_compiling(&AUTOGRAD))
    };
    let mut saved = snapshot.stacks_with(saves);
    // Triton's own autotuner keeps its results only for the life of the process.
    let uncached = snapshot.stacks_with(|file, _| file.ends_with("/triton/runtime/autotuner.py"));
    saved.iter_mut().zip(uncached).for_each(|(saved, uncached)| *saved &= !uncached);
    saved
}

/// Whether this is a function in which Inductor times kernels.
fn is_timing(file: &str, name: &str) -> bool {
    const FILES: [&str; 4] = [
        "/torch/_inductor/autotune_process.py",
        "/torch/_inductor/fx_passes/pad_mm.py",
        "/torch/_inductor/runtime/benchmarking.py",
        "/torch/_inductor/select_algorithm.py",
    ];
    // This file also launches the chosen kernels when it does not time them.
    const TUNERS: [&str; 4] =
        ["autotune_to_one_config", "bench", "benchmark_all_configs", "coordinate_descent_tuning"];
    FILES.iter().any(|end| file.ends_with(end))
        || (file.ends_with("/torch/_inductor/runtime/triton_heuristics.py") && TUNERS.contains(&name))
}

/// Inductor's functions that do not run if the graph is in its cache.
const GRAPHS: [&str; 2] = ["codegen_and_compile", "fx_codegen_and_compile"];

/// Functions that also do not run if AOTAutograd has the graph in its cache.
const AUTOGRAD: [&str; 4] =
    ["_recursive_joint_graph_passes", "compile_fx_backward", "compile_fx_forward", "partition_fn"];

#[cfg(test)]
mod tests {
    use plimsoll_trace::snapshot::{Frame, StackId};

    use super::*;

    fn stack(snapshot: &mut Snapshot, frames: &[(&str, &str)]) -> StackId {
        let frames: Vec<_> = frames
            .iter()
            .map(|(file, name)| {
                let filename = snapshot.texts.intern(file).expect("room");
                let name = snapshot.texts.intern(name).expect("room");
                snapshot.stacks.frame(Frame { filename, name, line: 1, fx: None }).expect("room")
            })
            .collect();
        snapshot.stacks.stack(&frames).expect("room")
    }

    #[test]
    fn only_what_a_cache_replaces_is_saved() {
        const HEURISTICS: &str = "/lib/torch/_inductor/runtime/triton_heuristics.py";
        const COMPILE: &str = "/lib/torch/_inductor/compile_fx.py";
        let mut snapshot = Snapshot::default();
        let timing =
            stack(&mut snapshot, &[("/lib/torch/_inductor/runtime/benchmarking.py", "benchmark_gpu")]);
        let tuning = stack(&mut snapshot, &[("/lib/torch/functional.py", "clone"), (HEURISTICS, "bench")]);
        let launching = stack(&mut snapshot, &[(HEURISTICS, "run"), ("train.py", "step")]);
        let compiling = stack(&mut snapshot, &[(COMPILE, "codegen_and_compile"), (COMPILE, "compile_fx")]);
        let passes =
            stack(&mut snapshot, &[("joint_graph.py", "lazy_init"), (COMPILE, "compile_fx_forward")]);
        let triton = stack(
            &mut snapshot,
            &[
                ("/lib/torch/_inductor/runtime/benchmarking.py", "x"),
                ("/lib/triton/runtime/autotuner.py", "run"),
            ],
        );
        for [autograd, graphs, timings] in [
            [true, true, true],
            [true, false, true],
            [false, true, false],
            [true, true, false],
            [false, false, false],
        ] {
            let saved = saved(&snapshot, CompileCaches { autograd, graphs, timings });
            let are = [timing, tuning, launching, compiling, passes, triton].map(|id| saved[id.index()]);
            assert_eq!(are, [timings, timings, false, graphs, autograd && graphs, false]);
        }
    }
}
