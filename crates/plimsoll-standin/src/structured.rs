//! cuSPARSELt: products with a matrix in which two of every four neighbouring values are zero (2:4 sparsity). The
//! size of such a matrix in compressed form follows from its layout; the workspaces are undocumented and assumed
//! to be none.

use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, nothing};
use crate::error::Outcome;
use crate::notice;
use crate::stream::work;

/// A matrix descriptor, stored at the beginning of cuSPARSELt's 1 KiB.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Descriptor {
    rows: i64,
    columns: i64,
    /// `cudaDataType_t`.
    kind: c_int,
}

/// The size of an algorithm's attribute (`cusparseLtMatmulAlgAttribute_t`). All are 0, such as the highest algorithm number.
const BYTES_OF_AN_ATTRIBUTE: usize = 4;

calls! { Sparse:
    fn cusparseLtStructuredDescriptorInit(
        _handle: *const c_void, matrix: Out<Descriptor>, rows: i64, columns: i64, _leading: i64, _alignment: u32,
        kind: c_int, _order: c_int, _sparsity: c_int,
    ) {
        matrix.put(Descriptor { rows, columns, kind })
    }
    fn cusparseLtDenseDescriptorInit(
        _handle: *const c_void, matrix: Out<Descriptor>, rows: i64, columns: i64, _leading: i64, _alignment: u32,
        kind: c_int, _order: c_int,
    ) {
        matrix.put(Descriptor { rows, columns, kind })
    }
    fn cusparseLtSpMMACompressedSize2(
        _handle: *const c_void, matrix: Out<Descriptor>, bytes: Out<usize>, buffer_bytes: Out<usize>,
    ) {
        bytes.put(compressed_bytes(&matrix.get()?))?;
        buffer_bytes.put(0)
    }
    fn cusparseLtMatmulGetWorkspace(_handle: *const c_void, _plan: *const c_void, bytes: Out<usize>) {
        assumed()?;
        bytes.put(0)
    }
    fn cusparseLtMatmulAlgGetAttribute(
        _handle: *const c_void, _algorithm: *const c_void, _attribute: c_int, value: Out<u8>, bytes: usize,
    ) {
        value.put_bytes(&[0; BYTES_OF_AN_ATTRIBUTE][..bytes.min(BYTES_OF_AN_ATTRIBUTE)])
    }
    fn cusparseLtSpMMACompress2(
        _handle: *const c_void, _matrix: *const c_void, _is_a: c_int, _operation: c_int, _dense: u64, _compressed: u64,
        _buffer: u64,
    ) {
        crate::stream::kernel_somewhere();
        assumed()
    }
}

nothing! { Sparse:
    cusparseLtInit cusparseLtDestroy cusparseLtMatDescriptorDestroy cusparseLtMatmulAlgSelectionInit
    cusparseLtMatmulAlgSelectionDestroy cusparseLtMatmulAlgSetAttribute cusparseLtMatmulDescSetAttribute
    cusparseLtMatmulDescriptorInit cusparseLtMatmulPlanDestroy cusparseLtMatmulPlanInit cusparseLtMatDescSetAttribute
}

work! { Sparse: cusparseLtMatmul cusparseLtMatmulSearch cusparseLtSpMMAPrune cusparseLtSpMMAPrune2 }

fn assumed() -> Outcome {
    notice::assume("cuSPARSELt", "is assumed to need no workspace");
    Ok(())
}

/// Half of the values, and two bits each for its position among four neighbours.
fn compressed_bytes(matrix: &Descriptor) -> usize {
    let values = usize::try_from(matrix.rows.saturating_mul(matrix.columns)).unwrap_or(0);
    // `CUDA_R_32F`; `CUDA_R_16F` and `CUDA_R_16BF`; types of one byte.
    let bytes = match matrix.kind {
        0 => 4,
        2 | 14 => 2,
        _ => 1,
    };
    values / 2 * bytes + values / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_matrix_of_half_precision_has_nine_sixteenths_of_its_bytes() {
        let matrix = Descriptor { rows: 64, columns: 128, kind: 2 };
        assert_eq!(compressed_bytes(&matrix), 64 * 128 * 2 * 9 / 16);
    }
}
