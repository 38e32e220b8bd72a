//! Products of 16-bit floats on the host, for the operators that have one: in which types their kernels read, and the scratch that a
//! product packs its operands in.

use crate::cpu::kernels::matmul::MatmulShape;
use crate::cpu::kernels::short_matmul::short_matmul_scratch_len;
use crate::dtype::DType;
use crate::facts::{DeviceFacts, DeviceKind};

/// Whether elements are floats of 16 bits.
pub(super) fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// `Kernel::cpu_type` of an operator that reads 16-bit floats where they lie.
pub(super) fn cpu_type(dtype: DType) -> DType {
    if is_short(dtype) { dtype } else { dtype.accumulator() }
}

/// Bytes of scratch of a product.
pub(super) fn scratch(shape: &MatmulShape, dtype: DType, device: DeviceFacts) -> u64 {
    match is_short(dtype) && device.kind == DeviceKind::Cpu && shape.batch * shape.m * shape.n > 0 {
        true => (short_matmul_scratch_len(shape) * DType::F32.size()) as u64,
        false => 0,
    }
}
