//! Products of 16-bit floats on the host: the dtypes that kernels read, and the scratch memory into which a product packs its
//! operands.

use crate::cpu::kernels::matmul::MatmulShape;
use crate::cpu::kernels::short_matmul::short_matmul_scratch_len;
use crate::dtype::DType;
use crate::facts::{DeviceFacts, DeviceKind};

/// Whether the dtype is a 16-bit float.
pub(super) fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// `Kernel::cpu_type` of an operator that reads 16-bit floats without conversion.
pub(super) fn cpu_type(dtype: DType) -> DType {
    if is_short(dtype) { dtype } else { dtype.accumulator() }
}

/// The scratch memory of a product, in bytes.
pub(super) fn scratch(shape: &MatmulShape, dtype: DType, device: DeviceFacts) -> u64 {
    match is_short(dtype) && device.kind == DeviceKind::Cpu && shape.batch * shape.m * shape.n > 0 {
        true => (short_matmul_scratch_len(shape) * DType::F32.size()) as u64,
        false => 0,
    }
}
