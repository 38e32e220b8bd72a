//! Slices of a GPU: MIG ([`slice`]).
//!
//! NVIDIA's MIG user guide (Supported MIG Profiles) gives each profile's fraction of the memory and of the L2 cache.
//! The sizes and multiprocessor counts are those that `nvidia-smi mig -lgip` prints; the memory differs between drivers
//! by up to 2 GiB.

use crate::gpu::{Bandwidth, FlopRates, Gpu, KnownBytes};

/// A profile of one or several GPUs.
#[derive(Debug)]
struct Profile {
    gpus: &'static [&'static str],
    /// Its name, such as `3g.40gb`.
    name: &'static str,
    /// The total memory that CUDA reports, in MiB.
    mebibytes: u64,
    multiprocessors: i32,
    /// How many eighths it has of the memory, the bandwidth and the L2 cache.
    eighths: u32,
}

const fn of(
    gpus: &'static [&'static str],
    name: &'static str,
    mebibytes: u64,
    multiprocessors: i32,
    eighths: u32,
) -> Profile {
    Profile { gpus, name, mebibytes, multiprocessors, eighths }
}

/// Sources of the sizes: `nvidia-smi mig -lgip` in NVIDIA/mig-parted#120 (H200), #166 and #187 (B200), and the
/// documentation of several clusters (A100, H100). For the three largest profiles of the B200, they are the guide's
/// fractions, in steps of one slice with 18 multiprocessors.
const PROFILES: [Profile; 33] = [
    of(&["A100-40GB"], "1g.5gb", 4_864, 14, 1),
    of(&["A100-40GB"], "1g.10gb", 9_856, 14, 2),
    of(&["A100-40GB"], "2g.10gb", 9_856, 28, 2),
    of(&["A100-40GB"], "3g.20gb", 19_968, 42, 4),
    of(&["A100-40GB"], "4g.20gb", 19_968, 56, 4),
    of(&["A100-40GB"], "7g.40gb", 40_192, 98, 8),
    of(&["A100-80GB"], "1g.10gb", 9_728, 14, 1),
    of(&["A100-80GB"], "1g.20gb", 19_968, 14, 2),
    of(&["A100-80GB"], "2g.20gb", 19_968, 28, 2),
    of(&["A100-80GB"], "3g.40gb", 40_192, 42, 4),
    of(&["A100-80GB"], "4g.40gb", 40_192, 56, 4),
    of(&["A100-80GB"], "7g.80gb", 80_640, 98, 8),
    of(&["H100"], "1g.10gb", 9_984, 16, 1),
    of(&["H100"], "1g.20gb", 20_096, 26, 2),
    of(&["H100"], "2g.20gb", 20_096, 32, 2),
    of(&["H100"], "3g.40gb", 40_448, 60, 4),
    of(&["H100"], "4g.40gb", 40_448, 64, 4),
    of(&["H100"], "7g.80gb", 81_152, 132, 8),
    of(&["H200"], "1g.18gb", 16_384, 16, 1),
    of(&["H200"], "1g.35gb", 33_024, 26, 2),
    of(&["H200"], "2g.35gb", 33_024, 32, 2),
    of(&["H200"], "3g.71gb", 71_168, 60, 4),
    of(&["H200"], "4g.71gb", 71_168, 64, 4),
    of(&["H200"], "7g.141gb", 143_156, 132, 8),
    of(&["B200"], "1g.23gb", 20_992, 18, 1),
    of(&["B200"], "1g.45gb", 45_312, 30, 2),
    of(&["B200"], "2g.45gb", 45_312, 36, 2),
    of(&["B200"], "3g.90gb", 91_136, 54, 4),
    of(&["B200"], "4g.90gb", 91_136, 72, 4),
    of(&["B200"], "7g.180gb", 182_629, 148, 8),
    of(&["GB200"], "1g.24gb", 20_480, 18, 1),
    of(&["GB200"], "1g.47gb", 46_592, 32, 2),
    of(&["GB200"], "2g.47gb", 46_592, 38, 2),
];

/// A slice of a GPU, described as a separate GPU: with the slice's memory and multiprocessors, and its share of the L2
/// cache, the bandwidth and the FLOP/s. It has no NVLink, because slices cannot communicate with each other. Media
/// extensions (`1g.10gb+me`) make no difference.
///
/// ```
/// let gpu = plimsoll_gpu::named("H100")?;
/// let slice = plimsoll_gpu::slice(gpu, "3g.40gb").map_err(|_| plimsoll_gpu::UnknownGpu::NotListed)?;
/// assert_eq!((slice.multiprocessors, slice.memory_bytes), (60, 40_448 << 20));
/// assert_eq!(slice.card, "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
///
/// # Errors
///
/// The profiles that the GPU has, if this is not one of them; empty if the GPU is not known to support MIG.
pub fn slice(gpu: &Gpu, profile: &str) -> Result<Gpu, Vec<&'static str>> {
    let profiles = || PROFILES.iter().filter(|it| it.gpus.contains(&gpu.name));
    let plain = profile.trim().to_ascii_lowercase();
    let plain = plain.split('+').next().unwrap_or_default();
    let Some(found) = profiles().find(|it| it.name == plain) else {
        return Err(profiles().map(|it| it.name).collect());
    };
    let of_memory = |number: u64| number * u64::from(found.eighths) / 8;
    let eighths = i32::try_from(found.eighths).unwrap_or(8);
    let (all, own) = (i128::from(gpu.multiprocessors), i128::from(found.multiprocessors));
    let of_threads = |per_s: u64| u64::try_from(i128::from(per_s) * own / all).unwrap_or(per_s);
    let FlopRates { f64, f32, tf32, f16, bf16, fp8, i8 } = gpu.flops;
    Ok(Gpu {
        name: format!("{}:{}", gpu.name, found.name).leak(),
        card: format!("{} MIG {}", gpu.card, found.name).leak(),
        memory_bytes: (found.mebibytes << 20).min(gpu.memory_bytes),
        memory_source: "nvidia-smi mig -lgip, or the fraction in NVIDIA's MIG user guide",
        multiprocessors: found.multiprocessors,
        l2_bytes: gpu.l2_bytes / 8 * eighths,
        bus_bits: gpu.bus_bits / 8 * eighths,
        bandwidth: Bandwidth {
            memory_bytes_per_s: of_memory(gpu.bandwidth.memory_bytes_per_s),
            nvlink_bytes_per_s: None,
            ..gpu.bandwidth
        },
        flops: FlopRates {
            f64: of_threads(f64),
            f32: of_threads(f32),
            tf32: tf32.map(of_threads),
            f16: of_threads(f16),
            bf16: bf16.map(of_threads),
            fp8: fp8.map(of_threads),
            i8: i8.map(of_threads),
        },
        // Code has the same size as on the whole GPU. The context depends on the multiprocessors.
        known: KnownBytes { reserve: None, context: None, ..gpu.known },
        ..*gpu
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;
    use crate::outside::{Basis, Library, Loading, context, local_memory_bytes};

    fn made(gpu: &str, profile: &str) -> Gpu {
        slice(named(gpu).unwrap(), profile).unwrap()
    }

    #[test]
    fn each_profile_has_its_memory_multiprocessors_context_and_bandwidth() {
        // According to the rule, a context takes 2 KiB for each of a multiprocessor's 2,048 threads: 4 MiB.
        for (gpu, profile, mebibytes, multiprocessors, context_mib, giga_per_s, l2_mib) in [
            ("A100-40GB", "1g.5gb", 4_864, 14, 56, 194, 5),
            ("A100-40GB", "3g.20gb", 19_968, 42, 168, 777, 20),
            ("A100-80GB", "1g.10gb", 9_728, 14, 56, 254, 5),
            ("A100-80GB", "7g.80gb", 80_640, 98, 392, 2_039, 40),
            ("H100", "1g.10gb", 9_984, 16, 64, 419, 6),
            ("H100", "1g.20gb", 20_096, 26, 104, 838, 12),
            ("H100", "3g.40gb", 40_448, 60, 240, 1_676, 25),
            ("H200", "1g.18gb", 16_384, 16, 64, 600, 7),
            ("H200", "3g.71gb", 71_168, 60, 240, 2_400, 30),
            ("B200", "1g.23gb", 20_992, 18, 72, 962, 15),
            ("B200", "4g.90gb", 91_136, 72, 288, 3_850, 63),
        ] {
            let it = made(gpu, profile);
            let found = (it.memory_bytes >> 20, it.multiprocessors, context(&it).bytes >> 20);
            assert_eq!(found, (mebibytes, multiprocessors, context_mib), "{gpu} {profile}");
            assert_eq!(it.bandwidth.memory_bytes_per_s / 1_000_000_000, giga_per_s, "{gpu} {profile}");
            assert_eq!((it.l2_bytes >> 20, context(&it).basis), (l2_mib, Basis::Derived), "{gpu} {profile}");
            assert_eq!(it.bandwidth.nvlink_bytes_per_s, None);
        }
    }

    #[test]
    fn every_profile_is_a_part_of_its_gpu_and_larger_ones_have_more() {
        for profile in &PROFILES {
            for name in profile.gpus {
                let (whole, part) = (named(name).unwrap(), made(name, profile.name));
                assert!(part.memory_bytes <= whole.memory_bytes, "{} {}", part.name, part.memory_bytes);
                assert!(part.multiprocessors <= whole.multiprocessors, "{}", part.name);
                assert!(
                    part.flops.f16 <= whole.flops.f16 && part.flops.f32 <= whole.flops.f32,
                    "{}",
                    part.name
                );
                // A slice has roughly its number of eighths of the memory: the system keeps up to a seventh.
                let share = whole.memory_bytes * u64::from(profile.eighths) / 8;
                assert!(part.memory_bytes <= share + share / 50, "{}", part.name);
                assert!(part.memory_bytes >= share - share / 7, "{}", part.name);
                assert_eq!(part.name, format!("{name}:{}", profile.name));
            }
        }
    }

    #[test]
    fn libraries_take_what_they_take_on_the_whole_gpu_and_stacks_a_part() {
        let (whole, part) = (named("H100").unwrap(), made("H100", "2g.20gb"));
        let first = |gpu: &Gpu| Library::CuBlas.first_use(gpu, Loading::Lazy);
        assert_eq!(first(&part), first(whole));
        // 32 multiprocessors with 2,048 threads, 4 KiB each.
        assert_eq!(local_memory_bytes(&part, 4096), 268_435_456);
        assert_eq!(part.known.reserve, None);
    }

    #[test]
    fn an_unknown_profile_names_the_known_ones() {
        assert_eq!(made("H100", "1G.10GB+me").name, "H100:1g.10gb");
        let why = slice(named("H100").unwrap(), "5g.50gb").unwrap_err();
        assert_eq!(why, ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]);
        assert!(slice(named("RTX-4090").unwrap(), "1g.10gb").unwrap_err().is_empty());
    }
}
