//! Runs PyTorch in a separate process, and reads what it measures: [`first_uses`], [`two_ranks`].

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a program may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long a program may take to exit after the signal that asks it to.
const GRACE: Duration = Duration::from_secs(40);

/// What PyTorch measured.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// PyTorch's version, if it was printed.
    pub(super) torch: Option<String>,
    /// NCCL's version, if PyTorch has it.
    pub(super) nccl: Option<String>,
    /// Each stage, and the bytes that it added.
    pub(super) stages: Vec<(String, u64)>,
}

impl Measured {
    /// The lines of a program. A stage's bytes are the increase since the previous one.
    fn of(text: &str) -> Measured {
        let mut measured = Measured::default();
        let mut before = 0;
        for value in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let text = |key: &str| value[key].as_str().map(str::to_owned);
            measured.torch = measured.torch.or_else(|| text("torch"));
            measured.nccl = measured.nccl.or_else(|| text("nccl"));
            if let (Some(stage), Some(outside)) = (text("stage"), value["outside"].as_u64()) {
                measured.stages.push((stage, outside.saturating_sub(before)));
                before = outside;
            }
        }
        measured
    }

    /// The bytes that a stage added.
    pub(super) fn bytes(&self, stage: &str) -> Option<u64> {
        self.stages.iter().find(|(name, _)| name == stage).map(|(_, bytes)| *bytes)
    }
}

/// How libraries and kernels are loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Uses {
    /// All libraries, with kernels loaded lazily.
    All,
    /// Only kernels, all loaded at once.
    EagerKernels,
}

/// The Python to run: `--python`, the one of the active environment, or the first on the path.
pub(super) fn python(given: Option<&Path>) -> PathBuf {
    let environment = || Some(PathBuf::from(std::env::var_os("VIRTUAL_ENV")?).join("bin/python"));
    given
        .map(Path::to_path_buf)
        .or_else(|| environment().filter(|it| it.is_file()))
        .unwrap_or("python3".into())
}

/// Measures the first uses of libraries on one GPU, given by CUDA's number.
///
/// # Errors
/// A sentence that says why there are no figures.
pub(super) fn first_uses(python: &Path, folder: &Path, device: u32, uses: Uses) -> Result<Measured, String> {
    let mut command = script(python, folder, "first_uses.py", include_str!("first_uses.py"), &[])?;
    command.env("CUDA_VISIBLE_DEVICES", seen(device));
    match uses {
        Uses::All => command.env("CUDA_MODULE_LOADING", "LAZY"),
        Uses::EagerKernels => command.arg("kernels").env("CUDA_MODULE_LOADING", "EAGER"),
    };
    run(&mut command)
}

/// Measures the first uses of NCCL on two GPUs.
///
/// # Errors
/// A sentence that says why there are no figures.
pub(super) fn two_ranks(python: &Path, folder: &Path) -> Result<Measured, String> {
    let launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"];
    run(&mut script(python, folder, "two_ranks.py", include_str!("two_ranks.py"), &launcher)?)
}

/// The value of the variable that selects one of the GPUs that this process sees.
fn seen(device: u32) -> String {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let names: Vec<&str> = visible.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    names.get(device as usize).map_or_else(|| device.to_string(), |name| (*name).to_owned())
}

fn script(python: &Path, folder: &Path, name: &str, text: &str, before: &[&str]) -> Result<Command, String> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|why| format!("{}: {why}", path.display()))?;
    let mut command = Command::new(python);
    command.args(before).arg(&path);
    Ok(command)
}

/// Runs a program to its end.
fn run(command: &mut Command) -> Result<Measured, String> {
    let program = command.get_program().display().to_string();
    let unread = |why: io::Error| format!("{program}: {why}");
    let (mut said, mut complained) =
        (tempfile::tempfile().map_err(unread)?, tempfile::tempfile().map_err(unread)?);
    command.stdin(Stdio::null()).stdout(said.try_clone().map_err(unread)?);
    command.stderr(complained.try_clone().map_err(unread)?);
    let mut child = command.spawn().map_err(unread)?;
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().map_err(unread)? {
            Some(status) => break status,
            None if Instant::now() > until => {
                end(&mut child);
                return Err(format!("{program} did not end within {} s", PATIENCE.as_secs()));
            }
            None => sleep(Duration::from_millis(20)),
        }
    };
    let measured = Measured::of(&text(&mut said).map_err(unread)?);
    if status.success() && !measured.stages.is_empty() {
        return Ok(measured);
    }
    let complaint = text(&mut complained).map_err(unread)?;
    let last = complaint.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    Err(format!("{program}: {}", last.trim()))
}

/// Ends a program. A launcher ends its ranks first, if it has time for that.
fn end(child: &mut Child) {
    // Each of these fails only if the program exits by itself at this moment.
    let _asked = kill_process(Pid::from_child(child), Signal::TERM);
    let until = Instant::now() + GRACE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    let _ended = child.kill();
    let _reaped = child.wait();
}

fn text(file: &mut fs::File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_the_bytes_that_it_added() {
        let text = "{\"torch\": \"2.11.0+cu130\", \"nccl\": \"2.28.9\"}\n{\"stage\": \"context\", \"outside\": 100}\nnoise\n\
                    {\"stage\": \"kernels\", \"outside\": 130}\n{\"stage\": \"cublas\", \"outside\": 120}\n";
        let measured = Measured::of(text);
        assert_eq!(
            (measured.torch.as_deref(), measured.nccl.as_deref()),
            (Some("2.11.0+cu130"), Some("2.28.9"))
        );
        let bytes = ["context", "kernels", "cublas", "cudnn"].map(|stage| measured.bytes(stage));
        assert_eq!(bytes, [Some(100), Some(30), Some(0), None]);
    }

    #[test]
    fn a_program_without_figures_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo 'No module named torch' >&2; exit 1"]);
        assert_eq!(run(&mut command), Err("sh: No module named torch".to_owned()));
        assert!(run(&mut Command::new("/no/such/python")).unwrap_err().contains("/no/such/python"));
        let mut command = Command::new("sh");
        command.args(["-c", "echo '{\"stage\": \"context\", \"outside\": 7}'"]);
        assert_eq!(run(&mut command).unwrap().stages, [("context".to_owned(), 7)]);
    }
}
