//! Compares, call by call, the memory that a process uses outside its requests with the memory that it used on two
//! H100s (`plimsoll_gpu::outside`).

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;

use crate::c;
use crate::library;
use crate::library::error;
use crate::test_name;

const TOTAL: i64 = 85_017_493_504;
const MIB: i64 = 1 << 20;

fn opened(test: &str, memory: &str) -> bool {
    let variables = [
        ("PLIMSOLL_STANDIN_GPU", "H100"),
        ("PLIMSOLL_STANDIN_DEVICES", "2"),
        ("PLIMSOLL_STANDIN_CONTEXT", "laws"),
        ("PLIMSOLL_STANDIN_MEMORY", memory),
        ("CUDA_MODULE_LOADING", ""),
    ];
    library::opened(test, &variables)
}

/// The bytes of the device that are not free.
fn taken() -> i64 {
    let (mut free, mut total) = (0_usize, 0_usize);
    assert_eq!(c!(cudaMemGetInfo(&mut free => *mut usize, &mut total => *mut usize)), 0);
    total as i64 - free as i64
}

/// The bytes that a call uses.
fn grows(call: impl FnOnce()) -> i64 {
    let before = taken();
    call();
    taken() - before
}

fn launch() -> i32 {
    let one = [1_u32; 3];
    c!(cudaLaunchKernel(
        null_mut() => *mut c_void, one => [u32; 3], one => [u32; 3], null_mut() => *mut c_void, 0 => usize, 0 => u64
    ))
}

fn join(ranks: i32) -> Result<u64, i32> {
    let mut comm = 0_u64;
    let code = c!(ncclCommInitRankConfig(
        &mut comm => *mut u64, ranks => i32, [0; 128] => [u8; 128], 0 => i32, null_mut() => *mut c_void
    ));
    if code == 0 { Ok(comm) } else { Err(code) }
}

fn all_reduce(comm: u64) -> i32 {
    c!(ncclAllReduce(0 => u64, 0 => u64, 0 => usize, 7 => i32, 0 => i32, comm => u64, 0 => u64))
}

fn send(comm: u64) -> i32 {
    c!(ncclSend(0 => u64, 0 => usize, 7 => i32, 1 => i32, comm => u64, 0 => u64))
}

fn receive(comm: u64) -> i32 {
    c!(ncclRecv(0 => u64, 0 => usize, 7 => i32, 1 => i32, comm => u64, 0 => u64))
}

/// The lines of device 0's ledger.
fn lines() -> Vec<String> {
    let mut text = vec![0_i8; 1 << 14];
    let length =
        c!(plimsoll_standin_outside(0 => i32, text.as_mut_ptr() => *mut c_char, text.len() => usize));
    let text: Vec<u8> = text[..length as usize].iter().map(|byte| *byte as u8).collect();
    String::from_utf8(text).expect("UTF-8").lines().map(str::to_owned).collect()
}

#[test]
fn each_step_of_the_measured_run_takes_what_it_took() {
    if !opened(test_name!(), "") {
        return;
    }
    let mut handle = 0_u64;
    assert_eq!(taken(), 552_402_944, "the context");
    assert_eq!(grows(|| assert_eq!(launch(), 0)), 96_468_992, "the first kernel");
    assert_eq!(grows(|| assert_eq!(launch(), 0)), 0, "the second");
    for (symbol, bytes, again) in [
        ("cublasCreate_v2", 71_303_168, 67_108_864),
        ("cublasLtCreate", 0, 0),
        ("cudnnCreate", 16_777_216, 0),
        ("cufftCreate", 8_388_608, 0),
        ("cusolverDnCreate", 100_663_296, 0),
        ("cusparseCreate", 2_097_152, 0),
    ] {
        let mut create = || c!(@ library::symbol(symbol), &mut handle => *mut u64);
        assert_eq!(grows(|| assert_eq!(create(), 0)), bytes, "{symbol}");
        assert_eq!(grows(|| assert_eq!(create(), 0)), again, "{symbol} again");
    }
    // A later handle of cuBLAS reuses the memory of a destroyed one.
    let mut again = || {
        assert_eq!(c!(cublasCreate_v2(&mut handle => *mut u64)), 0);
        c!(cublasDestroy_v2(handle => u64))
    };
    assert_eq!(grows(|| assert_eq!(again(), 0)), 67_108_864);
    assert_eq!(grows(|| assert_eq!(again(), 0)), 0);
    // PyTorch creates its streams with its first process group.
    let streams = || {
        for _ in 0..128 {
            let mut stream = 0_u64;
            let code = c!(cudaStreamCreateWithPriority(&mut stream => *mut u64, 1 => u32, 0 => i32));
            assert_eq!(code, 0);
        }
    };
    let first = grows(|| {
        streams();
        assert_eq!(all_reduce(join(2).unwrap()), 0);
    });
    assert_eq!(first, 889_192_448, "the first all-reduce");
    let comm = join(2).unwrap();
    let broadcast =
        || c!(ncclBroadcast(0 => u64, 0 => u64, 0 => usize, 7 => i32, 0 => i32, comm => u64, 0 => u64));
    assert_eq!(all_reduce(comm), 0);
    assert_eq!(grows(|| assert_eq!(broadcast(), 0)), 4_194_304, "local memory of broadcasts");
    let all_to_all = grows(|| assert_eq!((send(comm), receive(comm)), (0, 0)));
    assert_eq!(all_to_all, 463_470_592, "an all-to-all, and its local memory");
    assert_eq!(grows(|| assert_eq!(all_reduce(join(2).unwrap()), 0)), 507_510_784, "a further group");
    let one = join(1).unwrap();
    assert_eq!(c!(ncclCommDestroy(one => u64)), 0);
    assert_eq!(grows(|| assert_eq!(all_reduce(join(1).unwrap()), 0)), 406_847_488, "a group of one rank");
    let (mut bytes, total) = (0_u64, 3);
    assert_eq!(c!(ncclCommMemStats(comm => u64, total => i32, &mut bytes => *mut u64)), 0);
    assert_eq!(bytes, 507_510_784 + 402_653_184);
    assert_eq!(grows(|| assert_eq!(c!(ncclCommDestroy(comm => u64)), 0)), -(bytes as i64));
    let lines = lines();
    assert_eq!(lines[..2], ["requested\t0", "row\tcontext\t\t552402944\tmeasured\tcudaMemGetInfo"]);
    let ring = "row\tNCCL communicator 1, 2 ranks\tring\t301989888\tmeasured\tncclAllReduce";
    assert!(lines.iter().any(|line| line == ring), "{lines:?}");
}

#[test]
fn local_memory_grows_to_the_stack_of_a_compiled_kernel() {
    if !opened(test_name!(), "") {
        return;
    }
    let cubin = include_bytes!("cubin/spills.cubin");
    let (mut module, mut kernel, mut local) = (0_u64, 0_u64, 0);
    assert_eq!(c!(cuModuleLoadData(&mut module => *mut u64, cubin.as_ptr() => *const u8)), 0);
    for (name, stack, bytes) in [(c"plain", 0, 0), (c"spills", 4096, 830_472_192), (c"spills", 4096, 0)] {
        let found =
            c!(cuModuleGetFunction(&mut kernel => *mut u64, module => u64, name.as_ptr() => *const c_char));
        assert_eq!(found, 0);
        assert_eq!(c!(cuFuncGetAttribute(&mut local => *mut i32, 3 => i32, kernel => u64)), 0);
        assert_eq!(local, stack);
        let launch = || {
            c!(cuLaunchKernel(
                kernel => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => u64
            ))
        };
        assert_eq!(grows(|| assert_eq!(launch(), 0)), bytes, "{name:?}");
    }
}

#[test]
fn nvml_counts_the_drivers_reserve_and_cuda_does_not() {
    if !opened(test_name!(), "") {
        return;
    }
    let (mut device, mut info, mut second) = (0_u64, [0_u64; 3], [0_u64; 5]);
    assert_eq!(c!(nvmlDeviceGetHandleByIndex_v2(0 => u32, &mut device => *mut u64)), 0);
    assert_eq!(c!(nvmlDeviceGetMemoryInfo(device => u64, &mut info => *mut [u64; 3])), 0);
    assert_eq!(info, [85_520_809_984, TOTAL as u64, 503_316_480], "a question makes no context");
    assert_eq!(taken(), 552_402_944);
    assert_eq!(c!(nvmlDeviceGetMemoryInfo_v2(device => u64, &mut second => *mut [u64; 5])), 0);
    assert_eq!(second[1..3], [85_520_809_984, 503_316_480]);
    assert_eq!(second[2] + second[3] + second[4], second[1]);
}

#[test]
fn a_thousand_small_requests_share_a_page() {
    if !opened(test_name!(), "") {
        return;
    }
    taken();
    let malloc = |bytes: usize| {
        let mut address = 0_u64;
        assert_eq!(c!(cudaMalloc(&mut address => *mut u64, bytes => usize)), 0);
        address
    };
    let mut small = Vec::new();
    assert_eq!(grows(|| small.extend((0..1001).map(|_| malloc(1024)))), 2 * MIB);
    assert_eq!(grows(|| assert!(malloc((1 << 20) + 1) > 0)), 2 * MIB);
    let freed = grows(|| small.iter().for_each(|address| assert_eq!(c!(cudaFree(*address => u64)), 0)));
    assert_eq!(freed, -2 * MIB);
}

#[test]
fn what_does_not_fit_fails_as_cuda_and_nccl_do_and_is_named() {
    // Memory for the context, PyTorch's kernels, NCCL's library and a base, but not for a ring.
    let memory = (553 + 97 + 112 + 206 + 3 + 100) * 1_000_000_u64;
    if !opened(test_name!(), &memory.to_string()) {
        return;
    }
    assert_eq!(launch(), 0);
    let comm = join(2).unwrap();
    let unhandled_cuda_error = 1;
    assert_eq!(all_reduce(comm), unhandled_cuda_error);
    let last = lines().pop().unwrap();
    let ring = "refused\tNCCL communicator 1, 2 ranks\tring\t301989888\tmeasured\tncclAllReduce\t";
    assert!(last.starts_with(ring), "{last}");
    assert_eq!(join(2), Err(unhandled_cuda_error), "nor a second base");
    assert_eq!(c!(ncclCommDestroy(comm => u64)), 0);
    let mut address = 0_u64;
    let code = c!(cudaMalloc(&mut address => *mut u64, 512 << 20 => usize));
    assert_eq!(code, error::OUT_OF_MEMORY);
    c!(cudaGetLastError());
}
