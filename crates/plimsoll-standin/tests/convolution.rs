//! Describes a convolution through cuDNN's graph API, as PyTorch does, up to the workspace of its plans.

use std::ptr::null_mut;

use crate::c;
use crate::library;
use crate::test_name;

fn opened(test: &str) -> bool {
    library::opened(test, &[("PLIMSOLL_STANDIN_GPU", "H200"), ("PLIMSOLL_STANDIN_CUDNN_WORKSPACE", "model")])
}

/// Types of attributes.
const DATA_TYPE: i32 = 1;
const INT64: i32 = 3;
const NUMERICAL_NOTE: i32 = 11;
const DESCRIPTOR: i32 = 15;
/// Types of elements.
const FLOAT: i32 = 0;
const HALF: i32 = 2;

fn descriptor() -> u64 {
    let mut handle = 0;
    assert_eq!(c!(cudnnBackendCreateDescriptor(0 => i32, &mut handle => *mut u64)), 0);
    handle
}

fn set<T>(descriptor: u64, name: i32, kind: i32, values: &[T]) {
    let count = values.len() as i64;
    let values = values.as_ptr();
    let code = c!(cudnnBackendSetAttribute(
        descriptor => u64, name => i32, kind => i32, count => i64, values => *const T
    ));
    assert_eq!(code, 0);
}

/// Reads at most this many values of an attribute. Returns the attribute's number of values.
fn get<T>(descriptor: u64, name: i32, kind: i32, values: &mut [T]) -> i64 {
    let (mut count, room) = (-1, values.len() as i64);
    let place = if values.is_empty() { null_mut() } else { values.as_mut_ptr() };
    let code = c!(cudnnBackendGetAttribute(
        descriptor => u64, name => i32, kind => i32, room => i64, &mut count => *mut i64, place => *mut T
    ));
    assert_eq!(code, 0);
    count
}

/// The number of an attribute's values, for a caller that passes a maximum and no buffer, as PyTorch does for
/// attention.
fn counted(descriptor: u64, name: i32, kind: i32, most: i64) -> i64 {
    let (mut count, nowhere) = (-1, null_mut());
    let code = c!(cudnnBackendGetAttribute(
        descriptor => u64, name => i32, kind => i32, most => i64, &mut count => *mut i64, nowhere => *mut u8
    ));
    assert_eq!(code, 0);
    count
}

fn finish(descriptor: u64) -> u64 {
    assert_eq!(c!(cudnnBackendFinalize(descriptor => u64)), 0);
    descriptor
}

fn tensor(element: i32, sizes: [i64; 4]) -> u64 {
    let [_, c, h, w] = sizes;
    let tensor = descriptor();
    set(tensor, 901, DATA_TYPE, &[element]);
    set(tensor, 902, INT64, &sizes);
    set(tensor, 903, INT64, &[c * h * w, h * w, w, 1]);
    finish(tensor)
}

/// The heuristics' result for the forward pass of a 3×3 convolution from 64 to 64 channels, on 32 images of
/// 56×56.
fn heuristics(element: i32) -> u64 {
    let how = descriptor();
    set(how, 102, INT64, &[1_i64, 1]);
    set(how, 103, INT64, &[1_i64, 1]);
    set(how, 105, INT64, &[1_i64, 1]);
    let operation = descriptor();
    set(operation, 702, DESCRIPTOR, &[finish(how)]);
    set(operation, 703, DESCRIPTOR, &[tensor(element, [64, 64, 3, 3])]);
    set(operation, 704, DESCRIPTOR, &[tensor(element, [32, 64, 56, 56])]);
    set(operation, 705, DESCRIPTOR, &[tensor(element, [32, 64, 56, 56])]);
    let (graph, heuristics) = (descriptor(), descriptor());
    set(graph, 801, DESCRIPTOR, &[finish(operation)]);
    set(heuristics, 201, DESCRIPTOR, &[finish(graph)]);
    finish(heuristics)
}

/// The workspace of each plan, and whether the plan uses tensor cores.
fn plans(element: i32) -> Vec<(i64, bool)> {
    let heuristics = heuristics(element);
    let count = get::<u64>(heuristics, 202, DESCRIPTOR, &mut []);
    let mut found: Vec<u64> = (0..count).map(|_| descriptor()).collect();
    assert_eq!(get(heuristics, 202, DESCRIPTOR, &mut found[..1]), 1, "no more than there is room for");
    get(heuristics, 202, DESCRIPTOR, &mut found);
    let plan = |configuration: u64| {
        let (mut engine, plan) = ([descriptor()], descriptor());
        get(configuration, 300, DESCRIPTOR, &mut engine);
        set(plan, 401, DESCRIPTOR, &[configuration]);
        let (mut notes, mut bytes) = ([9_i32; 8], [-1_i64]);
        let notes_found = get(engine[0], 1303, NUMERICAL_NOTE, &mut notes);
        assert_eq!(counted(engine[0], 1303, NUMERICAL_NOTE, 7), notes_found);
        assert_eq!(get(finish(plan), 402, INT64, &mut bytes), 1);
        (bytes[0], notes_found == 1 && notes[0] == 0)
    };
    found.into_iter().map(plan).collect()
}

#[test]
fn kernels_on_tensor_cores_copy_what_is_not_nhwc() {
    if !opened(test_name!()) {
        return;
    }
    let (input, weights) = (32 * 64 * 56 * 56, 64 * 64 * 9);
    assert_eq!(plans(HALF), [(2 * (2 * input + weights) + 16, true), (0, false)]);
    // In 32 bits the output is written in place.
    let first = (4 * (input + weights) + 16, true);
    assert_eq!(plans(FLOAT), [first, (0, false), (0, false)], "without TF32 by the second");
}

#[test]
fn a_plan_of_something_else_needs_no_workspace() {
    if !opened(test_name!()) {
        return;
    }
    let (plan, mut bytes) = (descriptor(), [-1_i64]);
    get(finish(plan), 402, INT64, &mut bytes);
    assert_eq!(bytes, [0]);
    assert_eq!(c!(cudnnBackendDestroyDescriptor(plan => u64)), 0);
}
