//! Tests of this crate on the stand-in device: the same calls and the same memory as on a GPU, but without one.
//!
//! The loader's path is read when a process starts, so each test starts this program again with the stand-in's library in
//! place of the driver. Tests that compile kernels need NVRTC: see `plimsoll-needs`.

#![cfg(target_os = "linux")]

mod python;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use plimsoll_alloc::{Driver, StreamId, driver_suite};
use plimsoll_cuda::{Args, CudaError, CudaMemory, Fault, Gpu, Launch, Search, Source, Step, compile};
use plimsoll_needs::needs;

use python::environment_of_python;

const INNER: &str = "PLIMSOLL_TEST_ON_STANDIN";

/// Runs one test of this file again, with the stand-in as the driver.
fn on_standin(test: &str, environment: &[(&str, &str)]) -> Output {
    let own = std::env::current_exe().expect("this program");
    let library = own.with_file_name(plimsoll_standin::place::LIBRARY); // Cargo puts it next to the tests
    let folder: PathBuf = std::env::temp_dir().join(format!("plimsoll-edge-{}-{test}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::symlink(&library, folder.join("libcuda.so.1")).expect("a link");
    let mut command = Command::new(own);
    command.args(["--exact", test, "--nocapture"]).env(INNER, "1").env("LD_LIBRARY_PATH", &folder);
    command.envs(environment_of_python().map(|folder| ("VIRTUAL_ENV", folder)));
    command.env("XDG_CACHE_HOME", &folder).envs(environment.iter().copied());
    let output = command.output().expect("this program again");
    std::fs::remove_dir_all(&folder).expect("the folder");
    output
}

/// Whether this is the second process. The first one starts it and expects it to pass.
fn is_inner(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let output = on_standin(test, environment);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

fn gpu() -> Arc<Gpu> {
    Gpu::open(0, Search::from_env(), 32 << 20).expect("the stand-in")
}

#[test]
fn its_memory_is_a_driver_as_others_are() {
    if is_inner("its_memory_is_a_driver_as_others_are", &[]) {
        let gpu = gpu();
        let before = gpu.memory_info();
        let mut memory = CudaMemory::new(gpu.clone());
        driver_suite::segments(&mut memory);
        driver_suite::events(&mut memory);
        driver_suite::pages(&mut memory);
        driver_suite::aliases(&mut memory);
        memory.segment_alloc(2 << 20).expect("2 MiB");
        drop(memory);
        assert_eq!(gpu.memory_info(), before, "what was not returned is freed");
    }
}

#[test]
fn a_device_says_what_it_is_and_another_is_not_there() {
    if is_inner("a_device_says_what_it_is_and_another_is_not_there", &[]) {
        let gpu = gpu();
        assert!(gpu.facts().capability >= (7, 5) && gpu.facts().total_bytes > 1 << 30, "{:?}", gpu.facts());
        let error = Gpu::open(9, Search::from_env(), 0).err().expect("no tenth device");
        assert!(matches!(error, CudaError::NoSuchDevice { ordinal: 9, .. }), "{error}");
    }
}

#[test]
fn bytes_go_there_and_come_back_in_pieces() {
    if is_inner("bytes_go_there_and_come_back_in_pieces", &[]) {
        let gpu = gpu();
        let mut memory = CudaMemory::new(gpu.clone());
        let at = memory.segment_alloc(40 << 20).expect("40 MiB");
        let bytes: Vec<u8> = (0..20_000_001).map(|i: u32| (i % 251) as u8).collect();
        gpu.write(at.0, &bytes, StreamId(1)).expect("a copy there");
        let mut back = vec![7];
        gpu.read(at.0, bytes.len(), &mut back, StreamId(1)).expect("a copy back");
        // The stand-in keeps no values, so only the length and the earlier bytes are checked.
        assert_eq!((back.len(), back[0]), (bytes.len() + 1, 7));
        assert_eq!(gpu.take_fault(), Ok(None::<Fault>));
        gpu.wait_all().expect("done");
    }
}

/// The stand-in keeps the last bytes that were sent until a kernel runs, so these values come back.
#[test]
fn host_memory_is_copied_by_its_address_registered_or_not() {
    if is_inner("host_memory_is_copied_by_its_address_registered_or_not", &[]) {
        let gpu = gpu();
        let mut memory = CudaMemory::new(gpu.clone());
        let there = memory.segment_alloc(2 << 20).expect("2 MiB").0;
        let address = |bytes: &mut [u8]| bytes.as_mut_ptr().expose_provenance() as u64;
        for is_registered in [false, true] {
            let (mut from, mut to) = (vec![3 + u8::from(is_registered); 4096], vec![0; 4096]);
            let (begin, end) = (address(&mut from), address(&mut to));
            if is_registered {
                gpu.register(begin, 4096).expect("registered");
                gpu.register(end, 4096).expect("registered");
            }
            gpu.copy(begin, there, 4096, StreamId(1)).expect("a copy there");
            gpu.copy(there, end, 4096, StreamId(1)).expect("a copy back");
            gpu.wait_all().expect("done");
            assert_eq!(to, from);
            if is_registered {
                gpu.unregister(begin).expect("as before");
                gpu.unregister(end).expect("as before");
            }
            assert!(gpu.unregister(begin).is_err(), "it is not registered");
        }
    }
}

#[needs(nvrtc)]
#[test]
fn a_kernel_is_compiled_once_and_launched() {
    if is_inner("a_kernel_is_compiled_once_and_launched", &[]) {
        let gpu = gpu();
        let text = "extern \"C\" __global__ void kernel(T* x, long long n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }";
        for on in [0, 1] {
            let source = Source::new("add_one", "", text).with("T", "float");
            let args = Args::new().address(0x1000).i64(4);
            let launch = Launch { source, grid: [1; 3], block: 32, shared_bytes: 0, args };
            gpu.run(Step::Launch(launch), StreamId(on), 0).expect("a launch");
        }
        let source = Source::new("wrong", "", "this is no kernel").with("T", "float");
        let launch = Launch { source, grid: [1; 3], block: 32, shared_bytes: 0, args: Args::new() };
        let error = gpu.run(Step::Launch(launch), StreamId(0), 0).expect_err("no kernel");
        assert!(error.to_string().contains("the kernel `wrong` does not compile for sm_"), "{error}");
    }
}

/// A kernel cannot be launched without compiling it, so the work consists of fills.
#[test]
fn captured_work_is_launched_as_one_and_other_threads_are_not_captured() {
    if is_inner("captured_work_is_launched_as_one_and_other_threads_are_not_captured", &[]) {
        let gpu = gpu();
        let on = StreamId(3);
        let mut memory = CudaMemory::new(gpu.clone());
        let at = memory.segment_alloc(2 << 20).expect("2 MiB");
        let clear = || Step::Clear { address: at.0, bytes: 512 };
        gpu.begin_capture(on).expect("a capture");
        assert!(gpu.is_capturing() && memory.is_capturing());
        assert_eq!(gpu.last_node(), Ok(None));
        gpu.run(clear(), on, 0).expect("a fill");
        let node = gpu.last_node().expect("no error");
        assert!(node.is_some());
        // During a capture, memory can be allocated, and another thread's work runs: its stream can be waited for.
        let more = memory.segment_alloc(2 << 20).expect("2 MiB more");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!gpu.is_capturing());
                gpu.run(clear(), on, 0).expect("a fill");
                let event = gpu.record(on).expect("an event");
                gpu.wait(event).expect("done");
            });
        });
        assert_eq!(gpu.last_node(), Ok(node));
        let graph = gpu.end_capture().expect("a graph");
        assert!(!gpu.is_capturing());
        (0..3).for_each(|_| graph.launch().expect("a launch"));
        drop(graph);
        gpu.begin_capture(on).expect("a second capture");
        gpu.abandon_capture();
        gpu.run(clear(), on, 0).expect("a fill");
        gpu.wait_all().expect("done");
        memory.segment_free(more).expect("freed");
    }
}

#[test]
fn without_a_driver_the_error_says_what_to_install_and_where_it_was_looked_for() {
    let nowhere = Search { cuda_home: Some("/nowhere".into()), ..Search::default() };
    let Err(error) = Gpu::open(0, nowhere, 0) else { return };
    let text = error.to_string();
    if matches!(error, CudaError::Missing { .. }) {
        assert!(text.starts_with("NVIDIA's driver is missing: install the driver"), "{text}");
        assert!(text.contains("libcuda.so.1 in the loader's path"), "{text}");
    }
}

#[test]
fn a_device_older_than_the_kernels_is_refused_with_what_it_is() {
    if is_inner(
        "a_device_older_than_the_kernels_is_refused_with_what_it_is",
        &[("PLIMSOLL_STANDIN_GPU", "P100")],
    ) {
        let error = Gpu::open(0, Search::from_env(), 0).err().expect("too old").to_string();
        assert!(error.ends_with("has compute capability 6.0, but kernels need 7.5 (Turing) or newer: use another GPU, or the CPU"), "{error}");
    }
}

#[needs(nvrtc)]
#[test]
fn a_compiler_older_than_the_device_is_named_with_what_to_install() {
    let search = Search { environment: environment_of_python(), ..Search::from_env() };
    let error = compile(&search, "test", "", "sm_990").expect_err("no such architecture").to_string();
    assert!(error.starts_with("NVRTC (") && error.contains("cannot compile for sm_990"), "{error}");
    assert!(error.contains("`pip install --upgrade nvidia-cuda-nvrtc"), "{error}");
}
