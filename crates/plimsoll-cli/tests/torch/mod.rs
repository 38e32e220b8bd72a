//! A program of PyTorch's and the Python that runs it under `plimsoll predict`, for the tests that need both.

#![allow(dead_code, clippy::print_stderr, reason = "each test uses a part; one that skips says so")]

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use super::program::{Folder, json, plimsoll, stderr};

/// A folder with a program, and the Python of PyTorch's that runs it.
pub(crate) struct Torch {
    pub(crate) folder: Folder,
    pub(crate) python: Vec<String>,
}

impl Torch {
    /// Nothing where there is no PyTorch, which is said.
    pub(crate) fn new(name: &str, program: &str) -> Option<Torch> {
        let Ok(python) = std::env::var("PLIMSOLL_PYTORCH") else {
            eprintln!("skipped: PLIMSOLL_PYTORCH does not name a Python with PyTorch");
            return None;
        };
        let folder = Folder::new(&format!("predict-{name}"));
        fs::write(folder.file("train.py"), program).expect("a program");
        Some(Torch { folder, python: python.split_whitespace().map(str::to_owned).collect() })
    }

    /// Whether this Python has a package; if not, that is said.
    pub(crate) fn has(&self, package: &str) -> bool {
        let found = Command::new(&self.python[0])
            .args(&self.python[1..])
            .args(["-c", &format!("import {package}")])
            .output();
        let has = found.is_ok_and(|output| output.status.success());
        if !has {
            eprintln!("skipped: {} has no {package}", self.python.join(" "));
        }
        has
    }

    pub(crate) fn predict(&self, options: &[&str], arguments: &[&str]) -> Output {
        let program = self.folder.file("train.py");
        let python = self.python.iter().map(String::as_str);
        let mut args = vec!["predict"];
        args.extend(options.iter().copied().chain(["--"]).chain(python).chain([program.as_str()]));
        args.extend(arguments);
        plimsoll(&args)
    }
}

/// The answer of a run that ends with this code.
#[track_caller]
pub(crate) fn answer(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    json(output)
}
