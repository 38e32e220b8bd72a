//! One product on this thread, computed by the `gemm-f32` and `gemm-f64` crates. The `gemm` crate, which would choose between
//! them, also builds products of complex numbers, which take longer to compile than both.

use std::any::TypeId;

use gemm_common::Parallelism;

use super::matrix::MatrixStrides;
use crate::number::Float;

/// `c = a * b`, added to the old values of `c` if `adds`, for `a` of `m` by `k` and `b` of `k` by `n`. Each matrix is its first element and its
/// strides; the one between batches is not used.
///
/// # Safety
/// All elements of the three matrices exist, and no other thread uses those of `c`.
///
/// # Panics
/// If `T` is neither `f32` nor `f64`.
pub(crate) unsafe fn gemm<T: Float>(
    [m, k, n]: [usize; 3],
    (a, a_strides): (*const T, MatrixStrides),
    (b, b_strides): (*const T, MatrixStrides),
    (c, c_strides): (*mut T, MatrixStrides),
    adds: bool,
) {
    // The kernels prefer an output whose columns are contiguous.
    let ([m, n], (a, a_strides), (b, b_strides), c_strides) = if c_strides.col < c_strides.row {
        ([n, m], (b, b_strides.transposed()), (a, a_strides.transposed()), c_strides.transposed())
    } else {
        ([m, n], (a, a_strides), (b, b_strides), c_strides)
    };
    macro_rules! product {
        ($t:ty, $gemm:expr) => {
            // SAFETY: the types are the same; the caller promises the rest.
            unsafe {
                $gemm(
                    m,
                    n,
                    k,
                    c.cast::<$t>(),
                    c_strides.col as isize,
                    c_strides.row as isize,
                    adds,
                    a.cast::<$t>(),
                    a_strides.col as isize,
                    a_strides.row as isize,
                    b.cast::<$t>(),
                    b_strides.col as isize,
                    b_strides.row as isize,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                )
            }
        };
    }
    if TypeId::of::<T>() == TypeId::of::<f32>() {
        product!(f32, gemm_f32::gemm::f32::get_gemm_fn());
    } else {
        assert!(TypeId::of::<T>() == TypeId::of::<f64>(), "products of 32 and 64 bits");
        product!(f64, gemm_f64::gemm::f64::get_gemm_fn());
    }
}
