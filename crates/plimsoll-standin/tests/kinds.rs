//! Other kinds of GPU: one next to other programs, a MIG slice, one that shares the host's memory, and one that the
//! user describes.

use std::ffi::c_void;

use crate::c;
use crate::library;
use crate::test_name;

const GIB: u64 = 1 << 30;

/// Free and total bytes as CUDA reports them.
fn memory() -> (u64, u64) {
    let (mut free, mut total) = (0_u64, 0_u64);
    assert_eq!(c!(cudaMemGetInfo(&mut free => *mut u64, &mut total => *mut u64)), 0);
    (free, total)
}

/// Version, total, reserved, free and used bytes as NVML reports them, or its error.
fn nvml() -> Result<[u64; 5], i32> {
    let (mut device, mut info) = (0_u64, [2_u64, 0, 0, 0, 0]);
    assert_eq!(c!(nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut u64)), 0);
    match c!(nvmlDeviceGetMemoryInfo_v2(device => u64, info.as_mut_ptr() => *mut u64)) {
        0 => Ok(info),
        code => Err(code),
    }
}

fn attribute(number: i32) -> i32 {
    let mut value = -1;
    assert_eq!(c!(cudaDeviceGetAttribute(&mut value => *mut i32, number => i32, 0 => i32)), 0);
    value
}

fn malloc(bytes: u64) -> i32 {
    let mut address = 0_u64;
    c!(cudaMalloc(&mut address => *mut u64, bytes => u64))
}

#[test]
fn what_other_programs_use_is_not_free_anywhere() {
    let variables = [
        ("PLIMSOLL_STANDIN_GPU", "H100"),
        ("PLIMSOLL_STANDIN_CONTEXT", "laws"),
        ("PLIMSOLL_STANDIN_OTHERS", "8589934592"),
    ];
    if !library::opened(test_name!(), &variables) {
        return;
    }
    let (free, total) = memory();
    assert_eq!((total, total - free), (85_017_493_504, 8 * GIB + 552_402_944));
    let [_, all, reserved, left, used] = nvml().unwrap();
    assert_eq!((all, reserved, left, used), (85_520_809_984, 503_316_480, free, total - free));
    let page = 2 << 20;
    assert_eq!((malloc(free / page * page), malloc(page)), (0, library::error::OUT_OF_MEMORY));
    assert_eq!(memory().0, free % page);
}

#[test]
fn a_slice_has_its_memory_multiprocessors_and_context() {
    let variables = [("PLIMSOLL_STANDIN_GPU", "H100:3g.40gb"), ("PLIMSOLL_STANDIN_CONTEXT", "laws")];
    if !library::opened(test_name!(), &variables) {
        return;
    }
    let (free, total) = memory();
    assert_eq!((total, total - free), (40_448 << 20, 60 * 2048 * 2048));
    assert_eq!((attribute(16), attribute(75), attribute(18)), (60, 9, 0));
    let mut name = [0_u8; 64];
    assert_eq!(c!(cuDeviceGetName(name.as_mut_ptr() => *mut u8, 64 => i32, 0 => i32)), 0);
    assert!(name.starts_with(b"NVIDIA H100 80GB HBM3 MIG 3g.40gb\0"));
}

#[test]
fn a_gb10_shares_the_hosts_memory_and_nvml_has_none_to_report() {
    let variables = [("PLIMSOLL_STANDIN_GPU", "GB10"), ("PLIMSOLL_STANDIN_CONTEXT", "laws")];
    if !library::opened(test_name!(), &variables) {
        return;
    }
    let (free, total) = memory();
    assert_eq!((total, total - free), (130_663_006_208, 48 * 1536 * 2048));
    // Integrated; accesses pageable memory, through the host's page tables.
    assert_eq!((attribute(18), attribute(88), attribute(100)), (1, 1, 1));
    assert_eq!((attribute(75), attribute(76)), (12, 1));
    let not_supported = 3;
    assert_eq!(nvml(), Err(not_supported));
}

#[test]
fn a_gh200_has_memory_of_its_own_and_reaches_the_hosts() {
    if !library::opened(test_name!(), &[("PLIMSOLL_STANDIN_GPU", "GH200")]) {
        return;
    }
    assert_eq!((attribute(18), attribute(88), attribute(100)), (0, 1, 1));
    assert!(nvml().is_ok_and(|[_, all, ..]| all == 101_876_624_261));
}

#[test]
fn a_described_gpu_is_as_described() {
    let text = "custom:memory=15GiB,cc=12.0,sms=70,threads=1536,context=300MiB";
    if !library::opened(test_name!(), &[("PLIMSOLL_STANDIN_GPU", text), ("PLIMSOLL_STANDIN_CONTEXT", "laws")])
    {
        return;
    }
    let (free, total) = memory();
    assert_eq!((total, total - free), (15 * GIB, 300 << 20));
    assert_eq!((attribute(16), attribute(39), attribute(75)), (70, 1536, 12));
}

#[test]
fn the_stack_of_a_kernel_in_ptx_is_charged_at_its_launch() {
    let variables = [("PLIMSOLL_STANDIN_GPU", "H100"), ("PLIMSOLL_STANDIN_CONTEXT", "laws")];
    if !library::opened(test_name!(), &variables) {
        return;
    }
    let ptx = concat!(include_str!("cubin/spills.ptx"), "\0");
    let (mut module, mut kernel) = (0_u64, 0_u64);
    assert_eq!(c!(cuModuleLoadData(&mut module => *mut u64, ptx.as_ptr() => *const u8)), 0);
    let name = c"spills".as_ptr();
    assert_eq!(c!(cuModuleGetFunction(&mut kernel => *mut u64, module => u64, name => *const i8)), 0);
    let before = memory().0;
    let (one, none) = (1_u32, std::ptr::null_mut::<c_void>());
    let code = c!(cuLaunchKernel(
        kernel => u64, one => u32, one => u32, one => u32, one => u32, one => u32, one => u32, 0 => u32, 0 => u64,
        none => *mut c_void, none => *mut c_void
    ));
    assert_eq!((code, before - memory().0), (0, 830_472_192));
}
