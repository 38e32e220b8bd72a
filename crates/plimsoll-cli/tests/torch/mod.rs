//! A PyTorch program and the Python that runs it under `plimsoll predict`, for tests that need both.

use std::fs;
use std::process::Output;

use serde_json::Value;

use super::program::{Folder, json, plimsoll, stderr};

/// A folder with a program, and a Python with PyTorch that runs it.
pub(crate) struct Torch {
    pub(crate) folder: Folder,
    pub(crate) python: Vec<String>,
}

impl Torch {
    /// For tests with `#[needs(pytorch)]`.
    pub(crate) fn new(name: &str, program: &str) -> Torch {
        let python = std::env::var("PLIMSOLL_PYTORCH").expect("a test that needs PyTorch");
        let folder = Folder::new(&format!("predict-{name}"));
        fs::write(folder.file("train.py"), program).expect("a program");
        Torch { folder, python: python.split_whitespace().map(str::to_owned).collect() }
    }

    pub(crate) fn predict(&self, options: &[&str], arguments: &[&str]) -> Output {
        let program = self.folder.file("train.py");
        let python = self.python.iter().map(String::as_str);
        let mut args = vec!["predict"];
        if !options.iter().any(|option| option.starts_with("--gpu")) {
            args.extend(["--gpu", "A100-80GB"]);
        }
        args.extend(options.iter().copied().chain(["--"]).chain(python).chain([program.as_str()]));
        args.extend(arguments);
        plimsoll(&args)
    }
}

/// The answer of a run that must end with this exit code.
#[track_caller]
pub(crate) fn answer(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    json(output)
}
