//! Tests of memory that forward passes keep for a backward pass that never runs, on recordings written by hand.

use crate::program::Program;

const MIB: u64 = 1 << 20;

/// Three calls of a model with eight layers. Of each layer, the first result is kept until the call has ended; the second, smaller one
/// is freed at once.
fn calls(kept_bytes: u64, freed_bytes: u64) -> Program {
    let mut program = Program::default();
    for _ in 0..3 {
        let mut kept = Vec::new();
        for _ in 0..8 {
            kept.push(program.alloc_in_module("layer", kept_bytes));
            let scratch = program.alloc_in_module("layer", freed_bytes);
            program.free(scratch);
        }
        kept.into_iter().rev().for_each(|held| program.free(held));
    }
    program
}

#[test]
fn results_of_all_layers_that_are_dropped_together_are_a_graph_that_nobody_used() {
    let (bytes, blocks, line) = calls(4 * MIB, MIB).unused_graph().expect("a graph");
    // At the peak, the last layer still has its second result.
    assert_eq!((bytes, blocks, line.as_str()), (33 * MIB, 9, "/home/me/train.py"));
}

#[test]
fn a_cache_of_keys_and_values_is_none() {
    // A call frees most of the memory that it allocates while it runs.
    assert_eq!(calls(MIB, 4 * MIB).unused_graph(), None);
}

#[test]
fn training_and_running_out_in_the_first_call_are_none() {
    let mut training = calls(4 * MIB, MIB);
    training.step(MIB);
    assert_eq!(training.unused_graph(), None);
    // The exception frees the tensors that the backward pass would have read.
    let mut fails = Program::default();
    let kept: Vec<_> = (0..8).map(|_| fails.alloc_in_module("layer", MIB)).collect();
    fails.fails(MIB);
    kept.into_iter().for_each(|held| fails.free(held));
    assert_eq!(fails.unused_graph(), None);
}

/// Calls whose layers' results all stay live. Before each call, the program allocates its input.
fn kept_calls(program: &mut Program, calls: usize) {
    for _ in 0..calls {
        program.alloc("input", MIB);
        for _ in 0..4 {
            program.alloc_in_module("linear", 4 * MIB);
            program.alloc_in_module("activation", 4 * MIB);
        }
    }
}

#[test]
fn the_graphs_of_several_calls_may_be_kept_by_a_part_of_each_output() {
    let mut program = Program::default();
    kept_calls(&mut program, 3);
    // The last result of each call may be the program's own.
    let (bytes, blocks, _) = program.unused_graph().expect("a graph");
    assert_eq!((bytes, blocks), (3 * 7 * 4 * MIB, 21));
    let mut program = Program::default();
    kept_calls(&mut program, 4);
    program.fails(MIB);
    assert!(program.unused_graph().is_some());
}

#[test]
fn kept_outputs_of_calls_without_a_graph_are_none() {
    let mut program = Program::default();
    for _ in 0..8 {
        program.alloc("input", MIB);
        let mut before = None;
        for layer in ["first", "second", "third"] {
            let result = program.alloc_in_module(layer, 4 * MIB);
            before.replace(result).into_iter().for_each(|held| program.free(held));
        }
    }
    assert_eq!(program.unused_graph(), None);
    let mut program = Program::default();
    for _ in 0..8 {
        program.alloc("input", MIB);
        program.alloc_in_module("linear", 4 * MIB);
    }
    assert_eq!(program.unused_graph(), None);
}
