//! cuSPARSE: matrices have descriptors, but nothing is computed. Workspaces come from [`workspace`]. The number of
//! values in a product of two sparse matrices depends on the positions of the factors' values; [`Sparse::times`]
//! estimates it.
//!
//! Only the functions that PyTorch calls are defined here. The legacy functions, whose blocked forms (`bsr`) have no
//! successor, describe their matrices by sizes and pointers. Their workspaces are unknown and assumed to be none,
//! which is reported (`notice.rs`).

mod matrix;
mod workspace;

use std::ffi::{c_int, c_void};

use plimsoll_gpu::outside::Library;

use self::matrix::{Dense, Sparse, known};
use crate::argument::Out;
use crate::call::{calls, makers, new_handle, nothing};
use crate::error::{Failure, Outcome};
use crate::notice;
use crate::outside;
use crate::stream::{kernel_somewhere, work};

calls! { Sparse:
    fn cusparseCreate(handle: Out<u64>) {
        outside::used(Library::CuSparse)?;
        handle.put(new_handle())
    }
    fn cusparseCreateCsr(
        matrix: Out<u64>, rows: i64, columns: i64, values: i64, _offsets: u64, _indices: u64, _numbers: u64,
        _offset_kind: c_int, index: c_int, _base: c_int, element: c_int,
    ) {
        make(matrix, Sparse::new([rows, columns, values], index, element)?)
    }
    fn cusparseCreateCoo(
        matrix: Out<u64>, rows: i64, columns: i64, values: i64, _row_indices: u64, _column_indices: u64, _numbers: u64,
        index: c_int, _base: c_int, element: c_int,
    ) {
        make(matrix, Sparse::new([rows, columns, values], index, element)?)
    }
    fn cusparseDestroySpMat(matrix: u64) {
        known().sparse.remove(&matrix);
        Ok(())
    }
    fn cusparseSpMatGetSize(matrix: u64, rows: Out<i64>, columns: Out<i64>, values: Out<i64>) {
        let matrix = Sparse::of(matrix)?;
        rows.put(matrix.rows.cast_signed())?;
        columns.put(matrix.columns.cast_signed())?;
        values.put(matrix.values.cast_signed())
    }
    fn cusparseCreateDnMat(
        matrix: Out<u64>, _rows: i64, columns: i64, _leading: i64, _values: u64, _element: c_int, order: c_int,
    ) {
        let handle = new_handle();
        known().dense.insert(handle, Dense::new(columns, order)?);
        matrix.put(handle)
    }
    fn cusparseDestroyDnMat(matrix: u64) {
        known().dense.remove(&matrix);
        Ok(())
    }
    fn cusparseSpMV_bufferSize(
        _handle: u64, operation: c_int, _alpha: u64, a: u64, _x: u64, _beta: u64, _y: u64, compute: c_int,
        _algorithm: c_int, bytes: Out<u64>,
    ) {
        size(bytes, Sparse::of(a)?.vector_product_bytes(operation, compute))
    }
    fn cusparseSpMM_bufferSize(
        _handle: u64, operation: c_int, _operation_of_b: c_int, _alpha: u64, a: u64, _b: u64, _beta: u64, c: u64,
        compute: c_int, algorithm: c_int, bytes: Out<u64>,
    ) {
        let (a, c) = (Sparse::of(a)?, Dense::of(c)?);
        size(bytes, a.matrix_product_bytes(operation, c, compute, algorithm))
    }
    fn cusparseSDDMM_bufferSize(
        _handle: u64, _operation_of_a: c_int, _operation_of_b: c_int, _alpha: u64, _a: u64, _b: u64, _beta: u64, c: u64,
        _compute: c_int, _algorithm: c_int, bytes: Out<u64>,
    ) {
        size(bytes, Sparse::of(c)?.sampled_product_bytes())
    }
    fn cusparseSpSV_bufferSize(
        _handle: u64, _operation: c_int, _alpha: u64, a: u64, _x: u64, _y: u64, _compute: c_int, _algorithm: c_int,
        _solver: u64, bytes: Out<u64>,
    ) {
        size(bytes, Sparse::of(a)?.solve_bytes(1))
    }
    fn cusparseSpSM_bufferSize(
        _handle: u64, _operation_of_a: c_int, _operation_of_b: c_int, _alpha: u64, a: u64, _b: u64, c: u64,
        _compute: c_int, _algorithm: c_int, _solver: u64, bytes: Out<u64>,
    ) {
        size(bytes, Sparse::of(a)?.solve_bytes(Dense::of(c)?.columns))
    }
    fn cusparseSpGEMM_workEstimation(
        _handle: u64, _operation_of_a: c_int, _operation_of_b: c_int, _alpha: u64, a: u64, b: u64, _beta: u64, _c: u64,
        _compute: c_int, _algorithm: c_int, _product: u64, bytes: Out<u64>, workspace: *const c_void,
    ) {
        Sparse::of(b)?;
        work_in(workspace);
        size(bytes, Sparse::of(a)?.product_estimate_bytes())
    }
    fn cusparseSpGEMM_compute(
        _handle: u64, _operation_of_a: c_int, _operation_of_b: c_int, _alpha: u64, a: u64, b: u64, _beta: u64, c: u64,
        _compute: c_int, _algorithm: c_int, _product: u64, bytes: Out<u64>, workspace: *const c_void,
    ) {
        let (a, b) = (Sparse::of(a)?, Sparse::of(b)?);
        spread("a product of sparse matrices");
        work_in(workspace);
        known().sparse.get_mut(&c).ok_or(Failure::InvalidHandle)?.values = a.times(b);
        size(bytes, a.product_bytes(b))
    }
    /// The result goes to the host, which is the default.
    fn cusparseXcsrgeam2Nnz(
        _handle: u64, rows: c_int, columns: c_int, _a: u64, values_of_a: c_int, _rows_of_a: u64, _columns_of_a: u64,
        _b: u64, values_of_b: c_int, _rows_of_b: u64, _columns_of_b: u64, _c: u64, _rows_of_c: u64, total: Out<c_int>,
        _workspace: u64,
    ) {
        let matrix = |values| Sparse::new([rows.into(), columns.into(), i64::from(values)], 2, 0);
        let values = matrix(values_of_a)?.plus(matrix(values_of_b)?);
        spread("a sum of sparse matrices");
        kernel_somewhere();
        total.put(c_int::try_from(values).map_err(|_| Failure::InvalidValue)?)
    }
    fn cusparseXcoosort_bufferSizeExt(
        _handle: u64, _rows: c_int, _columns: c_int, values: c_int, _rows_of_a: u64, _columns_of_a: u64, bytes: Out<u64>,
    ) {
        size(bytes, workspace::sort_pairs_bytes(values.unsigned_abs().into()))
    }
    fn cusparseXcsrsort_bufferSizeExt(
        _handle: u64, _rows: c_int, _columns: c_int, values: c_int, _rows_of_a: u64, _columns_of_a: u64, bytes: Out<u64>,
    ) {
        size(bytes, workspace::sort_rows_bytes(values.unsigned_abs().into()))
    }
}

/// Defines the functions for the four number types that query the workspace of a sum or of a blocked solve.
macro_rules! four_types {
    (sum: $($name:ident)*) => {
        calls! { Sparse: $(
            fn $name(
                _handle: u64, rows: c_int, _columns: c_int, _alpha: u64, _a: u64, _nnz_a: c_int, _va: u64, _ra: u64,
                _ca: u64, _beta: u64, _b: u64, _nnz_b: c_int, _vb: u64, _rb: u64, _cb: u64, _c: u64, _vc: u64, _rc: u64,
                _cc: u64, bytes: Out<u64>,
            ) {
                size(bytes, workspace::sum_bytes(rows.unsigned_abs().into()))
            }
        )* }
    };
    (vector: $($name:ident)*) => {
        calls! { Sparse: $(
            fn $name(
                _handle: u64, _direction: c_int, _operation: c_int, _rows: c_int, _blocks: c_int, _a: u64, _values: u64,
                _offsets: u64, _indices: u64, _block: c_int, _info: u64, bytes: Out<c_int>,
            ) {
                none(bytes)
            }
        )* }
    };
    (matrix: $($name:ident)*) => {
        calls! { Sparse: $(
            fn $name(
                _handle: u64, _direction: c_int, _operation: c_int, _operation_of_x: c_int, _rows: c_int, _columns: c_int,
                _blocks: c_int, _a: u64, _values: u64, _offsets: u64, _indices: u64, _block: c_int, _info: u64,
                bytes: Out<c_int>,
            ) {
                none(bytes)
            }
        )* }
    };
}

four_types! { sum:
    cusparseCcsrgeam2_bufferSizeExt cusparseDcsrgeam2_bufferSizeExt cusparseScsrgeam2_bufferSizeExt
    cusparseZcsrgeam2_bufferSizeExt
}

four_types! { vector:
    cusparseCbsrsv2_bufferSize cusparseDbsrsv2_bufferSize cusparseSbsrsv2_bufferSize cusparseZbsrsv2_bufferSize
}

four_types! { matrix:
    cusparseCbsrsm2_bufferSize cusparseDbsrsm2_bufferSize cusparseSbsrsm2_bufferSize cusparseZbsrsm2_bufferSize
}

makers! { Sparse:
    cusparseCreateBsrsm2Info cusparseCreateBsrsv2Info cusparseCreateDnVec cusparseCreateMatDescr
    cusparseSpGEMM_createDescr cusparseSpSM_createDescr cusparseSpSV_createDescr
}

// A pivot is never zero: `cusparseXbsrsm2_zeroPivot` and similar functions succeed and leave their output unchanged.
nothing! { Sparse:
    cusparseCsrSetPointers cusparseCsrSetStridedBatch cusparseDestroy cusparseDestroyBsrsm2Info
    cusparseDestroyBsrsv2Info cusparseDestroyDnVec cusparseDestroyMatDescr cusparseDnMatSetStridedBatch
    cusparseSetMatDiagType cusparseSetMatFillMode cusparseSetMatIndexBase cusparseSetMatType
    cusparseSetPointerMode cusparseSetStream cusparseSpGEMM_destroyDescr cusparseSpMatSetAttribute
    cusparseSpSM_destroyDescr cusparseSpSV_destroyDescr cusparseXbsrsm2_zeroPivot cusparseXbsrsv2_zeroPivot
}

work! { Sparse:
    cusparseCbsrmm cusparseCbsrmv cusparseCbsrsm2_analysis cusparseCbsrsm2_solve cusparseCbsrsv2_analysis
    cusparseCbsrsv2_solve cusparseCcsrgeam2 cusparseCreateIdentityPermutation cusparseDbsrmm cusparseDbsrmv
    cusparseDbsrsm2_analysis cusparseDbsrsm2_solve cusparseDbsrsv2_analysis cusparseDbsrsv2_solve
    cusparseDcsrgeam2 cusparseSDDMM cusparseSDDMM_preprocess cusparseSbsrmm cusparseSbsrmv
    cusparseSbsrsm2_analysis cusparseSbsrsm2_solve cusparseSbsrsv2_analysis cusparseSbsrsv2_solve
    cusparseScsrgeam2 cusparseSpGEMM_copy cusparseSpMM cusparseSpMV cusparseSpSM_analysis cusparseSpSM_solve
    cusparseSpSV_analysis cusparseSpSV_solve cusparseXcoo2csr cusparseXcoosortByRow cusparseXcsrsort
    cusparseZbsrmm cusparseZbsrmv cusparseZbsrsm2_analysis cusparseZbsrsm2_solve cusparseZbsrsv2_analysis
    cusparseZbsrsv2_solve cusparseZcsrgeam2
}

/// Stores a matrix under a new handle.
fn make(place: Out<u64>, matrix: Sparse) -> Outcome {
    let handle = new_handle();
    known().sparse.insert(handle, matrix);
    place.put(handle)
}

/// With a workspace the call computes; without one it queries the size.
fn work_in(workspace: *const c_void) {
    if !workspace.is_null() {
        kernel_somewhere();
    }
}

/// Reports a workspace's size.
fn size(place: Out<u64>, bytes: u64) -> Outcome {
    notice::assume("cuSPARSE", "is assumed to need the workspaces measured on an H200 (CUDA 13.0)");
    place.put(bytes)
}

/// Reports that the number of values in a result is an estimate.
fn spread(result: &str) {
    notice::assume(
        result,
        "is assumed to have as many values as if its operands' values were evenly spread: on a GPU the number depends on \
         their positions",
    );
}

/// Reports that no workspace is needed.
fn none(place: Out<c_int>) -> Outcome {
    crate::workspace::none("cuSPARSE's solver for blocked matrices");
    place.put(0)
}
