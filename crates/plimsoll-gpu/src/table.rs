//! The rows of the table, in listing order. A device that is specified only by its compute capability gets the
//! properties of the first row with that capability.
//!
//! Multiprocessors, caches and shared memory come from NVIDIA's architecture white papers and from the CUDA programming
//! guide's table of compute capabilities; each row names its other sources.

mod ada;
mod ampere;
mod blackwell;
mod hopper;
mod older;

use crate::Gpu;

/// The rows of each generation, which its file lists.
const GENERATIONS: [&[Gpu]; 5] = [hopper::GPUS, blackwell::GPUS, ada::GPUS, ampere::GPUS, older::GPUS];

/// All GPUs of the table.
///
/// ```
/// assert!(plimsoll_gpu::GPUS.iter().any(|gpu| gpu.name == "B200"));
/// ```
pub const GPUS: &[Gpu] = &joined::<{ count() }>();

const fn count() -> usize {
    let (mut count, mut generation) = (0, 0);
    while generation < GENERATIONS.len() {
        count += GENERATIONS[generation].len();
        generation += 1;
    }
    count
}

/// The rows of all generations, as one list.
const fn joined<const COUNT: usize>() -> [Gpu; COUNT] {
    let mut all = [GENERATIONS[0][0]; COUNT];
    let (mut count, mut generation) = (0, 0);
    while generation < GENERATIONS.len() {
        let (mut row, rows) = (0, GENERATIONS[generation]);
        while row < rows.len() {
            all[count] = rows[row];
            (count, row) = (count + 1, row + 1);
        }
        generation += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bandwidth;

    /// Whether two numbers differ by less than this fraction of the second.
    fn near(value: f64, expected: f64, share: f64) -> bool {
        (value - expected).abs() < share * expected
    }

    /// FP32 lanes per multiprocessor: 64 where the programming guide says so, otherwise 128.
    fn lanes(capability: (i32, i32)) -> f64 {
        if matches!(capability, (6, 0) | (7, _) | (8, 0)) { 64.0 } else { 128.0 }
    }

    #[test]
    fn the_f32_rate_is_that_of_the_multiprocessors_at_their_clock() {
        for gpu in GPUS {
            let per_s =
                f64::from(gpu.multiprocessors) * lanes(gpu.capability) * 2.0 * f64::from(gpu.clock_khz) * 1e3;
            assert!(near(gpu.flops.f32 as f64, per_s, 0.07), "{}: {} of {per_s}", gpu.name, gpu.flops.f32);
        }
    }

    #[test]
    fn the_memory_bandwidth_is_that_of_the_bus_at_its_clock() {
        for gpu in GPUS {
            let per_s = f64::from(gpu.bus_bits) / 8.0 * 2.0 * f64::from(gpu.memory_clock_khz) * 1e3;
            let given = gpu.bandwidth.memory_bytes_per_s as f64;
            assert!(near(given, per_s, 0.03), "{}: {given} of {per_s}", gpu.name);
        }
    }

    #[test]
    fn narrower_types_are_not_slower_and_types_come_with_their_generation() {
        for gpu in GPUS {
            let flops = gpu.flops;
            let rates = [Some(flops.f64), Some(flops.f32), flops.tf32, Some(flops.f16), flops.fp8];
            let rates: Vec<u64> = rates.into_iter().flatten().collect();
            assert!(rates.is_sorted(), "{}: {rates:?}", gpu.name);
            assert!(flops.bf16.is_none_or(|bf16| bf16 == flops.f16), "{}", gpu.name);
            assert_eq!(flops.bf16.is_some(), gpu.capability >= (8, 0), "{}", gpu.name);
            assert_eq!(flops.tf32.is_some(), gpu.capability >= (8, 0), "{}", gpu.name);
            assert_eq!(flops.fp8.is_some(), gpu.capability >= (8, 9), "{}", gpu.name);
        }
    }

    #[test]
    fn bandwidths_and_sizes_are_ordered_as_on_any_gpu() {
        for gpu in GPUS {
            let Bandwidth { memory_bytes_per_s, pcie_bytes_per_s, nvlink_bytes_per_s } = gpu.bandwidth;
            assert!(nvlink_bytes_per_s.is_none_or(|nvlink| pcie_bytes_per_s <= nvlink), "{}", gpu.name);
            assert!(nvlink_bytes_per_s.unwrap_or(pcie_bytes_per_s) < memory_bytes_per_s, "{}", gpu.name);
            assert!((7 << 30..288 << 30).contains(&gpu.memory_bytes), "{}", gpu.name);
            assert!(gpu.shared_bytes_per_block <= gpu.shared_bytes_per_multiprocessor, "{}", gpu.name);
            assert!(gpu.l2_bytes >= 2 << 20 && gpu.power_watts >= 70, "{}", gpu.name);
            assert!(!gpu.datasheet.is_empty() && !gpu.memory_source.is_empty(), "{}", gpu.name);
        }
    }

    #[test]
    fn names_differ() {
        let mut names: Vec<&str> = GPUS.iter().flat_map(|gpu| [gpu.name, gpu.card]).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
