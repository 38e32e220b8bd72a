//! Queries to other libraries (sparse matrices and the CTC loss), and kernels that have no code for the
//! device.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use plimsoll_standin::notice::{self, Kind};

use crate::c;
use crate::library;
use crate::library::error;
use crate::test_name;

fn notices() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn opened(test: &str) -> bool {
    // An earlier process may have had this ID.
    let _not_there = std::fs::remove_file(notices().join(format!("{}.notices", std::process::id())));
    library::opened(
        test,
        &[
            ("PLIMSOLL_STANDIN_GPU", "T4"),
            ("PLIMSOLL_STANDIN_CUDNN_WORKSPACE", "model"),
            ("PLIMSOLL_STANDIN_NOTICES", env!("CARGO_TARGET_TMPDIR")),
        ],
    )
}

/// A CSR matrix of 32-bit floats with 64-bit indices.
fn csr(rows: i64, columns: i64, values: i64) -> u64 {
    let mut matrix = 0;
    let code = c!(cusparseCreateCsr(
        &mut matrix => *mut u64, rows => i64, columns => i64, values => i64, 0 => u64, 0 => u64, 0 => u64, 3 => i32,
        3 => i32, 0 => i32, 0 => i32
    ));
    assert_eq!(code, 0);
    matrix
}

fn dense(rows: i64, columns: i64) -> u64 {
    let (mut matrix, row_major) = (0, 2);
    let code = c!(cusparseCreateDnMat(
        &mut matrix => *mut u64, rows => i64, columns => i64, columns => i64, 0 => u64, 0 => i32, row_major => i32
    ));
    assert_eq!(code, 0);
    matrix
}

#[test]
fn a_sparse_dense_product_reports_the_workspace_of_a_gpu() {
    if !opened(test_name!()) {
        return;
    }
    let (a, b, c) = (csr(1000, 1000, 10_000), dense(1000, 64), dense(1000, 64));
    let (mut bytes, second) = (0_u64, 6);
    let code = c!(cusparseSpMM_bufferSize(
        1 => u64, 0 => i32, 0 => i32, 0 => u64, a => u64, b => u64, 0 => u64, c => u64, 0 => i32, second => i32,
        &mut bytes => *mut u64
    ));
    assert_eq!((code, bytes), (0, 8 * (10_000_u64.div_ceil(24) + 1) - 1));
    assert_eq!(c!(cusparseDestroySpMat(a => u64)), 0);
    let code = c!(cusparseSpMatGetSize(a => u64, null_mut() => *mut i64, null_mut() => *mut i64, null_mut() => *mut i64));
    assert_eq!(code, 3, "it is gone");
}

#[test]
fn a_sparse_product_is_sized_as_if_values_were_spread_evenly_and_a_notice_says_so() {
    if !opened(test_name!()) {
        return;
    }
    let (a, b, c) = (csr(1000, 1000, 10_000), csr(1000, 1000, 10_000), csr(1000, 1000, 0));
    let (mut bytes, workspace) = (0_u64, std::ptr::without_provenance_mut(512));
    for place in [null_mut(), workspace] {
        let code = c!(cusparseSpGEMM_compute(
            1 => u64, 0 => i32, 0 => i32, 0 => u64, a => u64, b => u64, 0 => u64, c => u64, 0 => i32, 0 => i32, 1 => u64,
            &mut bytes => *mut u64, place => *mut c_void
        ));
        assert_eq!((code, bytes), (0, 100_000 * 24));
    }
    let (mut rows, mut columns, mut values) = (0, 0, 0);
    c!(cusparseSpMatGetSize(c => u64, &mut rows => *mut i64, &mut columns => *mut i64, &mut values => *mut i64));
    assert_eq!((rows, columns, values), (1000, 1000, 95_167));
    let notices = notice::of_process(notices(), std::process::id()).unwrap();
    let product: Vec<_> =
        notices.iter().filter(|notice| notice.about == "a product of sparse matrices").collect();
    assert_eq!(product.len(), 1, "{notices:?}");
    assert!(product[0].kind == Kind::Assumed && product[0].text.contains("evenly spread"), "{notices:?}");
}

#[test]
fn the_ctc_loss_reports_the_workspace_of_a_gpu() {
    if !opened(test_name!()) {
        return;
    }
    let (mut probabilities, mut loss, mut bytes) = (0_u64, 0_u64, 0_u64);
    assert_eq!(c!(cudnnCreateTensorDescriptor(&mut probabilities => *mut u64)), 0);
    let (sizes, strides) = ([50, 4, 20], [80, 20, 1]);
    let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
    let code = c!(cudnnSetTensorNdDescriptor(
        probabilities => u64, 0 => i32, 3 => i32, sizes => *const i32, strides => *const i32
    ));
    assert_eq!((code, c!(cudnnCreateCTCLossDescriptor(&mut loss => *mut u64))), (0, 0));
    let (labels, inputs) = ([10, 5, 3, 7], [50, 40, 30, 20]);
    let (labels, inputs) = (labels.as_ptr(), inputs.as_ptr());
    let code = c!(cudnnGetCTCLossWorkspaceSize(
        1 => u64, probabilities => u64, probabilities => u64, 0 => u64, labels => *const i32, inputs => *const i32,
        0 => i32, loss => u64, &mut bytes => *mut u64
    ));
    assert_eq!((code, bytes), (0, 50_160));
    assert_eq!(c!(cudnnDestroyTensorDescriptor(probabilities => u64)), 0);
    assert_ne!(
        c!(cudnnGetCTCLossWorkspaceSize_v8(
            1 => u64, 0 => i32, loss => u64, probabilities => u64, probabilities => u64, &mut bytes => *mut u64
        )),
        0,
        "its tensor is gone"
    );
}

/// Registers a module as a library does: binary code for one architecture. It lives as long as the process.
fn register(architecture: u32, kernel: *const c_void, name: &CStr) {
    // A 16-byte header, then one 64-byte image header, as `images.rs` reads them.
    let mut words: Vec<u32> = vec![0xba55_ed50, 16 << 16 | 1, 64, 0, 0x0101 << 16 | 2, 64, 0, 0, 0, 0, 0];
    words.push(architecture);
    words.resize(20, 0);
    let data = Box::leak(words.into_boxed_slice()).as_ptr();
    let wrapper: &[u64] = Box::leak(Box::new([1 << 32 | 0x4662_43b1, data.expose_provenance() as u64, 0]));
    // SAFETY: the two functions take these arguments; the wrapper and everything that it refers to are never
    // freed.
    unsafe {
        let take: extern "C" fn(*const u64) -> u64 =
            std::mem::transmute(library::symbol("__cudaRegisterFatBinary"));
        let describe: extern "C" fn(u64, *const c_void, *const c_char) =
            std::mem::transmute(library::symbol("__cudaRegisterFunction"));
        describe(take(wrapper.as_ptr()), kernel, name.as_ptr());
    }
}

fn launch(kernel: *const c_void) -> i32 {
    let one = [1_u32; 3];
    c!(cudaLaunchKernel(
        kernel => *const c_void, one => [u32; 3], one => [u32; 3], null() => *const c_void, 0 => usize, 0 => u64
    ))
}

#[test]
fn a_kernel_without_code_for_the_device_is_not_launched() {
    if !opened(test_name!()) {
        return;
    }
    let [old, fits, new] = [1, 2, 3].map(std::ptr::without_provenance::<c_void>);
    for (architecture, kernel) in [(70, old), (75, fits), (80, new)] {
        register(architecture, kernel, c"kernel");
    }
    for _ in 0..2 {
        assert_eq!([old, fits, new].map(launch), [0, 0, error::NO_KERNEL_IMAGE]);
        assert_eq!((c!(cudaGetLastError()), c!(cudaGetLastError())), (error::NO_KERNEL_IMAGE, 0));
    }
    assert_eq!(launch(null()), 0, "a kernel that no library brought");
}

#[test]
fn launching_a_kernel_that_selects_by_value_writes_a_notice() {
    if !opened(test_name!()) {
        return;
    }
    let kernel = std::ptr::without_provenance::<c_void>(4);
    register(75, kernel, c"_ZN3cub23DeviceSelectSweepKernelIiEEvv");
    let selections = || {
        let notices = notice::of_process(notices(), std::process::id()).unwrap();
        notices.iter().filter(|notice| notice.kind == Kind::Selected).count()
    };
    assert_eq!(selections(), 0);
    assert_eq!([launch(kernel), launch(kernel)], [0, 0]);
    assert_eq!(selections(), 1);
}
