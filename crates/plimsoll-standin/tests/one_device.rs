//! One device of 64 MiB: memory, streams, captures, copies, pointers, calls by name.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::c;
use crate::library;
use crate::library::error;
use crate::test_name;

const PAGE: usize = 2 << 20;
const PAGES: usize = 32;

fn opened(test: &str) -> bool {
    library::opened(test, &[("PLIMSOLL_STANDIN_GPU", "T4"), ("PLIMSOLL_STANDIN_MEMORY", "67108864")])
}

fn malloc(bytes: usize) -> Result<u64, i32> {
    let mut address = 0;
    match c!(cudaMalloc(&mut address => *mut u64, bytes => usize)) {
        0 => Ok(address),
        code => Err(code),
    }
}

fn free(address: u64) -> i32 {
    c!(cudaFree(address => u64))
}

/// The device's free bytes.
fn left() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(c!(cudaMemGetInfo(&mut free => *mut usize, &mut total => *mut usize)), 0);
    assert_eq!(total, PAGES * PAGE);
    free
}

fn stream() -> u64 {
    let mut stream = 0;
    assert_eq!(c!(cudaStreamCreateWithFlags(&mut stream => *mut u64, 1 => u32)), 0);
    stream
}

fn launch(stream: u64) {
    let one = [1_u32; 3];
    let (kernel, arguments) = (null_mut(), null_mut());
    let code = c!(cudaLaunchKernel(
        kernel => *mut c_void, one => [u32; 3], one => [u32; 3], arguments => *mut c_void, 0 => usize, stream => u64
    ));
    assert_eq!(code, 0);
}

#[test]
fn the_device_is_given_out_by_the_page_to_the_last_one() {
    if !opened(test_name!()) {
        return;
    }
    let held: Vec<u64> = (0..PAGES).map(|_| malloc(PAGE - 5).unwrap()).collect();
    assert_eq!((left(), malloc(1)), (0, Err(error::OUT_OF_MEMORY)));
    assert_eq!((c!(cudaPeekAtLastError()), c!(cudaGetLastError()), c!(cudaGetLastError())), (2, 2, 0));
    let mut sorted = held.clone();
    sorted.sort_unstable();
    assert!(sorted.windows(2).all(|pair| pair[0] + PAGE as u64 <= pair[1]), "none overlaps another");
    assert!(held.iter().all(|address| free(*address) == 0));
    assert_eq!((left(), free(held[0]), free(0)), (PAGES * PAGE, error::INVALID_VALUE, 0));
    c!(cudaGetLastError());
}

/// As measured on an H200 with the driver's functions.
#[test]
fn managed_memory_leaves_the_device_to_what_cannot_move() {
    if !opened(test_name!()) {
        return;
    }
    let managed = |pages: usize| {
        let (mut address, flags) = (0, 1);
        assert_eq!(c!(cudaMallocManaged(&mut address => *mut u64, pages * PAGE => usize, flags => u32)), 0);
        address
    };
    let first = managed(20);
    assert_eq!(left(), 12 * PAGE);
    let held = malloc(22 * PAGE).expect("ten of the pages move to the host");
    assert_eq!(left(), 0);
    let second = managed(30);
    assert_eq!((left(), malloc(15 * PAGE)), (0, Err(error::OUT_OF_MEMORY)));
    c!(cudaGetLastError());
    assert_eq!((free(held), left()), (0, 22 * PAGE));
    assert_eq!((free(first), left()), (0, 22 * PAGE), "the first ones to go are those on the host");
    assert_eq!((free(second), left()), (0, PAGES * PAGE));
}

#[test]
fn an_address_is_never_handed_out_twice() {
    if !opened(test_name!()) {
        return;
    }
    let first = malloc(PAGE).unwrap();
    free(first);
    let second = malloc(PAGE).unwrap();
    assert!(second > first);
    free(second);
}

#[test]
fn physical_memory_counts_until_it_is_released_and_unmapped() {
    if !opened(test_name!()) {
        return;
    }
    // Pinned, on device 0: kind, handle types, location. The other fields are ignored.
    let properties = [1, 0, 1, 0, 0, 0, 0, 0];
    let (mut address, mut handle) = (0_u64, 0_u64);
    let size = 2 * PAGE;
    assert_eq!(
        c!(cuMemAddressReserve(&mut address => *mut u64, 8 * PAGE => usize, 0 => usize, 0 => u64, 0 => u64)),
        0
    );
    let create = |handle: &mut u64, bytes: usize| {
        let properties = properties.as_ptr();
        c!(cuMemCreate(handle => *mut u64, bytes => usize, properties => *const i32, 0 => u64))
    };
    let map = |at: u64, bytes: usize, handle: u64| {
        let (offset, flags) = (0, 0);
        c!(cuMemMap(at => u64, bytes => usize, offset => usize, handle => u64, flags => u64))
    };
    assert_eq!(left(), PAGES * PAGE, "addresses are no memory");
    assert_eq!(create(&mut handle, size), 0);
    assert_eq!(map(address + PAGE as u64, size, handle), 0);
    assert_eq!(map(address, size, handle), error::INVALID_VALUE, "it would overlap");
    assert_eq!(map(address + 7 * PAGE as u64, size, handle), error::INVALID_VALUE, "beyond the reservation");
    assert_eq!(c!(cuMemRelease(handle => u64)), 0);
    assert_eq!(left(), PAGES * PAGE - size, "mapped still");
    assert_eq!(c!(cuMemAddressFree(address => u64, 8 * PAGE => usize)), error::INVALID_VALUE);
    assert_eq!(c!(cuMemUnmap(address + PAGE as u64 => u64, size => usize)), 0);
    assert_eq!((left(), c!(cuMemRelease(handle => u64))), (PAGES * PAGE, error::INVALID_HANDLE));
    assert_eq!(c!(cuMemAddressFree(address => u64, 8 * PAGE => usize)), 0);
    assert_eq!(create(&mut handle, PAGES * PAGE + PAGE), error::OUT_OF_MEMORY);
    assert_eq!(create(&mut handle, PAGE + 1), error::INVALID_VALUE, "not of whole pages");
}

#[test]
fn work_on_a_stream_has_finished_when_the_call_returns() {
    if !opened(test_name!()) {
        return;
    }
    let (stream, mut event) = (stream(), 0_u64);
    assert_eq!(c!(cudaEventCreateWithFlags(&mut event => *mut u64, 2 => u32)), 0);
    assert_eq!(c!(cudaEventRecord(event => u64, stream => u64)), 0);
    assert_eq!((c!(cudaEventQuery(event => u64)), c!(cudaStreamSynchronize(stream => u64))), (0, 0));
    assert_eq!((c!(cudaStreamDestroy(stream => u64)), c!(cudaEventDestroy(event => u64))), (0, 0));
    assert_eq!(c!(cudaStreamQuery(stream => u64)), error::INVALID_HANDLE);
    assert_eq!(c!(cudaEventQuery(event => u64)), error::INVALID_HANDLE);
    assert_eq!(c!(cudaStreamQuery(0 => u64)), 0, "the default stream");
    c!(cudaGetLastError());
}

#[test]
fn a_capture_counts_what_is_launched_on_its_stream() {
    if !opened(test_name!()) {
        return;
    }
    let (captured, other) = (stream(), stream());
    let (mut status, mut number, mut graph, mut nodes) = (9, 0_u64, 0_u64, 0_usize);
    assert_eq!(c!(cudaStreamBeginCapture(captured => u64, 0 => i32)), 0);
    launch(captured);
    launch(captured);
    launch(other);
    assert_eq!(c!(cudaStreamIsCapturing(captured => u64, &mut status => *mut i32)), 0);
    assert_eq!((status, c!(cudaStreamSynchronize(captured => u64))), (1, error::CAPTURE_UNSUPPORTED));
    let none = null_mut();
    c!(cudaStreamGetCaptureInfo_v2(
        captured => u64, &mut status => *mut i32, &mut number => *mut u64, none => *mut u64, none => *mut u64,
        none => *mut u64
    ));
    assert_eq!((status, number), (1, 1));
    assert_eq!(c!(cudaStreamEndCapture(captured => u64, &mut graph => *mut u64)), 0);
    assert_eq!(c!(cudaGraphGetNodes(graph => u64, none => *mut u64, &mut nodes => *mut usize)), 0);
    assert_eq!(nodes, 2);
    c!(cudaStreamIsCapturing(captured => u64, &mut status => *mut i32));
    assert_eq!(status, 0);
    c!(cudaGetLastError());
}

#[test]
fn the_host_gets_back_what_it_sent_until_a_kernel_runs() {
    if !opened(test_name!()) {
        return;
    }
    let (to_device, to_host) = (1, 2);
    let device = malloc(100).unwrap();
    let sent = *b"sent";
    let mut back = [7_u8; 4];
    c!(cudaMemcpy(device => u64, sent.as_ptr() => *const u8, 4 => usize, to_device => i32));
    c!(cudaMemcpy(back.as_mut_ptr() => *mut u8, device => u64, 4 => usize, to_host => i32));
    assert_eq!(back, sent);
    launch(0);
    c!(cudaMemcpy(back.as_mut_ptr() => *mut u8, device => u64, 4 => usize, to_host => i32));
    assert_eq!(back, [0; 4]);
    free(device);
}

#[test]
fn pointers_to_host_and_device_are_distinguished() {
    if !opened(test_name!()) {
        return;
    }
    let device = malloc(100).unwrap();
    let (mut pinned, pageable) = (0_u64, 5_u8);
    assert_eq!(c!(cudaHostAlloc(&mut pinned => *mut u64, 100 => usize, 0 => u32)), 0);
    let kind = |address: u64| {
        let mut attributes = [9_i32; 6];
        assert_eq!(c!(cudaPointerGetAttributes(attributes.as_mut_ptr() => *mut i32, address => u64)), 0);
        attributes[0]
    };
    let pageable = (&raw const pageable).addr() as u64;
    assert_eq!([kind(pageable), kind(pinned + 99), kind(device + 99)], [0, 1, 2]);
    assert_eq!((c!(cudaFreeHost(pinned => u64)), free(device)), (0, 0));
}

/// KiB of this process's own memory that are in use.
fn used_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the line");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn a_large_copy_to_pinned_memory_writes_zeros_and_takes_no_memory() {
    if !opened(test_name!()) {
        return;
    }
    let (bytes, mut pinned) = (32 << 20, 0_u64);
    let device = malloc(bytes).unwrap();
    assert_eq!(c!(cudaHostAlloc(&mut pinned => *mut u64, bytes => usize, 0 => u32)), 0);
    let ends: [*mut u8; 2] = [100, bytes - 101].map(|at| (pinned as *mut u8).wrapping_add(at));
    // SAFETY: both are within the range that was just allocated.
    unsafe { ends.iter().for_each(|end| end.write(7)) };
    let before = used_kib();
    let (first, length) = (pinned + 99, bytes - 198);
    assert_eq!(c!(cudaMemcpy(first => u64, device => u64, length => usize, 2 => i32)), 0);
    assert!(used_kib() < before + (8 << 10), "{} KiB, before it {before} KiB", used_kib());
    // SAFETY: as above.
    assert!(unsafe { ends.iter().all(|end| end.read() == 0) });
    assert_eq!((c!(cudaFreeHost(pinned => u64)), free(device)), (0, 0));
}

#[test]
fn a_pool_reports_its_use() {
    if !opened(test_name!()) {
        return;
    }
    let (mut pool, mut address) = (0_u64, 0_u64);
    c!(cudaDeviceGetDefaultMemPool(&mut pool => *mut u64, 0 => i32));
    assert_eq!(c!(cudaMallocAsync(&mut address => *mut u64, 3 * PAGE => usize, 0 => u64)), 0);
    assert_eq!(c!(cudaFreeAsync(address => u64, 0 => u64)), 0);
    let used = |attribute: i32| {
        let mut bytes = 9_u64;
        assert_eq!(c!(cudaMemPoolGetAttribute(pool => u64, attribute => i32, &mut bytes => *mut u64)), 0);
        bytes
    };
    assert_eq!((used(7), used(8)), (0, 3 * PAGE as u64));
}

#[test]
fn driver_functions_are_found_by_name_and_unsupported_ones_fail_when_called() {
    if !opened(test_name!()) {
        return;
    }
    let (mut found, mut other) = (null_mut::<c_void>(), null_mut::<c_void>());
    let find = |name: &std::ffi::CStr, address: &mut *mut c_void| {
        let none = null_mut();
        c!(cudaGetDriverEntryPoint(
            name.as_ptr() => *const std::ffi::c_char, address => *mut *mut c_void, 0 => u64, none => *mut i32
        ))
    };
    assert_eq!((find(c"cuMemGetInfo", &mut found), find(c"cuMadeUp", &mut other)), (0, 0));
    assert_eq!(found, library::symbol("cuMemGetInfo_v2"));
    assert_eq!(c!(@ other, ), error::NOT_SUPPORTED);
}

#[test]
fn each_library_fails_with_its_own_status_code() {
    if !opened(test_name!()) {
        return;
    }
    assert_eq!(c!(cudaGraphAddNode()), error::NOT_SUPPORTED);
    assert_eq!(
        [c!(cublasLtMatmulAlgoCheck()), c!(cudnnGetFilterNdDescriptor()), c!(ncclCommGrow())],
        [15, 3000, 5]
    );
    c!(cudaGetLastError());
}

#[test]
fn a_communicator_answers_at_once() {
    if !opened(test_name!()) {
        return;
    }
    let (mut comm, mut ranks, id) = (0_u64, 0, [0_u8; 128]);
    let config = null_mut::<c_void>();
    let join = |comm: &mut u64, rank: i32| {
        let ranks = 4;
        c!(ncclCommInitRankConfig(
            comm => *mut u64, ranks => i32, id => [u8; 128], rank => i32, config => *mut c_void
        ))
    };
    let invalid_argument = 4;
    assert_eq!((join(&mut comm, 4), join(&mut comm, 3)), (invalid_argument, 0));
    assert_eq!(c!(ncclCommCount(comm => u64, &mut ranks => *mut i32)), 0);
    assert_eq!((ranks, c!(ncclCommDestroy(comm => u64))), (4, 0));
}

#[test]
fn a_factorization_reports_no_workspace() {
    if !opened(test_name!()) {
        return;
    }
    let (mut handle, mut elements, mut bytes) = (0_u64, 9_i32, [9_usize; 2]);
    assert_eq!(c!(cusolverDnCreate(&mut handle => *mut u64)), 0);
    let code = c!(cusolverDnSgeqrf_bufferSize(
        handle => u64, 8 => i32, 8 => i32, 0 => u64, 8 => i32, &mut elements => *mut i32
    ));
    assert_eq!((code, elements), (0, 0));
    let [device, host] = &mut bytes;
    let code = c!(cusolverDnXpotrf_bufferSize(
        handle => u64, 0 => u64, 0 => i32, 8 => i64, 0 => i32, 0 => u64, 8 => i64, 0 => i32,
        device => *mut usize, host => *mut usize
    ));
    assert_eq!((code, bytes), (0, [0, 0]));
}
