//! Finds the origin of a NaN gradient: the derivative that produced it, and the line that recorded the operation.

use std::backtrace::Backtrace;
use std::cell::Cell;

use crate::error::{Error, Result};
use crate::label;
use crate::tensor::{Node, Tensor};

thread_local! {
    static ON: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` in anomaly mode: operations remember where they were called, and a backward pass fails at the first
/// derivative that produces a NaN. The error says where the operation was called. This is slow, because every gradient
/// is read. Like `torch.autograd.detect_anomaly`.
pub fn detect_anomaly<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ON.set(self.0);
        }
    }
    let _before = Restore(ON.replace(true));
    f()
}

/// In anomaly mode, the place where an operation is called: the program's own stack frames.
pub(crate) fn place() -> Option<Box<str>> {
    ON.get().then(|| frames_of_program(&Backtrace::force_capture().to_string()).into_boxed_str())
}

/// Functions of this library and of Rust's runtime: frames whose names start with one of these, or that are methods of
/// one, are skipped.
const NOT_OF_PROGRAM: [&str; 10] = [
    "plimsoll::",
    "plimsoll_tensor::",
    "std::",
    "core::",
    "alloc::",
    "test::",
    "rayon::",
    "rayon_core::",
    "__",
    "rust_",
];

/// The stack frames that belong to the program, innermost first, each with file and line; if none belong to it, all
/// frames.
fn frames_of_program(stack: &str) -> String {
    let mut frames: Vec<(&str, Option<&str>)> = Vec::new();
    for line in stack.lines().map(str::trim) {
        match (line.strip_prefix("at "), line.split_once(": ")) {
            (Some(place), _) => {
                if let Some((_, at)) = frames.last_mut() {
                    // Drops the column.
                    *at = Some(place.rsplit_once(':').map_or(place, |(line, _)| line));
                }
            }
            (None, Some((number, name))) if number.bytes().all(|digit| digit.is_ascii_digit()) => {
                frames.push((name, None));
            }
            _ => {}
        }
    }
    let is_program = |name: &str| {
        let name = name.trim_start_matches(['<', '&']);
        name.contains("::") && !NOT_OF_PROGRAM.iter().any(|prefix| name.starts_with(prefix))
    };
    let own: Vec<String> = frames
        .iter()
        .filter(|(name, _)| is_program(name))
        .map(|(name, at)| match at {
            Some(at) => format!("  {name} at {at}"),
            None => {
                format!("  {name} (its line is not known: set `debug = \"line-tables-only\"` in the profile)")
            }
        })
        .collect();
    if own.is_empty() { stack.to_owned() } else { own.join("\n") }
}

/// In anomaly mode, fails if a derivative produced a gradient with a NaN.
pub(crate) fn check(node: &Node, grads: &[Option<Tensor>]) -> Result<()> {
    if !ON.get() {
        return Ok(());
    }
    for (input, grad) in grads.iter().enumerate() {
        let Some(grad) = grad else { continue };
        if grad.device().has_values() && grad.has_nan()? {
            return Err(Error::Anomaly {
                op: node.name(),
                owner: label::text(node.layer),
                input,
                place: node.place().map_or_else(
                    || {
                        "it was recorded outside anomaly mode: also wrap the forward pass in `detect_anomaly`"
                            .to_owned()
                    },
                    ToOwned::to_owned,
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::frames_of_program;

    #[test]
    fn only_the_programs_frames_are_shown_each_with_its_line() {
        let stack = "   0: plimsoll_tensor::autograd::anomaly::place
             at /root/plimsoll/crates/plimsoll-tensor/src/autograd/anomaly.rs:28:22
   1: <plimsoll::nn::linear::Linear as plimsoll::nn::module::Module>::forward
             at /root/plimsoll/crates/plimsoll/src/nn/linear.rs:60:9
   2: <train::Net as plimsoll::nn::module::Module>::forward
             at ./src/main.rs:17:20
   3: train::main
             at ./src/main.rs:40:5
   4: core::ops::function::FnOnce::call_once
             at /rustc/abc/library/core/src/ops/function.rs:250:5
   5: std::rt::lang_start
   6: main
   7: __libc_start_main
   8: _start
";
        let expected = "  <train::Net as plimsoll::nn::module::Module>::forward at ./src/main.rs:17\n  train::main at ./src/main.rs:40";
        assert_eq!(frames_of_program(stack), expected);
        assert_eq!(frames_of_program("   0: main\n"), "   0: main\n", "all where none is known");
        let without_lines = frames_of_program("   0: train::main\n");
        assert!(without_lines.starts_with("  train::main (its line is not known"), "{without_lines}");
    }
}
