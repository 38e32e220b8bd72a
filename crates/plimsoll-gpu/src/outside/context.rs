//! The memory of a process's CUDA context, its pool of local memory, and the driver's reserve.
//!
//! A context contains state and a stack for every thread that the GPU can run at once, about 2 KiB per thread. Half of
//! that is the pool of local memory, which has room for stacks of up to 1,024 bytes.

use super::pages::whole_pages;
use crate::figure::{Basis, Figure};
use crate::{Gpu, Pool};

/// The stack size per thread in a new context.
const FIRST_STACK_BYTES: u64 = 1024;

/// The size of a context per thread that the GPU can run at once.
const THREAD_BYTES: u64 = 2 * FIRST_STACK_BYTES;

/// The reserve of an H100 with driver 580.159.04.
const H100_RESERVE_BYTES: u64 = 503_316_480;
/// The total memory that CUDA reports for that H100.
const H100_TOTAL_BYTES: u64 = 85_017_493_504;

/// The number of threads that a GPU can run at once.
fn threads(gpu: &Gpu) -> u64 {
    u64::from(gpu.multiprocessors.unsigned_abs()) * u64::from(gpu.threads_per_multiprocessor.unsigned_abs())
}

/// The bytes of a context, including the pool of local memory for stacks of up to 1,024 bytes. If this is not known for
/// the GPU, it is 2 KiB per thread that the GPU can run at once; for an RTX 6000 Ada, this gives the published 426 MiB.
///
/// ```
/// let gpu = plimsoll_gpu::named("RTX-6000-Ada")?;
/// assert_eq!(plimsoll_gpu::outside::context(gpu).bytes, 426 << 20);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn context(gpu: &Gpu) -> Figure {
    gpu.known.context.unwrap_or_else(|| Figure::new(by_rule(gpu), Basis::Derived))
}

fn by_rule(gpu: &Gpu) -> u64 {
    threads(gpu) * THREAD_BYTES
}

/// The bytes of a context's pool of local memory after the launch of a kernel with `stack_bytes` of stack per thread. The pool
/// never shrinks. A new context already has a pool for stacks of 1,024 bytes. A launch grows the pool from its current size,
/// which fits the largest stack so far.
///
/// ```
/// use plimsoll_gpu::outside::local_memory_bytes;
/// let gpu = plimsoll_gpu::named("H100")?;
/// // Measured: a kernel with a stack of 4 KiB takes 830,472,192 bytes.
/// assert_eq!(local_memory_bytes(gpu, 4096) - local_memory_bytes(gpu, 0), 830_472_192);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn local_memory_bytes(gpu: &Gpu, stack_bytes: u32) -> u64 {
    let stack_bytes = u64::from(stack_bytes).max(FIRST_STACK_BYTES).next_multiple_of(16);
    whole_pages(threads(gpu) * stack_bytes)
}

/// The memory that the driver reserves. `nvidia-smi`'s total is CUDA's total, `total_bytes`, plus this reserve. If the
/// reserve is not known for the GPU, the H100's fraction is assumed, rounded down to a whole MiB. A GPU without memory
/// of its own has no reserve.
///
/// ```
/// let gpu = plimsoll_gpu::named("H100")?;
/// assert_eq!(plimsoll_gpu::outside::reserve(gpu, gpu.memory_bytes).bytes, 503_316_480);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn reserve(gpu: &Gpu, total_bytes: u64) -> Figure {
    if let Some(figure) = gpu.known.reserve.filter(|_| total_bytes == gpu.memory_bytes) {
        return figure;
    }
    if gpu.pool == Pool::Host {
        return Figure::new(0, Basis::Derived);
    }
    let share = u128::from(total_bytes) * u128::from(H100_RESERVE_BYTES) / u128::from(H100_TOTAL_BYTES);
    Figure::new(u64::try_from(share >> 20).unwrap_or(u64::MAX >> 20) << 20, Basis::Assumed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;

    fn h100() -> &'static Gpu {
        named("H100").unwrap()
    }

    #[test]
    fn the_context_is_the_measured_row_or_two_kibibytes_a_thread() {
        assert_eq!(by_rule(h100()), 553_648_128);
        assert_eq!(context(h100()), Figure::new(552_402_944, Basis::Measured));
        assert_eq!(context(named("H200").unwrap()), context(h100()));
        // Published figures: 426 MiB on an RTX 6000 Ada, and 320 MiB on a Titan V, which has 80 multiprocessors like
        // the V100.
        assert_eq!(context(named("RTX-6000-Ada").unwrap()), Figure::new(446_693_376, Basis::Derived));
        assert_eq!(context(named("V100-16GB").unwrap()), Figure::new(335_544_320, Basis::Derived));
        assert_eq!([446_693_376_u64, 335_544_320].map(|bytes| bytes >> 20), [426, 320]);
    }

    #[test]
    fn half_of_the_context_is_local_memory_for_a_stack_of_a_kibibyte() {
        for stack in [0, 16, 1024] {
            assert_eq!(local_memory_bytes(h100(), stack), 276_824_064, "{stack}");
        }
    }

    #[test]
    fn local_memory_grows_to_the_largest_stack_as_measured() {
        let pool = |stack| local_memory_bytes(h100(), stack);
        assert_eq!(pool(4 << 10) - pool(0), 830_472_192);
        assert_eq!(pool(16 << 10) - pool(4 << 10), 3_321_888_768);
        // NCCL's kernels, in the order of the measured run: ring, broadcast, send.
        assert_eq!(pool(1736) - pool(0), 195_035_136);
        assert_eq!(pool(1752) - pool(1736), 4_194_304);
        assert_eq!(pool(1976) - pool(1752), 60_817_408);
    }

    #[test]
    fn the_total_of_nvidia_smi_is_cudas_and_the_reserve() {
        let reserve = reserve(h100(), h100().memory_bytes);
        assert_eq!(h100().memory_bytes + reserve.bytes, 85_520_809_984);
        assert_eq!(reserve.basis, Basis::Measured);
        let other = super::reserve(named("RTX-4090").unwrap(), 24 << 30);
        assert_eq!((other.bytes, other.basis), (145 << 20, Basis::Assumed));
    }
}
