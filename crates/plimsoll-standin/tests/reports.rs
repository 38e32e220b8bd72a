//! Messages on stderr, and injected faults. Each test runs this test program again in a separate process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use crate::c;
use crate::library;
use crate::test_name;

/// Runs one of this file's ignored tests in an environment.
fn run(test: &str, environment: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", &format!("reports::{test}"), "--ignored", "--nocapture"]);
    let command = command.env(library::ALONE, "1").envs(environment.iter().copied());
    let output = command.output().expect("the test can be run");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

#[test]
fn an_unsupported_call_is_reported_once() {
    let (output, said) = run("asks_twice", &[]);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("plimsoll-standin: cuMulticastCreate is not supported").count(), 1, "{said}");
}

#[test]
#[ignore = "run by another test"]
fn asks_twice() {
    assert!(library::opened(test_name!(), &[]));
    assert_eq!((c!(cuMulticastCreate()), c!(cuMulticastCreate())), (801, 801));
}

#[test]
fn a_stray_access_is_reported_and_ends_the_process() {
    let (output, said) = run("touches", &[]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{said}");
    assert!(said.contains("16 bytes into an allocation of 2097152 bytes on the device"), "{said}");
    assert!(said.contains("the last call of this thread was cudaMalloc"), "{said}");
}

#[test]
#[ignore = "run by another test"]
fn touches() {
    assert!(library::opened(test_name!(), &[]));
    let mut address = 0_u64;
    c!(cudaMalloc(&mut address => *mut u64, 100 => usize));
    let byte = std::ptr::with_exposed_provenance::<u8>(address as usize + 16);
    // SAFETY: this access is not safe; the test checks its effect, and the process ends here.
    unsafe { byte.read_volatile() };
}

#[test]
fn a_fault_signal_that_another_process_sends_ends_the_process_without_a_report() {
    let (output, said) = run("is_sent_a_fault", &[]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{said}");
    assert!(!said.contains("the host touched") && !said.contains("survived"), "{said}");
}

#[test]
#[ignore = "run by another test"]
fn is_sent_a_fault() {
    // SAFETY: this restores the system's default; Rust's own handler, like ours, lets the access repeat.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    assert!(library::opened(test_name!(), &[]));
    let mut address = 0_u64;
    c!(cudaMalloc(&mut address => *mut u64, 100 => usize));
    // SAFETY: the signal is what is tested, and the process ends here.
    unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
    std::thread::sleep(std::time::Duration::from_secs(1));
    panic!("survived");
}

#[test]
fn an_injected_fault_fails_the_named_call_with_the_given_error() {
    let (output, said) =
        run("is_failed", &[("PLIMSOLL_STANDIN_FAULT", "cudaMalloc:2=2,cublasCreate_v2:1=3")]);
    assert!(output.status.success(), "{said}");
}

#[test]
#[ignore = "run by another test"]
fn is_failed() {
    assert!(library::opened(test_name!(), &[]));
    let (mut address, mut handle) = (0_u64, 0_u64);
    let codes: Vec<i32> = (0..3).map(|_| c!(cudaMalloc(&mut address => *mut u64, 100 => usize))).collect();
    assert_eq!((codes.as_slice(), c!(cudaGetLastError())), (&[0, 2, 0][..], 2));
    let made: Vec<i32> = (0..2).map(|_| c!(cublasCreate_v2(&mut handle => *mut u64))).collect();
    assert_eq!(made, [3, 0]);
}

#[test]
fn another_version_and_invalid_settings_are_reported() {
    let (_, said) = run(
        "asks_twice_of_cuda",
        &[("PLIMSOLL_STANDIN_VERSION", "0.0.7"), ("PLIMSOLL_STANDIN_GPU", "H9000")],
    );
    assert!(said.contains("the program that uses it has 0.0.7"), "{said}");
    assert!(said.contains("PLIMSOLL_STANDIN_GPU=H9000 is not valid and is ignored; example: H100"), "{said}");
}

#[test]
#[ignore = "run by another test"]
fn asks_twice_of_cuda() {
    assert!(library::opened(test_name!(), &[]));
    let mut count = 0;
    assert_eq!((c!(cudaGetDeviceCount(&mut count => *mut i32)), count), (0, 1));
}
