//! cuBLAS and cuBLASLt: handles and descriptors exist, but products are not computed. PyTorch allocates the
//! workspaces itself. cuBLASLt reports one algorithm for every product, which needs no workspace.

use std::ffi::{c_int, c_void};

use plimsoll_gpu::outside::Library;

use crate::argument::Out;
use crate::call::{calls, makers, new_handle, nothing, unknown};
use crate::outside;
use crate::stream::{kernel_somewhere, work};

/// `sizeof(cublasLtMatmulHeuristicResult_t)`: an algorithm, its workspace in bytes, its state and its number of
/// waves.
const RESULT_BYTES: usize = 96;

/// Defines batched products and factorizations that report a wrong argument through a host pointer. The number says
/// how many arguments precede that pointer; 0 means that there is none. All arguments are integers or pointers, which
/// the C calling convention passes alike.
macro_rules! checked {
    ($arguments:tt: $($name:ident)*) => { $(checked! { @one $name $arguments })* };
    (@one $name:ident [$($argument:ident)*]) => {
        calls! { Blas:
            fn $name(_handle: u64, $($argument: u64,)* wrong: Out<c_int>) {
                kernel_somewhere();
                wrong.put(0)
            }
        }
    };
}

checked! { [_m _n _a _lda _tau]:
    cublasCgeqrfBatched cublasDgeqrfBatched cublasSgeqrfBatched cublasZgeqrfBatched
}

checked! { [_trans _m _n _nrhs _a _lda _c _ldc]:
    cublasCgelsBatched cublasDgelsBatched cublasSgelsBatched cublasZgelsBatched
}

checked! { [_trans _n _nrhs _a _lda _pivots _b _ldb]:
    cublasCgetrsBatched cublasDgetrsBatched cublasSgetrsBatched cublasZgetrsBatched
}

calls! { Blas:
    fn cublasCreate_v2(handle: Out<u64>) {
        let made = new_handle();
        outside::made_blas(made)?;
        handle.put(made)
    }
    fn cublasDestroy_v2(handle: u64) {
        outside::ended_blas(handle);
        Ok(())
    }
    fn cublasLtCreate(handle: Out<u64>) {
        outside::used(Library::CuBlas)?;
        handle.put(new_handle())
    }
    fn cublasGetMathMode(_handle: u64, mode: Out<c_int>) {
        mode.put(0)
    }
    /// The pointer mode is 0: scalars are on the host.
    fn cublasGetPointerMode_v2(_handle: u64, mode: Out<c_int>) {
        mode.put(0)
    }
    /// One algorithm, without a workspace.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: u64, _operation: u64, _a: u64, _b: u64, _c: u64, _d: u64, _preference: *const c_void,
        _most: c_int,
        results: Out<u8>, count: Out<c_int>,
    ) {
        results.put_bytes(&[0; RESULT_BYTES])?;
        count.put(1)
    }
}

makers! { Blas:
    cublasLtMatmulDescCreate cublasLtMatrixLayoutCreate
    cublasLtMatmulPreferenceCreate cublasLtMatrixTransformDescCreate
}

/// The version to report if no cuBLASLt is loaded. That is the case in the planner (`planner.rs`), whose cuDNN
/// loads this library under the name of cuBLASLt.
const LT_VERSION: usize = 130_100;

/// The version of the loaded cuBLASLt.
#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    // SAFETY: the name ends with a zero.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"cublasLtGetVersion".as_ptr()) };
    let real: Option<extern "C" fn() -> usize> =
        // SAFETY: null becomes None; otherwise the symbol is this function, with its type from `cublasLt.h`.
        unsafe { std::mem::transmute(real) };
    real.map_or(LT_VERSION, |real| real())
}

nothing! { Blas:
    cublasLtDestroy cublasLtMatmulDescDestroy cublasLtMatmulDescSetAttribute
    cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute cublasLtMatrixLayoutDestroy
    cublasLtMatrixLayoutSetAttribute cublasLtMatrixTransformDescDestroy cublasLtMatrixTransformDescSetAttribute
    cublasSetMathMode cublasSetMatrixAsync cublasSetPointerMode_v2
    cublasSetSmCountTarget cublasSetStream_v2 cublasSetVectorAsync cublasSetWorkspace_v2
}

work! { Blas:
    cublasCaxpy_v2 cublasCcopy_v2 cublasCdotc_v2 cublasCdotu_v2 cublasCgemmBatched
    cublasCgemmStridedBatched cublasCgemm_v2 cublasCgemv_v2 cublasCgerc_v2 cublasCgeru_v2
    cublasCgetrfBatched cublasChemm_v2 cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2
    cublasCher_v2 cublasCherk_v2 cublasCrot_v2 cublasCrotg_v2 cublasCscal_v2 cublasCsrot_v2 cublasCsscal_v2
    cublasCswap_v2 cublasCsymm_v2 cublasCsymv_v2 cublasCsyr2_v2 cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk_v2
    cublasCtrmm_v2 cublasCtrmv_v2 cublasCtrsmBatched cublasCtrsm_v2 cublasCtrsv_v2 cublasDasum_v2
    cublasDaxpy_v2 cublasDcopy_v2 cublasDdot_v2 cublasDgemmBatched
    cublasDgemmStridedBatched cublasDgemm_v2 cublasDgemv_v2 cublasDger_v2
    cublasDgetrfBatched cublasDnrm2_v2 cublasDotEx cublasDrot_v2 cublasDrotg_v2
    cublasDrotm_v2 cublasDrotmg_v2 cublasDscal_v2 cublasDswap_v2 cublasDsymm_v2 cublasDsymv_v2 cublasDsyr2_v2
    cublasDsyr2k_v2 cublasDsyr_v2 cublasDsyrk_v2 cublasDtrmm_v2 cublasDtrmv_v2 cublasDtrsmBatched
    cublasDtrsm_v2 cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2 cublasGemmEx cublasGemmStridedBatchedEx
    cublasGetMatrixAsync cublasGetVectorAsync cublasIcamax_v2 cublasIcamin_v2 cublasIdamax_v2 cublasIdamin_v2
    cublasIsamax_v2 cublasIsamin_v2 cublasIzamax_v2 cublasIzamin_v2 cublasLtMatmul
    cublasLtMatrixTransform cublasSasum_v2
    cublasSaxpy_v2 cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2 cublasSdot_v2
    cublasSgemmBatched cublasSgemmEx cublasSgemmStridedBatched cublasSgemm_v2 cublasSgemv_v2
    cublasSger_v2 cublasSgetrfBatched cublasSnrm2_v2 cublasSrot_v2
    cublasSrotg_v2 cublasSrotm_v2 cublasSrotmg_v2 cublasSscal_v2 cublasSswap_v2 cublasSsymm_v2 cublasSsymv_v2
    cublasSsyr2_v2 cublasSsyr2k_v2 cublasSsyr_v2 cublasSsyrk_v2 cublasStrmm_v2 cublasStrmv_v2
    cublasStrsmBatched cublasStrsm_v2 cublasStrsv_v2 cublasZaxpy_v2 cublasZcopy_v2 cublasZdotc_v2
    cublasZdotu_v2 cublasZdrot_v2 cublasZdscal_v2 cublasZgemmBatched
    cublasZgemmStridedBatched cublasZgemm_v2 cublasZgemv_v2 cublasZgerc_v2 cublasZgeru_v2
    cublasZgetrfBatched cublasZhemm_v2 cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2
    cublasZher_v2 cublasZherk_v2 cublasZrot_v2 cublasZrotg_v2 cublasZscal_v2 cublasZswap_v2 cublasZsymm_v2
    cublasZsymv_v2 cublasZsyr2_v2 cublasZsyr2k_v2 cublasZsyr_v2 cublasZsyrk_v2 cublasZtrmm_v2 cublasZtrmv_v2
    cublasZtrsmBatched cublasZtrsm_v2 cublasZtrsv_v2
}

unknown! { Blas:
    cublasLtMatmulAlgoCheck cublasLtMatmulAlgoConfigGetAttribute cublasLtMatmulAlgoConfigSetAttribute
    cublasLtMatmulAlgoInit
}
