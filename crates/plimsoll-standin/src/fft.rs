//! cuFFT: plans that compute nothing, and a model of their workspaces.
//!
//! cuFFT does not document its workspaces. On an H200 (`tests/pytorch/workspaces/`, CUDA 13.0), a length that a single
//! kernel handles needs none, a longer one needs a copy of the data, and a length with a large prime factor is computed
//! as a convolution (Bluestein), which needs two buffers of more than twice the length. The set of single-kernel
//! lengths is known only approximately.

use std::ffi::c_int;

use plimsoll_gpu::outside::Library;

use crate::argument::{Out, little_endian};
use crate::call::{calls, new_handle, nothing};
use crate::error::Failure;
use crate::notice;
use crate::outside;
use crate::stream::work;
use crate::workspace;

/// The maximum number of bytes of complex numbers that a single kernel handles: 16,384 numbers of 32 bits.
const ONE_KERNEL_BYTES: u64 = 1 << 16;
/// Lengths up to this one usually have their own kernel, regardless of their factors.
const SHORT: u64 = 1024;

/// A transform: `batch` signals or images of these lengths, last dimension contiguous.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    lengths: Vec<u64>,
    batch: u64,
    /// Bytes of a real number.
    real_bytes: u64,
    /// Whether the input or the output is real.
    is_real: bool,
}

impl Plan {
    fn workspace_bytes(&self) -> u64 {
        let complex_bytes = 2 * self.real_bytes;
        match self.lengths.as_slice() {
            [] => 0,
            &[length] if self.is_real => self.real_bytes_of(length),
            &[length] if largest_prime(length) > self.largest_kernel_prime() => {
                self.batch * 2 * complex_bytes * padded(length)
            }
            &[length] if self.one_kernel_takes(length) => 0,
            &[length] => self.batch * length * complex_bytes,
            lengths if lengths.iter().all(|length| self.one_kernel_takes(*length)) => 0,
            [rows @ .., last] => {
                let columns = if self.is_real { last / 2 + 1 } else { *last };
                self.batch * rows.iter().product::<u64>() * columns * complex_bytes
            }
        }
    }

    /// A one-dimensional transform with a real side: an even length is computed with pairs of reals as complex numbers,
    /// an odd length with two signals as one.
    fn real_bytes_of(&self, length: u64) -> u64 {
        let bluestein = largest_prime(length) > self.largest_kernel_prime();
        if length <= SHORT || (length.is_power_of_two() && self.one_kernel_takes(length)) {
            0
        } else if length.is_multiple_of(2) {
            self.batch * length * self.real_bytes
        } else {
            let pairs = self.batch.div_ceil(2);
            let convolved = if bluestein { 2 * padded(length) } else { 0 };
            pairs * (2 * length + convolved) * 2 * self.real_bytes
        }
    }

    fn one_kernel_takes(&self, length: u64) -> bool {
        length * self.real_bytes <= ONE_KERNEL_BYTES
    }

    fn largest_kernel_prime(&self) -> u64 {
        ONE_KERNEL_BYTES / 4 / self.real_bytes
    }
}

/// At least twice the length, with small prime factors only.
fn padded(length: u64) -> u64 {
    (2 * length - 1..).find(|&padded| largest_prime(padded) <= 7).unwrap_or(2 * length)
}

fn largest_prime(mut number: u64) -> u64 {
    let (mut largest, mut factor) = (1, 2);
    while factor * factor <= number {
        while number.is_multiple_of(factor) {
            (number, largest) = (number / factor, factor);
        }
        factor += 1;
    }
    largest.max(number)
}

/// Bytes of the real component of a `cudaDataType`, and whether the type is complex.
fn element(kind: c_int) -> (u64, bool) {
    let bytes = match kind {
        1 | 5 => 8,
        2 | 6 | 14 | 15 => 2,
        _ => 4,
    };
    (bytes, [4, 5, 6, 15].contains(&kind))
}

calls! { Fft:
    /// A plan's handle is a small integer.
    fn cufftCreate(plan: Out<c_int>) {
        outside::used(Library::CuFft)?;
        plan.put(c_int::try_from(new_handle() % (1 << 30)).unwrap_or(1))
    }
    /// The arguments are the rank, the sizes, both layouts, and the output: the workspace's bytes.
    fn cufftXtMakePlanMany(
        _plan: c_int, rank: c_int, lengths: Out<u8>, _in: u64, _in_stride: u64, _in_distance: u64, in_kind: c_int,
        _out: u64, _out_stride: u64, _out_distance: u64, out_kind: c_int, batch: u64, bytes: Out<u64>,
    ) {
        let lengths = lengths.get_bytes(8 * usize::try_from(rank).map_err(|_| Failure::InvalidValue)?)?;
        let lengths = lengths.chunks(8).map(|length| little_endian(length).unsigned_abs().max(1)).collect();
        let [(real_bytes, in_complex), (_, out_complex)] = [in_kind, out_kind].map(element);
        let plan = Plan { lengths, batch, real_bytes, is_real: !(in_complex && out_complex) };
        bytes.put(workspace::asked(notice::CUFFT, || plan.workspace_bytes()))
    }
}

nothing! { Fft: cufftDestroy cufftSetAutoAllocation cufftSetStream cufftSetWorkArea }

work! { Fft: cufftXtExec }

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = include_str!("../tests/pytorch/workspaces/transforms-h200-2.11.0.txt");

    /// Plans of 32 and 64 bits on the H200, with the workspace bytes of each.
    fn measured() -> impl Iterator<Item = (Plan, u64)> {
        MEASURED.lines().filter_map(|line| {
            let (real_bytes, is_real) = match line.split(' ').next()? {
                "r2c" | "c2r" => (4, true),
                "c2c" => (4, false),
                "d2z" | "z2d" => (8, true),
                "z2z" => (8, false),
                _ => return None,
            };
            let words: Vec<&str> = line.split(' ').collect();
            let lengths = words[1].split('x').map(|length| length.parse().unwrap()).collect();
            let plan = Plan { lengths, batch: words[2].parse().unwrap(), real_bytes, is_real };
            Some((plan, words[3].parse().unwrap()))
        })
    }

    #[test]
    fn the_model_is_as_near_to_the_card_as_the_documents_say() {
        let share = |is_near: fn(u64, u64) -> bool| {
            let near = measured().filter(|(plan, card)| is_near(plan.workspace_bytes(), *card)).count();
            format!("{:.0} %", 100.0 * near as f64 / measured().count() as f64)
        };
        // The fraction within 2 % or 4 KiB, and the fraction that is too small.
        let figures = [
            share(|ours, card| ours.abs_diff(card) <= card / 50 + 4096),
            share(|ours, card| ours + 4096 < card - card / 50),
        ];
        assert_eq!(figures, ["93 %", "4 %"]);
    }
}
