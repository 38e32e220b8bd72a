//! The stand-in in place of a GPU for `plimsoll run`, for tests of what happens on one. `plimsoll predict` starts it
//! by itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_standin::{place, settings};

use super::program::Folder;
use super::torch::Torch;

/// A plimsoll command in which PyTorch sees an A100. Live views are in the folder.
pub(crate) fn command(folder: &Folder) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
    let configured = std::env::var_os(place::PLACE).map(PathBuf::from);
    let beside = program.parent().expect("a folder").join("deps").join(place::LIBRARY);
    let library = place::find(program, configured.as_deref()).unwrap_or(beside);
    let links = folder.0.join("standin");
    place::lay_out(&links, &library).expect("the stand-in: build plimsoll-standin first");
    let mut command = Command::new(program);
    command.envs(place::environment(&links, |name| std::env::var_os(name)));
    command.env(settings::GPU, "A100-80GB").env(settings::DEVICES, "1");
    command.env("XDG_RUNTIME_DIR", folder.path()).env("TMPDIR", folder.path());
    command
}

/// Runs `plimsoll run OPTIONS -- python train.py ARGUMENTS` on it.
pub(crate) fn run(torch: &Torch, options: &[&str], arguments: &[&str]) -> Command {
    let mut command = command(&torch.folder);
    command.arg("run").args(options).arg("--").args(&torch.python);
    command.arg(torch.folder.file("train.py")).args(arguments).current_dir(torch.folder.path());
    command
}
