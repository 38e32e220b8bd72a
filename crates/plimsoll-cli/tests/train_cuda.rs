//! `plimsoll train --device cuda` on the stand-in: the same memory requests as on a GPU, and no values.

#![cfg(target_os = "linux")]

use plimsoll_needs::needs;
use plimsoll_standin::place;

#[path = "../../plimsoll-cuda/tests/python/mod.rs"]
mod python;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::program::images::stripes;
use crate::program::{Folder, json, stderr};
use python::environment_of_python;

/// The program with the stand-in in place of NVIDIA's libraries, as an H200.
fn on_standin(folder: &Folder) -> Command {
    let tests = std::env::current_exe().expect("a path");
    let library = tests.with_file_name(place::LIBRARY); // Cargo puts it next to the tests
    for name in ["libcuda.so.1", "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2"] {
        let link = folder.0.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(&library, link).expect("a link");
        }
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.envs(environment_of_python().map(|folder| ("VIRTUAL_ENV", folder)));
    command.env("LD_LIBRARY_PATH", folder.path()).env("XDG_CACHE_HOME", folder.path());
    command.env("XDG_RUNTIME_DIR", folder.path()).env("PLIMSOLL_STANDIN_GPU", "H200");
    command
}

const JOBS: [&[&str]; 3] = [
    &["mnist", "--images", "300", "--batch-size", "32", "--epochs", "2"],
    &[
        "gpt",
        "--layers",
        "2",
        "--width",
        "64",
        "--steps",
        "12",
        "--sample",
        "0",
        "--dropout",
        "0.1",
        "--checkpoint",
    ],
    &["gpt", "--layers", "2", "--width", "64", "--steps", "12", "--sample", "0", "--dtype", "bfloat16"],
];

fn train(folder: &Folder, job: &[&str], device: &str, more: &[&str]) -> Output {
    let mut command = on_standin(folder);
    command.arg("train").args(job).args(["--device", device, "--no-live", "--json"]).args(more);
    let output = command.output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{job:?} on {device}: {}", stderr(&output));
    output
}

/// A folder of images, and the job that trains on them.
fn image_job(folder: &Folder) -> [String; 9] {
    let data = folder.file("images");
    stripes(Path::new(&data), 30);
    ["image", "--data", &data, "--image-size", "16", "--batch-size", "12", "--augment", "none"]
        .map(str::to_owned)
}

/// Checks that the memory report on the stand-in equals that of the simulated GPU, with and without capture.
fn has_the_account_of_the_simulated_gpu(folder: &Folder, job: &[&str]) {
    for more in [&[][..], &["--capture"]] {
        let [cuda, sim] = ["cuda", "sim:H200"].map(|device| json(&train(folder, job, device, more)));
        for field in ["peak_allocated_bytes", "peak_reserved_bytes", "peak_by_category", "owners_at_peak"] {
            let (cuda, sim) = (&cuda["memory"][field], &sim["memory"][field]);
            assert!(!sim.is_null() && cuda == sim, "{job:?} {more:?}: {field}: {cuda} {sim}");
        }
    }
}

#[needs(nvrtc)]
#[test]
fn captured_steps_have_the_account_of_the_simulated_gpu() {
    let folder = Folder::new("train-cuda-capture");
    JOBS.iter().for_each(|job| has_the_account_of_the_simulated_gpu(&folder, job));
    // The last batch of an epoch is a smaller one.
    let image = image_job(&folder);
    let image: Vec<&str> = image.iter().map(String::as_str).chain(["--epochs", "3"]).collect();
    has_the_account_of_the_simulated_gpu(&folder, &image);
}

#[needs(nvrtc)]
#[test]
fn two_gpus_have_the_account_of_simulated_ranks_with_nccl() {
    let folder = Folder::new("train-cuda-ranks");
    let job = ["gpt", "--layers", "2", "--width", "64", "--steps", "8", "--sample", "0", "--batch-size", "8"];
    let of = |device: &str, more: &[&str]| {
        let mut command = on_standin(&folder);
        command.env("PLIMSOLL_STANDIN_DEVICES", "2").arg("train").args(job);
        command.args(["--device", device, "--no-live", "--json", "--parallel", "ddp"]).args(more);
        command.output().expect("it runs")
    };
    for more in [&[][..], &["--capture"]] {
        let of = |device, ranks| {
            let output = of(device, &[&[ranks, "2"], more].concat());
            assert_eq!(output.status.code(), Some(0), "{device}: {}", stderr(&output));
            json(&output)
        };
        let (cuda, sim) = (of("cuda", "--ranks"), of("sim:H200", "--sim-ranks"));
        for field in ["peak_allocated_bytes", "peak_reserved_bytes", "peak_by_category", "owners_at_peak"] {
            let (cuda, sim) = (&cuda["memory"][field], &sim["memory"][field]);
            assert!(!sim.is_null() && cuda == sim, "{more:?}: {field}: {cuda} {sim}");
        }
        assert_eq!(cuda["ranks"]["buckets"], sim["ranks"]["buckets"]);
    }
    let output = of("cuda", &["--ranks", "4"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("4 ranks on this machine, and 2 GPUs"), "{}", stderr(&output));
}

#[needs(nvrtc)]
#[test]
fn gpus_that_read_each_others_memory_need_no_nccl() {
    let folder = Folder::new("train-cuda-peers");
    let job = ["gpt", "--layers", "2", "--width", "64", "--steps", "6", "--sample", "0", "--batch-size", "8"];
    let outside = |way: &str, copies: &str, [device, ranks]: [&str; 2]| {
        let mut command = on_standin(&folder);
        command
            .env("PLIMSOLL_STANDIN_DEVICES", "2")
            .env("PLIMSOLL_PEER_COPIES", copies)
            .arg("train")
            .args(job);
        command.args(["--device", device, "--no-live", "--json", "--parallel", way, ranks, "2"]);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{way} {copies} {device}: {}", stderr(&output));
        json(&output)["memory"]["outside_allocator_bytes"].as_u64().expect("bytes")
    };
    for way in ["ddp", "shard"] {
        // The stand-in does not count NCCL's bytes here: this only shows that ranks train both ways.
        for copies in ["1", "0"] {
            outside(way, copies, ["cuda", "--ranks"]);
        }
        let [with, without] = ["1", "0"].map(|copies| outside(way, copies, ["sim:H200", "--sim-ranks"]));
        assert!(with + (600 << 20) < without, "{way}: {with} with copies, {without} without");
    }
}

/// Starts a long job with captured steps, and sends it a signal once it has saved.
fn interrupted(folder: &Folder, job: &[&str], signal: &str, saved: &str) -> Output {
    let mut command = on_standin(folder);
    let args = ["--save-every", "7", "--capture", "--device", "cuda", "--no-live", "--json", "--save", saved];
    command.arg("train").args(job).args(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let begun = Instant::now();
    // It saves after seven steps, which is after capture has begun.
    while !Path::new(saved).join("model.safetensors").exists() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success() || signal == "-KILL");
    child.wait_with_output().expect("an end")
}

/// One job of each kind.
fn jobs(folder: &Folder) -> [Vec<String>; 3] {
    let of = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    [
        of(&["gpt", "--layers", "2", "--width", "64", "--sample", "0"]),
        of(&["mnist", "--images", "300", "--batch-size", "32"]),
        image_job(folder).to_vec(),
    ]
}

#[needs(nvrtc)]
#[test]
fn ctrl_c_in_captured_steps_saves_and_ends_cleanly() {
    let folder = Folder::new("train-cuda-signal");
    for job in jobs(&folder) {
        let job: Vec<&str> = job.iter().map(String::as_str).collect();
        let saved = folder.file(&format!("saved-{}", job[0]));
        let long = [&job[..], &["--steps", "100000000"]].concat();
        let output = interrupted(&folder, &long, "-INT", &saved);
        assert_eq!(output.status.code(), Some(130), "{job:?}: {}", stderr(&output));
        let run = json(&output);
        assert_eq!((&run["verdict"], &run["signal"]), (&"stopped".into(), &"SIGINT".into()));
        let steps = (run["steps"].as_u64().expect("steps") + 5).to_string();
        let resumed = [&job[..], &["--steps", &steps]].concat();
        let resumed = train(&folder, &resumed, "cuda", &["--capture", "--resume", &saved]);
        assert_eq!(json(&resumed)["steps"].as_u64(), steps.parse().ok(), "{job:?}");
    }
}

#[needs(nvrtc)]
#[test]
fn a_kill_in_captured_steps_leaves_a_save_that_is_whole() {
    let folder = Folder::new("train-cuda-kill");
    for job in jobs(&folder) {
        let job: Vec<&str> = job.iter().map(String::as_str).collect();
        let saved = folder.file(&format!("saved-{}", job[0]));
        let long = [&job[..], &["--steps", "100000000"]].concat();
        let output = interrupted(&folder, &long, "-KILL", &saved);
        assert_eq!(output.status.signal(), Some(9), "{job:?}: {}", stderr(&output));
        // It continues from there.
        let again = folder.file(&format!("again-{}", job[0]));
        let resumed = [&long[..], &["--resume", &saved]].concat();
        let output = interrupted(&folder, &resumed, "-INT", &again);
        assert_eq!(output.status.code(), Some(130), "{job:?}: {}", stderr(&output));
        assert!(json(&output)["steps"].as_u64() > Some(7), "{job:?}");
    }
}

/// The folder of this Python's own NVRTC.
fn folder_of_nvrtc() -> Option<PathBuf> {
    let listed = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect::<Vec<_>>()
    };
    listed(&environment_of_python()?.join("lib"))
        .iter()
        .flat_map(|python| listed(&python.join("site-packages/nvidia")))
        .map(|package| package.join("lib"))
        .find(|libraries| {
            let names = listed(libraries);
            names.iter().any(|name| name.to_string_lossy().contains("libnvrtc.so"))
        })
}

#[needs(nvrtc)]
#[test]
fn training_without_cudnn_says_once_that_convolutions_are_slow() {
    let folder = Folder::new("train-cuda-plain");
    let nvrtc = folder_of_nvrtc().expect("NVRTC");
    let mut command = on_standin(&folder);
    std::fs::remove_file(folder.0.join("libcudnn.so.9")).expect("a link");
    // A Python environment with only NVRTC.
    let packages = folder.0.join("env/lib/python3.12/site-packages/nvidia/cuda_nvrtc");
    std::fs::create_dir_all(&packages).expect("folders");
    std::fs::create_dir_all(folder.0.join("env/bin")).expect("folders");
    std::fs::write(folder.0.join("env/bin/python3"), "").expect("a file");
    std::os::unix::fs::symlink(nvrtc, packages.join("lib")).expect("a link");
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"] {
        command.env_remove(name);
    }
    command.env("PATH", folder.0.join("env/bin")).arg("train").args(image_job(&folder));
    let output = command
        .args(["--device", "cuda", "--no-live", "--dtype", "bfloat16", "--epochs", "2"])
        .output()
        .expect("it runs");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("which are slow")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(
        lines[0].contains("libcudnn.so.9") && lines[0].contains("pip install nvidia-cudnn-cu1"),
        "{said}"
    );
}
