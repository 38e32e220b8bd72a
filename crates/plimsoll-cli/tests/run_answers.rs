//! `plimsoll run --with` applies its techniques in every process that imports PyTorch, or ends with exit code 2 before a step.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use plimsoll_needs::needs;

use crate::program::{Folder, plimsoll, stderr, stdout};
use crate::torch::Torch;

/// Trains on the CPU: in this process, in a process in another folder, or in a process without environment
/// variables.
const PROGRAM: &str = "
import os, subprocess, sys
if sys.argv[1:] == ['folder']:
    os.chdir('/')
    sys.exit(subprocess.run([sys.executable, os.path.abspath(__file__)]).returncode)
if sys.argv[1:] == ['emptied']:
    sys.exit(subprocess.run([sys.executable, os.path.abspath(__file__)], env={}).returncode)
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print('stepped', 'plimsoll_injected.techniques' in sys.modules)
";

fn run(torch: &Torch, options: &[&str], arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["run", "--no-watch", "--with", "free-grads", "--"]).args(&torch.python).args(options);
    command.arg(torch.folder.file("train.py")).args(arguments).envs(variables.iter().copied());
    command.current_dir(torch.folder.path()).env("HOME", torch.folder.path()).env_remove("XDG_CACHE_HOME");
    command.output().expect("it starts")
}

#[needs(pytorch)]
#[test]
fn a_process_without_the_techniques_ends_the_run_before_its_first_step() {
    let torch = Torch::new("answers", PROGRAM);
    for (options, arguments) in [(&["-I"][..], &[][..]), (&["-E"], &[]), (&[], &["emptied"])] {
        let output = run(&torch, options, arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{options:?} {arguments:?}: {}", stdout(&output));
        assert!(!stdout(&output).contains("stepped"), "{options:?} {arguments:?}");
        let said = stderr(&output);
        assert!(said.contains("free-grads was not applied") && said.contains("train.py"), "{said}");
    }
}

#[test]
fn a_program_that_imports_no_pytorch_is_not_taken_for_one_with_techniques() {
    let output = plimsoll(&["run", "--no-watch", "--with", "free-grads", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no process of the program loaded both"), "{}", stderr(&output));
    // The program's own failure takes precedence.
    let output = plimsoll(&["run", "--no-watch", "--with", "free-grads", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
}

#[needs(pytorch)]
#[test]
fn techniques_are_applied_wherever_the_cache_is_and_whatever_is_in_it() {
    let torch = Torch::new("answers-cache", PROGRAM);
    let applied = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = run(&torch, &[], arguments, variables);
        assert!(output.status.success(), "{variables:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "stepped True\n", "{variables:?}");
    };
    // A relative or empty path is ignored.
    applied(&["folder"], &[("XDG_CACHE_HOME", "relative")]);
    assert!(!torch.folder.0.join("relative").exists());
    let cache = torch.folder.0.join(".cache/plimsoll");
    let ours = fs::read_dir(&cache).expect("made").next().expect("one").expect("an entry").path();
    // A file that another program put there is not loaded.
    let file = ours.join("sitecustomize.py");
    let text = fs::read(&file).expect("there");
    fs::write(&file, vec![b'#'; text.len()]).expect("changed");
    fs::write(ours.join("torch.py"), "raise SystemExit('loaded')").expect("made");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("changed");
    applied(&[], &[("XDG_CACHE_HOME", "")]);
    assert_eq!(fs::read(&file).expect("there"), text);
    assert!(!ours.join("torch.py").exists());
    assert_eq!(fs::metadata(&cache).expect("there").permissions().mode() & 0o777, 0o700);
    // Without any cache, and with a folder for temporary files that PYTHONPATH cannot contain.
    let spaced = Folder::new("answers a:b");
    applied(&[], &[("HOME", "/nowhere/at/all"), ("TMPDIR", spaced.path())]);
}
