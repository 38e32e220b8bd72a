//! cuSOLVER: factorizations that compute nothing. Their workspaces are undocumented: the stand-in assumes none, and
//! reports that (`notice.rs`).
//!
//! The functions that query a workspace's size differ in the number of arguments before it. All of those are integers
//! or pointers, which the C calling convention passes alike, so they are declared as integers here.

use std::ffi::c_int;

use crate::argument::Out;
use crate::call::{calls, makers, nothing, work};
use crate::error::Outcome;
use crate::workspace;

/// Defines functions that query a size in elements, which follows this many arguments.
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

/// The same for the newer functions, which query bytes on the device and bytes on the host.
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

sizes! { [_a _b _c]:
    cusolverDnCgesvd_bufferSize cusolverDnDgesvd_bufferSize cusolverDnSgesvd_bufferSize
    cusolverDnZgesvd_bufferSize
}

sizes! { [_a _b _c _d]:
    cusolverDnCsytrf_bufferSize cusolverDnDsytrf_bufferSize cusolverDnSsytrf_bufferSize
    cusolverDnZsytrf_bufferSize
}

sizes! { [_a _b _c _d _e]:
    cusolverDnCgeqrf_bufferSize cusolverDnCgetrf_bufferSize cusolverDnCpotrf_bufferSize
    cusolverDnDgeqrf_bufferSize cusolverDnDgetrf_bufferSize cusolverDnDpotrf_bufferSize
    cusolverDnSgeqrf_bufferSize cusolverDnSgetrf_bufferSize cusolverDnSpotrf_bufferSize
    cusolverDnZgeqrf_bufferSize cusolverDnZgetrf_bufferSize cusolverDnZpotrf_bufferSize
}

sizes! { [_a _b _c _d _e _f _g]:
    cusolverDnCheevd_bufferSize cusolverDnCheevjBatched_bufferSize cusolverDnCheevj_bufferSize
    cusolverDnCungqr_bufferSize cusolverDnDorgqr_bufferSize cusolverDnDsyevd_bufferSize
    cusolverDnDsyevjBatched_bufferSize cusolverDnDsyevj_bufferSize cusolverDnSorgqr_bufferSize
    cusolverDnSsyevd_bufferSize cusolverDnSsyevjBatched_bufferSize cusolverDnSsyevj_bufferSize
    cusolverDnZheevd_bufferSize cusolverDnZheevjBatched_bufferSize cusolverDnZheevj_bufferSize
    cusolverDnZungqr_bufferSize
}

sizes! { [_a _b _c _d _e _f _g _h _i _j _k]:
    cusolverDnCgesvdjBatched_bufferSize cusolverDnCunmqr_bufferSize cusolverDnDgesvdjBatched_bufferSize
    cusolverDnDormqr_bufferSize cusolverDnSgesvdjBatched_bufferSize cusolverDnSormqr_bufferSize
    cusolverDnZgesvdjBatched_bufferSize cusolverDnZunmqr_bufferSize
}

sizes! { [_a _b _c _d _e _f _g _h _i _j _k _l]:
    cusolverDnCgesvdj_bufferSize cusolverDnDgesvdj_bufferSize cusolverDnSgesvdj_bufferSize
    cusolverDnZgesvdj_bufferSize
}

sizes! { [_a _b _c _d _e _f _g _h _i _j _k _l _m _n _o _p]:
    cusolverDnCgesvdaStridedBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize
    cusolverDnSgesvdaStridedBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize
}

sizes_of_both! { [_a _b _c _d _e _f _g _h]:
    cusolverDnXpotrf_bufferSize
}

sizes_of_both! { [_a _b _c _d _e _f _g _h _i _j]:
    cusolverDnXgeqrf_bufferSize
}

sizes_of_both! { [_a _b _c _d _e _f _g _h _i _j _k]:
    cusolverDnXsyevBatched_bufferSize cusolverDnXsyevd_bufferSize cusolverDnXsytrs_bufferSize
}

sizes_of_both! { [_a _b _c _d _e _f _g _h _i _j _k _l _m _n _o _p _q]:
    cusolverDnXgeev_bufferSize
}

makers! { Solver:
    cusolverDnCreate cusolverDnCreateGesvdjInfo cusolverDnCreateParams cusolverDnCreateSyevjInfo
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
    workspace::none("cuSOLVER");
    size.put(T::from(0))
}
