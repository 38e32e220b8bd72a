//! The CUDA device on the stand-in driver: every operator's kernels compile and are launched, with a GPU's requests for memory
//! and without its values.
//!
//! The loader's path is read when a process starts, so each test starts this program once more with the stand-in's library
//! in the place of the driver. Skipped where that library is not built (`cargo build -p plimsoll-standin`), or NVRTC is not
//! found: put a Python with PyTorch for CUDA on the PATH.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "a test that is skipped says so")]
#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use plimsoll_tensor::suite::{self, Outcome};
use plimsoll_tensor::{DType, Device, Error, OPERATORS, SimConfig, Tensor, cuda_report};

const INNER: &str = "PLIMSOLL_TEST_ON_STANDIN";

/// Whether this is the second process; the first one starts it and expects it to pass.
fn is_inner(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let own = std::env::current_exe().unwrap();
    let library = own.ancestors().nth(2).unwrap().join("libplimsoll_standin.so");
    if !library.is_file() {
        eprintln!("skipped: {} is not built (`cargo build -p plimsoll-standin`)", library.display());
        return false;
    }
    let folder: PathBuf = std::env::temp_dir().join(format!("plimsoll-cuda-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&library, folder.join("libcuda.so.1")).unwrap();
    std::os::unix::fs::symlink(&library, folder.join("libcublasLt.so.13")).unwrap();
    std::os::unix::fs::symlink(&library, folder.join("libcudnn.so.9")).unwrap();
    let mut command = Command::new(own);
    command
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INNER, "1")
        .env("LD_LIBRARY_PATH", &folder);
    command
        .env("XDG_CACHE_HOME", &folder)
        .env("PLIMSOLL_STANDIN_GPU", "H200")
        .envs(environment.iter().copied());
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text.lines().filter(|line| line.contains("skipped")).for_each(|line| eprintln!("{line}"));
    false
}

/// Whether kernels can be compiled; says so where not.
fn has_compiler() -> bool {
    match cuda_report(0).unwrap().libraries.nvrtc {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Runs every case of the suite. Values are not looked at: there are none.
fn launch_everything() {
    let gpu = Device::cuda(0).unwrap();
    let (mut missing, mut failed) = (BTreeSet::new(), Vec::new());
    for (_, cases) in OPERATORS {
        for case in cases() {
            match suite::check_near(&case, &gpu) {
                Ok(Outcome::Missing(op)) => drop(missing.insert(op)),
                Err(why) if why.contains(": an error: ") => failed.push(why),
                Ok(Outcome::Agrees) | Err(_) => {}
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(missing.is_empty(), "operators without a kernel: {missing:?}");
}

#[test]
fn every_operator_compiles_and_is_launched_for_hopper() {
    if is_inner("every_operator_compiles_and_is_launched_for_hopper", &[]) && has_compiler() {
        launch_everything();
    }
}

/// Some minutes: `cargo test -p plimsoll-tensor --test cuda -- --ignored`.
#[test]
#[ignore = "compiles every kernel for each architecture"]
fn every_operator_compiles_for_each_architecture() {
    for capability in ["7.5", "8.0", "8.6", "8.9", "10.0", "12.0"] {
        let environment = [("PLIMSOLL_STANDIN_CC", capability)];
        if is_inner("every_operator_compiles_for_each_architecture", &environment) && has_compiler() {
            launch_everything();
            return;
        }
    }
}

#[test]
fn a_device_is_opened_once_and_knows_its_product() {
    if is_inner("a_device_is_opened_once_and_knows_its_product", &[]) {
        let gpu = Device::cuda(0).unwrap();
        assert!(gpu == Device::cuda(0).unwrap());
        assert_eq!(gpu.name(), "cuda:0");
        assert_eq!(gpu.properties().flops, Device::sim(SimConfig::like("H200").unwrap()).properties().flops);
        let error = Device::cuda(7).unwrap_err().to_string();
        assert_eq!(error, "cuda:7: open: cuda:7: there is 1 device here, numbered from 0");
    }
}

#[test]
fn memory_and_its_errors_are_the_allocators() {
    if is_inner("memory_and_its_errors_are_the_allocators", &[]) {
        let (gpu, sim) = (Device::cuda(0).unwrap(), Device::sim(SimConfig::like("H200").unwrap()));
        for device in [&gpu, &sim] {
            let x = Tensor::empty(&[1 << 20], DType::F32, device).unwrap();
            let error = Tensor::empty(&[1 << 40], DType::F32, device).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
            drop(x);
        }
        assert_eq!(gpu.max_memory_allocated(), sim.max_memory_allocated());
        assert_eq!(gpu.max_memory_reserved(), sim.max_memory_reserved());
        gpu.empty_cache().unwrap();
        assert_eq!(gpu.memory_reserved(), 0);
    }
}

#[test]
fn settings_of_the_allocator_are_read_as_pytorch_reads_them() {
    let environment = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    if is_inner("settings_of_the_allocator_are_read_as_pytorch_reads_them", &environment) {
        let gpu = Device::cuda(0).unwrap();
        let x = Tensor::empty(&[30 << 20], DType::F32, &gpu).unwrap();
        // Pages of 20 MiB, not a segment of the request's size.
        assert_eq!(gpu.memory_reserved(), 120 << 20);
        drop(x);
        gpu.empty_cache().unwrap();
        assert_eq!(gpu.memory_reserved(), 0);
    }
}

#[test]
fn settings_that_pytorch_refuses_are_refused() {
    let environment = [("PYTORCH_ALLOC_CONF", "max_split_size_mb:x")];
    if is_inner("settings_that_pytorch_refuses_are_refused", &environment) {
        let error = Device::cuda(0).unwrap_err().to_string();
        assert!(error.contains("PYTORCH_ALLOC_CONF=max_split_size_mb:x"), "{error}");
    }
}
