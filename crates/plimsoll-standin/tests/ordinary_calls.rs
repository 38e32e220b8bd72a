//! Calls that ordinary programs make in addition to PyTorch's allocator: memory shared between processes, the state of
//! a device, parts of a device, profilers, and a CUDA runtime that is linked into a library.

use std::ffi::{CStr, c_char};

use crate::c;
use crate::library;
use crate::library::error;
use crate::test_name;

fn opened(test: &str) -> bool {
    library::opened(test, &[("PLIMSOLL_STANDIN_GPU", "H100")])
}

/// `cudaIpcMemHandle_t`, by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Handle([u64; 8]);

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(c!(cudaMemGetInfo(&mut free => *mut usize, &mut total => *mut usize)), 0);
    free
}

#[test]
fn memory_that_another_process_shares_takes_addresses_and_no_bytes() {
    if !opened(test_name!()) {
        return;
    }
    let (mut address, mut opened, mut handle) = (0_u64, 0_u64, Handle([0; 8]));
    assert_eq!(c!(cudaMalloc(&mut address => *mut u64, 4 << 20 => usize)), 0);
    assert_eq!(c!(cudaIpcGetMemHandle(&mut handle => *mut Handle, address + 512 => u64)), 0);
    let before = free_bytes();
    assert_eq!(c!(cudaIpcOpenMemHandle(&mut opened => *mut u64, handle => Handle, 1 => u32)), 0);
    assert!(opened != 0 && opened != address);
    assert_eq!(free_bytes(), before);
    assert_eq!(c!(cudaIpcCloseMemHandle(opened => u64)), 0);
    assert_eq!(c!(cudaIpcCloseMemHandle(opened => u64)), error::INVALID_VALUE);
    let code = c!(cudaIpcOpenMemHandle(&mut opened => *mut u64, Handle([7; 8]) => Handle, 1 => u32));
    assert_eq!(code, error::INVALID_HANDLE);
    assert_eq!(c!(cudaIpcGetMemHandle(&mut handle => *mut Handle, 16 => u64)), error::INVALID_VALUE);
    assert_eq!(c!(cudaFree(address => u64)), 0);
}

#[test]
fn a_device_says_that_it_is_idle() {
    if !opened(test_name!()) {
        return;
    }
    let (device, mut rates, mut number) = (1_u64, [9_u32; 2], 0_u32);
    assert_eq!(c!(nvmlDeviceGetUtilizationRates(device => u64, &mut rates => *mut [u32; 2])), 0);
    assert_eq!(rates, [0, 0]);
    for (kind, mhz) in [(0, 1980), (1, 1980), (2, 2619)] {
        assert_eq!(c!(nvmlDeviceGetClockInfo(device => u64, kind => i32, &mut number => *mut u32)), 0);
        assert_eq!(number, mhz, "{kind}");
    }
    assert_eq!(c!(nvmlDeviceGetEnforcedPowerLimit(device => u64, &mut number => *mut u32)), 0);
    assert_eq!(number, 700_000);
    assert_ne!(c!(nvmlDeviceGetClockInfo(device => u64, 9 => i32, &mut number => *mut u32)), 0);
    assert_ne!(c!(nvmlDeviceGetPowerUsage(2 => u64, &mut number => *mut u32)), 0);
}

#[test]
fn a_devices_multiprocessors_are_split_into_groups_that_fit() {
    if !opened(test_name!()) {
        return;
    }
    // `CUdevResource`: its type, 92 bytes, the number of multiprocessors.
    let count = |resource: &[u32; 36]| (resource[0], resource[24]);
    let (mut whole, mut groups, mut rest, mut fit) = ([0_u32; 36], [[0_u32; 36]; 2], [0_u32; 36], 2_u32);
    assert_eq!(c!(cuDeviceGetDevResource(0 => i32, &mut whole => *mut [u32; 36], 1 => i32)), 0);
    assert_eq!(count(&whole), (1, 132));
    let code = c!(cuDevSmResourceSplitByCount(
        &mut groups => *mut [[u32; 36]; 2], &mut fit => *mut u32, &mut whole => *mut [u32; 36],
        &mut rest => *mut [u32; 36], 0 => u32, 50 => u32
    ));
    assert_eq!((code, fit), (0, 2));
    assert_eq!(groups.each_ref().map(count), [(1, 56), (1, 56)]);
    assert_eq!(count(&rest), (1, 20));
}

#[test]
fn a_profiler_starts_and_records_nothing() {
    if !opened(test_name!()) {
        return;
    }
    let (mut text, mut subscriber) = (std::ptr::null::<c_char>(), 0_u64);
    assert_eq!(c!(cuptiGetResultString(1 => i32, &mut text => *mut *const c_char)), 0);
    // SAFETY: the library returned a zero-terminated text.
    assert!(!unsafe { CStr::from_ptr(text) }.is_empty());
    assert_eq!(c!(cuptiSubscribe(&mut subscriber => *mut u64, 0 => u64, 0 => u64)), 0);
    assert_ne!(subscriber, 0);
    assert_eq!(c!(cuptiActivityEnable(3 => i32)), 0);
    let no_more_records = 12;
    assert_eq!(c!(cuptiActivityGetNextRecord(0 => u64, 0 => usize, 0 => u64)), no_more_records);
}

#[test]
fn tables_of_the_driver_are_refused() {
    if !opened(test_name!()) {
        return;
    }
    let (mut table, id) = (7_u64, [0_u8; 16]);
    let code = c!(cuGetExportTable(&mut table => *mut u64, &id => *const [u8; 16]));
    assert_eq!((code, table), (error::NOT_SUPPORTED, 0));
}

#[test]
fn the_most_that_a_process_had_is_kept() {
    if !opened(test_name!()) {
        return;
    }
    let mut address = 0_u64;
    assert_eq!(c!(cudaMalloc(&mut address => *mut u64, 64 << 20 => usize)), 0);
    assert_eq!(c!(cudaFree(address => u64)), 0);
    let most = library::symbol("plimsoll_standin_most_bytes");
    // SAFETY: the function has this signature.
    let most: extern "C" fn(i32) -> u64 = unsafe { std::mem::transmute(most) };
    assert!(most(0) >= 64 << 20 && most(9) == 0);
}
