//! The Python package of the wheel, from its sources. The part that runs the program needs any Python 3;
//! `python/tests` need `PLIMSOLL_PYTORCH` to name a Python with PyTorch, pytest and IPython, but no GPU. `.ci/wheel`
//! tests the wheel itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plimsoll_standin::{place, settings};

use plimsoll_needs::needs;

use crate::program::{Folder, kept, stderr, stdout};
use crate::torch::Torch;

/// The folder of the package.
fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("python")
}

/// A Python that can import the package and runs the program of this build.
fn python(words: &[String]) -> Command {
    let mut python = Command::new(&words[0]);
    python.args(&words[1..]).env("PYTHONPATH", package()).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("PLIMSOLL_PROGRAM", env!("CARGO_BIN_EXE_plimsoll"));
    python
}

#[needs(python3)]
#[test]
fn any_python_explains_a_snapshot_and_gets_failures_as_exceptions() {
    let code = "
import sys, plimsoll
print(plimsoll.explain(sys.argv[1])['verdict']['text'])
try:
    plimsoll.explain('absent.pickle')
except plimsoll.UnreadableError as why:
    print(why.exit_code, why)
";
    let output = python(&["python3".to_owned()]).args(["-c", code, &kept("gpt2_oom.pickle.gz")]).output();
    let output = output.expect("a test that needs python3");
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = stdout(&output);
    assert!(lines.starts_with("out of memory: CAPACITY") && lines.contains("\n3 absent.pickle"), "{lines}");
}

/// Runs these files of `python/tests`, on the stand-in if one is given.
fn pytest(torch: &Torch, standin: Option<&Path>, files: &[&str]) -> Output {
    let mut python = python(&torch.python);
    python
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args(files)
        .current_dir(package().join("tests"));
    // On two cores, PyTorch's threads cost more than they gain.
    python.env("OMP_NUM_THREADS", "1");
    if let Some(folder) = standin {
        python.envs(place::environment(folder, |name| std::env::var_os(name)));
        python.env(settings::GPU, "A100-80GB");
    }
    python.output().expect("Python starts")
}

fn passes(output: &Output) {
    assert!(
        output.status.success() && !stdout(output).contains("no tests ran"),
        "{}\n{}",
        stdout(output),
        stderr(output)
    );
}

#[needs(pytorch, pytest)]
#[test]
fn the_packages_own_tests_pass() {
    let torch = Torch::new("package", "");
    let package = ["test_program.py", "test_memory_saving.py", "test_predict.py", "test_version.py"];
    let injected = [
        "test_protocol.py",
        "test_inject.py",
        "test_dataflow.py",
        "test_growth.py",
        "test_holding.py",
        "test_late.py",
        "test_predict_parts.py",
        "test_serve.py",
        "test_offload_optimizer.py",
        "test_offload_disk.py",
        "test_rest.py",
    ];
    passes(&pytest(&torch, None, &[package.as_slice(), &injected].concat()));
}

#[needs(pytorch, pytest, ipython)]
#[test]
fn recordings_the_pytest_plugin_and_the_notebook_work_on_the_stand_in() {
    let torch = Torch::new("package-standin", "");
    let folder = Folder::new("package-standin-library");
    let tests = std::env::current_exe().expect("a path");
    place::lay_out(folder.0.as_path(), &tests.with_file_name(place::LIBRARY))
        .expect("the library, which Cargo puts beside the tests");
    let files = ["test_recording.py", "test_pytest_plugin.py", "test_notebook.py"];
    passes(&pytest(&torch, Some(folder.0.as_path()), &files));
}
