//! cuSOLVER: factorizations that compute nothing. Their workspaces are undocumented. For some there are formulas
//! (`workspace.rs`); for the others the stand-in assumes that no workspace is needed. It reports both cases
//! (`notice.rs`).
//! The functions that query a workspace's size differ in the number of arguments before it. All of those are integers
//! or pointers, which the C calling convention passes alike, so they are declared as integers here.

mod workspace;

use std::ffi::c_int;

use plimsoll_gpu::outside::Library;

use crate::argument::Out;
use crate::call::{calls, makers, new_handle, nothing};
use crate::error::Outcome;
use crate::outside;
use crate::stream::work;
use workspace::{
    HEADER_BYTES, SINGULAR_BATCH, cholesky, eigen, eigen_batch_bytes, eigen_jacobi, indefinite, orthogonal,
    qr, singular_jacobi,
};

/// Defines functions that query a size in elements. The pointer for the size follows this many arguments.
macro_rules! sizes {
    ($arguments:tt: $($name:ident)*) => { $(sizes! { @one $name $arguments })* };
    (@one $name:ident [$($argument:ident)*]) => {
        calls! { Solver:
            fn $name($($argument: u64,)* elements: Out<c_int>) {
                none(elements)
            }
        }
    };
}

/// Does the same for the newer functions, which query bytes on the device and bytes on the host.
macro_rules! sizes_of_both {
    ($arguments:tt: $($name:ident)*) => { $(sizes_of_both! { @one $name $arguments })* };
    (@one $name:ident [$($argument:ident)*]) => {
        calls! { Solver:
            fn $name($($argument: u64,)* device: Out<usize>, host: Out<usize>) {
                none(device)?;
                host.put(0)
            }
        }
    };
}

/// Defines functions that query a size in elements, computed by a formula from the arguments and the bytes of an
/// element.
macro_rules! modelled {
    ($arguments:tt |$bytes:ident| $elements:expr; $($name:ident $value:literal)*) => {
        $(modelled! { @one $name $arguments $bytes $value $elements })*
    };
    (@one $name:ident [$($argument:ident)*] $bytes:ident $value:literal $elements:expr) => {
        calls! { Solver:
            fn $name($($argument: u64,)* elements: Out<c_int>) {
                let $bytes = $value;
                let bytes = crate::workspace::modelled("cuSOLVER", || $elements * $bytes);
                elements.put(c_int::try_from(bytes / $bytes).unwrap_or(c_int::MAX))
            }
        }
    };
}

modelled! { [_handle _uplo _n _a _lda] |bytes| cholesky(bytes);
    cusolverDnSpotrf_bufferSize 4 cusolverDnDpotrf_bufferSize 8
    cusolverDnCpotrf_bufferSize 8 cusolverDnZpotrf_bufferSize 16
}

modelled! { [_handle _m n _a _lda] |_bytes| qr(integer(n));
    cusolverDnSgeqrf_bufferSize 4 cusolverDnDgeqrf_bufferSize 8
    cusolverDnCgeqrf_bufferSize 8 cusolverDnZgeqrf_bufferSize 16
}

modelled! { [_handle m _n k _a _lda _tau] |_bytes| orthogonal(integer(m), integer(k));
    cusolverDnSorgqr_bufferSize 4 cusolverDnDorgqr_bufferSize 8
    cusolverDnCungqr_bufferSize 8 cusolverDnZungqr_bufferSize 16
}

modelled! { [_handle _jobs _uplo n _a _lda _w] |_bytes| eigen(integer(n));
    cusolverDnSsyevd_bufferSize 4 cusolverDnDsyevd_bufferSize 8
    cusolverDnCheevd_bufferSize 8 cusolverDnZheevd_bufferSize 16
}

modelled! { [_handle _jobs _uplo n _a _lda _w] |_bytes| eigen_jacobi(integer(n));
    cusolverDnSsyevj_bufferSize 4 cusolverDnDsyevj_bufferSize 8
    cusolverDnCheevj_bufferSize 8 cusolverDnZheevj_bufferSize 16
}

modelled! {
    [_handle _jobs econ m n _a _lda _s _u _ldu _v _ldv]
    |_bytes| singular_jacobi(integer(m), integer(n), integer(econ) != 0);
    cusolverDnSgesvdj_bufferSize 4 cusolverDnDgesvdj_bufferSize 8
    cusolverDnCgesvdj_bufferSize 8 cusolverDnZgesvdj_bufferSize 16
}

modelled! { [_handle _jobs _m _n _a _lda _s _u _ldu _v _ldv] |_bytes| SINGULAR_BATCH;
    cusolverDnSgesvdjBatched_bufferSize 4 cusolverDnDgesvdjBatched_bufferSize 8
    cusolverDnCgesvdjBatched_bufferSize 8 cusolverDnZgesvdjBatched_bufferSize 16
}

modelled! { [_handle n _a _lda] |bytes| indefinite(integer(n), bytes);
    cusolverDnSsytrf_bufferSize 4 cusolverDnDsytrf_bufferSize 8
    cusolverDnCsytrf_bufferSize 8 cusolverDnZsytrf_bufferSize 16
}

calls! { Solver:
    fn cusolverDnCreate(handle: Out<u64>) {
        outside::used(Library::CuSolver)?;
        handle.put(new_handle())
    }

    fn cusolverDnXpotrf_bufferSize(
        _handle: u64, _params: u64, _uplo: u64, _n: u64, element: u64, _a: u64, _lda: u64, _compute: u64,
        device: Out<usize>, host: Out<usize>,
    ) {
        both(device, host, || element_bytes(element) * cholesky(element_bytes(element)))
    }

    fn cusolverDnXgeqrf_bufferSize(
        _handle: u64, _params: u64, _m: u64, n: u64, element: u64, _a: u64, _lda: u64, _tau_type: u64,
        _tau: u64, _compute: u64, device: Out<usize>, host: Out<usize>,
    ) {
        both(device, host, || element_bytes(element) * qr(n) + HEADER_BYTES)
    }

    fn cusolverDnXsyevd_bufferSize(
        _handle: u64, _params: u64, _jobs: u64, _uplo: u64, n: u64, element: u64, _a: u64, _lda: u64,
        _w_type: u64, _w: u64, _compute: u64, device: Out<usize>, host: Out<usize>,
    ) {
        both(device, host, || element_bytes(element) * eigen(n) + HEADER_BYTES)
    }

    fn cusolverDnXsyevBatched_bufferSize(
        _handle: u64, _params: u64, _jobs: u64, _uplo: u64, n: u64, element: u64, _a: u64, _lda: u64,
        _w_type: u64, _w: u64, _compute: u64, device: Out<usize>, host: Out<usize>, batch: u64,
    ) {
        both(device, host, || eigen_batch_bytes(n, batch, element_bytes(element)))
    }
}

sizes! { [_a _b _c]:
    cusolverDnCgesvd_bufferSize cusolverDnDgesvd_bufferSize cusolverDnSgesvd_bufferSize
    cusolverDnZgesvd_bufferSize
}

sizes! { [_a _b _c _d _e]:
    cusolverDnCgetrf_bufferSize cusolverDnDgetrf_bufferSize cusolverDnSgetrf_bufferSize
    cusolverDnZgetrf_bufferSize
}

sizes! { [_a _b _c _d _e _f _g]:
    cusolverDnCheevjBatched_bufferSize cusolverDnDsyevjBatched_bufferSize cusolverDnSsyevjBatched_bufferSize
    cusolverDnZheevjBatched_bufferSize
}

sizes! { [_a _b _c _d _e _f _g _h _i _j _k]:
    cusolverDnCunmqr_bufferSize cusolverDnDormqr_bufferSize cusolverDnSormqr_bufferSize
    cusolverDnZunmqr_bufferSize
}

sizes! { [_a _b _c _d _e _f _g _h _i _j _k _l _m _n _o _p]:
    cusolverDnCgesvdaStridedBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize
    cusolverDnSgesvdaStridedBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize
}

sizes_of_both! { [_a _b _c _d _e _f _g _h _i _j _k]:
    cusolverDnXsytrs_bufferSize
}

sizes_of_both! { [_a _b _c _d _e _f _g _h _i _j _k _l _m _n _o _p _q]:
    cusolverDnXgeev_bufferSize
}

makers! { Solver:
    cusolverDnCreateGesvdjInfo cusolverDnCreateParams cusolverDnCreateSyevjInfo
}

nothing! { Solver:
    cusolverDnDestroy cusolverDnDestroyGesvdjInfo cusolverDnDestroyParams cusolverDnDestroySyevjInfo
    cusolverDnSetStream cusolverDnXgesvdjSetMaxSweeps cusolverDnXgesvdjSetSortEig
    cusolverDnXgesvdjSetTolerance
}

work! { Solver:
    cusolverDnCgeqrf cusolverDnCgesvd cusolverDnCgesvdaStridedBatched cusolverDnCgesvdj
    cusolverDnCgesvdjBatched cusolverDnCgetrf cusolverDnCgetrs cusolverDnCheevd cusolverDnCheevj
    cusolverDnCheevjBatched cusolverDnCpotrf cusolverDnCpotrfBatched cusolverDnCpotrs
    cusolverDnCpotrsBatched cusolverDnCsytrf cusolverDnCungqr cusolverDnCunmqr cusolverDnDgeqrf
    cusolverDnDgesvd cusolverDnDgesvdaStridedBatched cusolverDnDgesvdj cusolverDnDgesvdjBatched
    cusolverDnDgetrf cusolverDnDgetrs cusolverDnDorgqr cusolverDnDormqr cusolverDnDpotrf
    cusolverDnDpotrfBatched cusolverDnDpotrs cusolverDnDpotrsBatched cusolverDnDsyevd cusolverDnDsyevj
    cusolverDnDsyevjBatched cusolverDnDsytrf cusolverDnSgeqrf cusolverDnSgesvd
    cusolverDnSgesvdaStridedBatched cusolverDnSgesvdj cusolverDnSgesvdjBatched cusolverDnSgetrf
    cusolverDnSgetrs cusolverDnSorgqr cusolverDnSormqr cusolverDnSpotrf cusolverDnSpotrfBatched
    cusolverDnSpotrs cusolverDnSpotrsBatched cusolverDnSsyevd cusolverDnSsyevj cusolverDnSsyevjBatched
    cusolverDnSsytrf cusolverDnXgeev cusolverDnXgeqrf cusolverDnXpotrf cusolverDnXpotrs
    cusolverDnXsyevBatched cusolverDnXsyevd cusolverDnXsytrs cusolverDnZgeqrf cusolverDnZgesvd
    cusolverDnZgesvdaStridedBatched cusolverDnZgesvdj cusolverDnZgesvdjBatched cusolverDnZgetrf
    cusolverDnZgetrs cusolverDnZheevd cusolverDnZheevj cusolverDnZheevjBatched cusolverDnZpotrf
    cusolverDnZpotrfBatched cusolverDnZpotrs cusolverDnZpotrsBatched cusolverDnZsytrf cusolverDnZungqr
    cusolverDnZunmqr
}

/// Reports that no workspace is needed.
fn none<T: From<u8>>(size: Out<T>) -> Outcome {
    crate::workspace::none("cuSOLVER");
    size.put(T::from(0))
}

/// Answers a query for bytes on the device and on the host; no host bytes are needed.
fn both(device: Out<usize>, host: Out<usize>, model: impl FnOnce() -> u64) -> Outcome {
    let bytes = crate::workspace::modelled("cuSOLVER", model);
    device.put(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    host.put(0)
}

/// A 32-bit argument: the upper half of its register is undefined.
fn integer(argument: u64) -> u64 {
    argument & u64::from(u32::MAX)
}

/// The bytes of an element of a `cudaDataType`.
fn element_bytes(element: u64) -> u64 {
    match integer(element) {
        1 | 4 => 8, // CUDA_R_64F, CUDA_C_32F
        5 => 16,    // CUDA_C_64F
        _ => 4,
    }
}
