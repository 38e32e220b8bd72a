//! Converts elements of any type to the three compute types of kernels, and back.
//!
//! A [`Compute`] type (`f32`, `f64`, `i64`: [`DType::accumulator`]) can read and write every element type in short runs,
//! which stay in the L1 cache. So an elementwise kernel supports nine types with three bodies and no temporaries, and any
//! type can be converted to any other with the same two steps.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::parallel::{PIECE, for_each_piece};
use super::simd::vectorize;
use super::walk::Walk;
use crate::dtype::{DType, Element, by_dtype};

/// The number of elements to read or write at a time.
pub const RUN: usize = 512;

/// A read-only operand with elements of any type.
#[derive(Clone, Copy, Debug)]
pub struct AnyOperand<'a> {
    pub bytes: &'a [u8],
    pub dtype: DType,
    /// The stride of each dimension, in elements; 0 broadcasts.
    pub strides: &'a [usize],
}

/// Reads elements `from, from + stride, …` until `to` is full.
pub type Load<C> = fn(bytes: &[u8], from: usize, stride: usize, to: &mut [C]);
/// Writes values contiguously.
pub type Store<C> = fn(values: &[C], to: &mut [u8]);

/// A compute type of kernels.
pub trait Compute: Element<Stored = Self> + bytemuck::Pod + Default {
    /// The function that converts elements of a type to this one.
    fn load(dtype: DType) -> Load<Self>;
    /// The function that converts values of this type to elements of another.
    fn store(dtype: DType) -> Store<Self>;
}

/// Converts one value to a different type: rounded to nearest, towards zero for integers (conversions between integers wrap), and
/// `true` for values that are not zero. A `uint8` is the lowest byte of the integer, as in PyTorch; other types clamp to their
/// range.
trait As<To> {
    fn as_(self) -> To;
}

macro_rules! as_number {
    ($($from:ty => $($to:ty)*;)*) => { $($(
        impl As<$to> for $from {
            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one body for all pairs")]
            fn as_(self) -> $to { self as $to }
        }
    )*)* };
}
as_number! {
    f64 => f64 f32 i64 i32 i16;
    f32 => f64 f32 i64 i32 i16;
    i64 => f64 f32 i64 i32 i16 u8;
    i32 => f64 f32 i64;
    i16 => f64 f32 i64;
    u8 => f64 f32 i64;
}

macro_rules! as_byte {
    ($($from:ty),*) => { $(
        impl As<u8> for $from {
            #[inline(always)]
            fn as_(self) -> u8 { self as i64 as u8 }
        }
    )* };
}
as_byte!(f64, f32);

/// Like `bf16::to_f32`, without its branch for NaN: the bits become the upper half of the `f32`.
#[inline(always)]
fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Like `bf16::from_f32` (rounds to nearest, ties to even), in a form that vectorises.
#[inline(always)]
fn narrow(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x0040;
    bf16::from_bits(if x.is_nan() { quiet } else { rounded })
}

macro_rules! as_short {
    ($($compute:ty),*) => { $(
        impl As<bf16> for $compute {
            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "one body for all")]
            fn as_(self) -> bf16 { narrow(self as f32) }
        }
        impl As<f16> for $compute {
            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "one body for all")]
            fn as_(self) -> f16 { f16::from_f32(self as f32) }
        }
        impl As<$compute> for bf16 {
            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one body for all")]
            fn as_(self) -> $compute { widen(self) as $compute }
        }
        impl As<$compute> for f16 {
            #[inline(always)]
            #[allow(clippy::cast_lossless, clippy::unnecessary_cast, reason = "one body for all")]
            fn as_(self) -> $compute { self.to_f32() as $compute }
        }
        impl As<bool> for $compute {
            #[inline(always)]
            fn as_(self) -> bool { self != (0 as $compute) }
        }
        impl As<$compute> for bool {
            #[inline(always)]
            fn as_(self) -> $compute { u8::from(self) as $compute }
        }
    )* };
}
as_short!(f64, f32, i64);

fn load_as<T: Element + As<C>, C: Compute>(bytes: &[u8], from: usize, stride: usize, to: &mut [C]) {
    let all: &[T::Stored] = bytemuck::cast_slice(bytes);
    let from = &all[from.min(all.len())..];
    vectorize(
        #[inline(always)]
        || match stride {
            1 => to.iter_mut().zip(from).for_each(
                #[inline(always)]
                |(to, &x)| *to = T::from_stored(x).as_(),
            ),
            0 => to.fill(T::from_stored(from[0]).as_()),
            _ => to.iter_mut().enumerate().for_each(
                #[inline(always)]
                |(i, to)| *to = T::from_stored(from[i * stride]).as_(),
            ),
        },
    );
}

fn store_as<T: Element, C: Compute + As<T>>(values: &[C], to: &mut [u8]) {
    let to: &mut [T::Stored] = bytemuck::cast_slice_mut(to);
    vectorize(
        #[inline(always)]
        || {
            to.iter_mut().zip(values).for_each(
                #[inline(always)]
                |(to, &x)| *to = x.as_().to_stored(),
            );
        },
    );
}

/// The processor has special instructions for half precision.
fn load_f16(bytes: &[u8], from: usize, stride: usize, to: &mut [f32]) {
    if stride != 1 {
        return load_as::<f16, f32>(bytes, from, stride, to);
    }
    let all: &[f16] = bytemuck::cast_slice(bytes);
    all[from..][..to.len()].convert_to_f32_slice(to);
}

fn store_f16(values: &[f32], to: &mut [u8]) {
    let to: &mut [f16] = bytemuck::cast_slice_mut(to);
    to.convert_from_f32_slice(values);
}

macro_rules! compute {
    ($t:ty, $load_f16:expr, $store_f16:expr) => {
        impl Compute for $t {
            fn load(dtype: DType) -> Load<$t> {
                match dtype {
                    DType::F16 => $load_f16,
                    _ => by_dtype!(dtype, T => load_as::<T, $t>),
                }
            }

            fn store(dtype: DType) -> Store<$t> {
                match dtype {
                    DType::F16 => $store_f16,
                    _ => by_dtype!(dtype, T => store_as::<T, $t>),
                }
            }
        }
    };
}
compute!(f32, load_f16, store_f16);
compute!(f64, load_as::<f16, f64>, store_as::<f16, f64>);
compute!(i64, load_as::<f16, i64>, store_as::<f16, i64>);

/// `dst[i] = src[i]`, converted to a different type, for each position of `shape`.
///
/// # Panics
/// If a slice is too short for its strides.
pub fn convert(
    shape: &[usize],
    src: AnyOperand<'_>,
    (dst, dst_dtype, dst_strides): (&mut [u8], DType, &[usize]),
) {
    let through = match src.dtype.accumulator() {
        DType::F64 => convert_through::<f64>,
        DType::F32 => convert_through::<f32>,
        _ => convert_through::<i64>,
    };
    through(shape, src, (dst, dst_dtype, dst_strides));
}

fn convert_through<C: Compute>(
    shape: &[usize],
    src: AnyOperand<'_>,
    (dst, dst_dtype, dst_strides): (&mut [u8], DType, &[usize]),
) {
    let walk = Walk::new(shape, [src.strides, dst_strides]);
    let (load, store, size) = (C::load(src.dtype), C::store(dst_dtype), dst_dtype.size());
    let [from_step, to_step] = walk.run_strides();
    let reads = walk.span(0) * src.dtype.size();
    assert!(src.bytes.len() >= reads, "convert: src of {} bytes where {reads} are read", src.bytes.len());
    let dense = Walk::new(shape, [dst_strides]);
    if dense.run_len() == dense.len() && dense.run_strides() == [1] {
        return for_each_piece(&mut dst[..walk.len() * size], PIECE * size, |start, piece| {
            let start = start / size;
            walk.for_each_run(start..start + piece.len() / size, |at, [from, _], len| {
                runs(len, |i, n| {
                    let mut values = [C::default(); RUN];
                    load(src.bytes, from + i * from_step, from_step, &mut values[..n]);
                    store(&values[..n], &mut piece[(at - start + i) * size..][..n * size]);
                });
            });
        });
    }
    let mut bytes_of_run = [0u64; RUN];
    walk.for_each_run(0..walk.len(), |_, [from, to], len| {
        runs(len, |i, n| {
            let mut values = [C::default(); RUN];
            load(src.bytes, from + i * from_step, from_step, &mut values[..n]);
            let bytes_of_run = &mut bytemuck::cast_slice_mut(&mut bytes_of_run)[..n * size];
            store(&values[..n], bytes_of_run);
            for (k, element) in bytes_of_run.chunks_exact(size).enumerate() {
                dst[(to + (i + k) * to_step) * size..][..size].copy_from_slice(element);
            }
        });
    });
}

/// Splits `len` elements into short runs: `body(start, length)`.
#[inline(always)]
pub fn runs(len: usize, mut body: impl FnMut(usize, usize)) {
    for start in (0..len).step_by(RUN) {
        body(start, RUN.min(len - start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast<T: Element, U: Element>(from: &[T]) -> Vec<U> {
        let from: Vec<T::Stored> = from.iter().map(|x| x.to_stored()).collect();
        let mut to = vec![<U::Stored as bytemuck::Zeroable>::zeroed(); from.len()];
        let src = AnyOperand { bytes: bytemuck::cast_slice(&from), dtype: T::DTYPE, strides: &[1] };
        convert(&[from.len()], src, (bytemuck::cast_slice_mut(&mut to), U::DTYPE, &[1]));
        to.into_iter().map(U::from_stored).collect()
    }

    #[test]
    fn floats_become_whole_numbers_towards_zero_and_in_range() {
        assert_eq!(
            cast::<f32, u8>(&[1.9, -3.0, 300.0, f32::NAN]),
            [1, 253, 44, 0],
            "as PyTorch, by way of int64"
        );
        assert_eq!(cast::<f32, i16>(&[-1.9, 1e9, -1e9, f32::NAN]), [-1, i16::MAX, i16::MIN, 0]);
        assert_eq!(cast::<i64, f32>(&[-7, 1 << 40]), [-7.0, 1_099_511_627_776.0]);
        assert_eq!(cast::<i64, u8>(&[-1, 257]), [255, 1], "whole numbers wrap, as in PyTorch");
        assert_eq!(cast::<f64, bool>(&[0.0, -0.0, 0.1, f64::NAN]), [false, false, true, true]);
        assert_eq!(cast::<bool, f16>(&[true, false]), [f16::ONE, f16::ZERO]);
    }

    #[test]
    fn short_floats_round_as_the_library_does() {
        let values: Vec<f32> = (0..200_000u32)
            .map(|i| f32::from_bits(i.wrapping_mul(2_654_435_761)))
            .chain([f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, -0.0])
            .collect();
        let same = |got: f32, expected: f32| got == expected || (got.is_nan() && expected.is_nan());
        for (&x, got) in values.iter().zip(cast::<f32, bf16>(&values)) {
            assert!(same(got.to_f32(), bf16::from_f32(x).to_f32()), "{x}");
        }
        for (&x, got) in values.iter().zip(cast::<f32, f16>(&values)) {
            assert!(same(got.to_f32(), f16::from_f32(x).to_f32()), "{x}");
        }
        let short: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        for (x, got) in short.iter().zip(cast::<bf16, f32>(&short)) {
            assert!(same(got, x.to_f32()), "{x}");
        }
    }

    #[test]
    fn a_conversion_follows_any_strides() {
        let src: Vec<i32> = (0..12).collect();
        let mut dst = [0f64; 12];
        let from = AnyOperand { bytes: bytemuck::cast_slice(&src), dtype: DType::I32, strides: &[4, 1] };
        convert(&[3, 4], from, (bytemuck::cast_slice_mut(&mut dst), DType::F64, &[1, 3]));
        assert!((0..12).all(|i| dst[i % 4 * 3 + i / 4] == i as f64));
    }
}
