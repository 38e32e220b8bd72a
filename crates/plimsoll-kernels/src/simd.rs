//! One source, three instruction sets: AVX-512, AVX2 with FMA, and the one that the build targets.
//!
//! Most kernels are plain loops that the compiler vectorises when it may use the wide registers: they go
//! through [`vectorize`]. The few kernels that keep a tile in registers are written with the [`Simd`]
//! trait and go through [`dispatch`]. The processor's features are detected at run time (std caches the
//! result), so a plain `cargo build --release` is fast everywhere.

/// A register of `LANES` floats and the operations the tile kernel needs.
pub(super) trait Simd: Copy {
    /// Floats in a register.
    const LANES: usize;
    /// The register.
    type Vector: Copy;

    /// A register with all lanes equal to `x`.
    ///
    /// # Safety
    /// Here and below: the processor must have this instruction set, which `dispatch` checks.
    unsafe fn splat(x: f32) -> Self::Vector;
    /// # Safety
    /// `at` must be valid for reading `LANES` floats.
    unsafe fn load(at: *const f32) -> Self::Vector;
    /// # Safety
    /// `at` must be valid for writing `LANES` floats.
    unsafe fn store(at: *mut f32, x: Self::Vector);
    /// `a * b + c`, rounded once if the processor has the instruction.
    ///
    /// # Safety
    /// Like `splat`.
    unsafe fn mul_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Prefetches the cache line of `at`, which may be any address, if there is an instruction for it.
    #[inline(always)]
    fn prefetch(_at: *const f32) {}
}

/// Work that is written with [`Simd`]. `run` must be `#[inline(always)]`, or it is compiled without the wide registers.
pub(super) trait Kernel {
    fn run<S: Simd>(self);
}

/// An instruction set with a build of every kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The widest level that this processor has.
    #[inline(always)]
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
            {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }
}

/// Runs `kernel` with the widest registers that this processor has.
#[inline]
pub(super) fn dispatch(kernel: impl Kernel) {
    // SAFETY: detected.
    unsafe { dispatch_at(Level::detect(), kernel) }
}

/// Runs `kernel` at `level`, for tests of the narrower levels.
///
/// # Safety
/// The processor must support `level`.
#[inline(always)]
pub(super) unsafe fn dispatch_at(level: Level, kernel: impl Kernel) {
    match level {
        Level::Portable => kernel.run::<Portable>(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        Level::Avx2 => unsafe {
            x86::avx2(
                #[inline(always)]
                || kernel.run::<x86::Avx2>(),
            );
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise.
        Level::Avx512 => unsafe {
            x86::avx512(
                #[inline(always)]
                || kernel.run::<x86::Avx512>(),
            );
        },
    }
}

/// Runs `body`, compiled for the widest registers this processor has. Pass an `#[inline(always)]` closure, and mark the
/// closures inside it in the same way: code that is not inlined is not vectorised.
#[inline(always)]
pub(super) fn vectorize<R>(body: impl FnOnce() -> R) -> R {
    match Level::detect() {
        Level::Portable => body(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: detected.
        Level::Avx2 => unsafe { x86::avx2(body) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: detected.
        Level::Avx512 => unsafe { x86::avx512(body) },
    }
}

/// Whether this processor has AVX-512, for which [`Simd::LANES`] is 16.
pub(super) fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Level::detect() == Level::Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether this processor has the instruction that [`dispatch_pairs`] uses: multiply pairs of `bf16`, accumulate in `f32`.
pub(super) fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") {
        return Level::detect() == Level::Avx512;
    }
    false
}

/// Runs `kernel` on numbers that hold a pair of `bf16` in the 32 bits of a float: [`Simd::mul_add`] adds both products of
/// two pairs to a float.
///
/// # Panics
/// If [`has_pairs`] is false for this processor.
#[inline]
pub(super) fn dispatch_pairs(kernel: impl Kernel) {
    assert!(has_pairs(), "this processor has no products of pairs of bf16");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: detected.
    unsafe {
        x86::avx512_pairs(
            #[inline(always)]
            || kernel.run::<x86::Pairs>(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    drop(kernel);
}

/// Eight floats in an array: for processors without AVX2, and other architectures.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Simd for Portable {
    const LANES: usize = 8;
    type Vector = [f32; 8];

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 8] {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> [f32; 8] {
        // SAFETY: the caller guarantees it; arrays of floats need no more alignment than a float.
        unsafe { at.cast::<[f32; 8]>().read() }
    }
    #[inline(always)]
    unsafe fn store(at: *mut f32, x: [f32; 8]) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[f32; 8]>().write(x) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        // Not f32::mul_add: without the instruction, that would be a library call per lane.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Simd;
    use std::arch::x86_64::*;

    /// Code that is inlined into these functions may use their registers.
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    pub(super) fn avx512<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    #[target_feature(enable = "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
    pub(super) fn avx512_pairs<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    macro_rules! simd {
        ($name:ident, $lanes:literal, $vector:ty, $splat:ident, $load:ident, $store:ident,
         |$a:ident, $b:ident, $c:ident| $fma:expr) => {
            #[derive(Clone, Copy)]
            pub(super) struct $name;

            impl Simd for $name {
                const LANES: usize = $lanes;
                type Vector = $vector;

                #[inline(always)]
                unsafe fn splat(x: f32) -> $vector {
                    // SAFETY: the caller guarantees, here and below, that the processor has the instruction.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(at: *const f32) -> $vector {
                    // SAFETY: the caller guarantees that `at` is readable.
                    unsafe { $load(at) }
                }
                #[inline(always)]
                unsafe fn store(at: *mut f32, x: $vector) {
                    // SAFETY: the caller guarantees that `at` is writable.
                    unsafe { $store(at, x) }
                }
                #[inline(always)]
                fn prefetch(at: *const f32) {
                    // SAFETY: a prefetch is only a hint and reads nothing; every processor of this architecture supports
                    // it.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
                #[inline(always)]
                unsafe fn mul_add($a: $vector, $b: $vector, $c: $vector) -> $vector {
                    // SAFETY: as `splat`.
                    unsafe { $fma }
                }
            }
        };
    }

    simd!(Avx512, 16, __m512, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, |a, b, c| {
        _mm512_fmadd_ps(a, b, c)
    });
    // The same registers, with pairs of `bf16` in the lanes of the two factors.
    simd!(Pairs, 16, __m512, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, |a, b, c| {
        _mm512_dpbf16_ps(
            c,
            std::mem::transmute::<__m512, __m512bh>(a),
            std::mem::transmute::<__m512, __m512bh>(b),
        )
    });
    simd!(Avx2, 8, __m256, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, |a, b, c| {
        _mm256_fmadd_ps(a, b, c)
    });
}
