//! The GPU's description for cuDNN: the JSON of `CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`, and the layout of its
//! multiprocessors, which the JSON cannot express.
//!
//! The keys are those that cuDNN 9.19 wrote for an H200, plus those that 9.26 reads; cuDNN ignores unknown keys.

use std::fmt::Write;

use crate::gpu::{Setup, attribute};

/// Multiprocessors per GPC on one H200, as cuDNN 9.19 found them. They differ between cards, because different
/// multiprocessors of the chip are disabled.
const GH100: [i32; 12] = [18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2];
/// The multiprocessors of a full GPC, for GPUs whose layout is not known.
const WHOLE: i32 = 16;
/// The first compute capability with thread block clusters.
const CLUSTERS: (i32, i32) = (9, 0);

/// The JSON of a device.
pub(super) fn device(setup: &Setup) -> String {
    let gpu = &setup.gpu;
    let of = |number| attribute(setup, 0, number);
    let (major, minor) = gpu.capability;
    let mut json = format!("{{\"deviceName\":\"{}\"", gpu.card);
    let mut add = |key: &str, value: &dyn std::fmt::Display| {
        // Writing to a `String` cannot fail.
        let _ = write!(json, ",\"{key}\":{value}");
    };
    add("maxGridSize", &format_args!("[{},{},{}]", of(5), of(6), of(7)));
    add("maxBlockSize", &format_args!("[{},{},{}]", of(2), of(3), of(4)));
    for (key, number) in [
        ("regsPerBlock", 12),
        ("multiProcessorCount", 16),
        ("warpSize", 10),
        ("maxSharedMemoryPerBlock", 8),
        ("maxSharedMemoryPerBlockOptin", 97),
        ("reservedSharedMemoryPerBlock", 111),
        ("oversizedSharedMemoryPerBlock", 0),
        ("maxRegistersPerSM", 82),
        ("maxCtasPerSM", 106),
        ("maxThreadsPerBlock", 1),
        ("maxThreadsPerSM", 39),
        ("pciDeviceId", 34),
        ("isTccDriver", 35),
        ("supportCoopLaunch", 95),
        ("smClockRateKHz", 13),
        ("memClockRateKHz", 36),
        ("l2CacheSize", 38),
        ("cudaDeviceId", 0),
    ] {
        add(key, &of(number));
    }
    add("totalGlobalMem", &setup.memory_bytes());
    add("deviceVer", &(major * 100 + minor * 10));
    add("driverVer", &crate::version::DRIVER);
    json.push('}');
    json
}

/// Multiprocessors of each GPC; empty for a device without clusters.
pub(super) fn layout(setup: &Setup) -> Option<Vec<i32>> {
    let gpu = &setup.gpu;
    if gpu.capability < CLUSTERS {
        return None;
    }
    if gpu.multiprocessors == GH100.iter().sum() {
        return Some(GH100.to_vec());
    }
    let rest = gpu.multiprocessors % WHOLE;
    let whole = usize::try_from(gpu.multiprocessors / WHOLE).unwrap_or(0);
    let mut layout = vec![WHOLE; whole];
    layout.extend((rest > 0).then_some(rest));
    Some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::named;

    fn setup(name: &str) -> Setup {
        Setup::of(named(name).unwrap(), 1)
    }

    #[test]
    fn an_h200_is_described_as_cudnn_described_one() {
        // cuDNN 9.19 printed this on an H200 with another PCI device and driver.
        let card = "maxGridSize:[2147483647,65535,65535] maxBlockSize:[1024,1024,64] regsPerBlock:65536 \
                    multiProcessorCount:132 warpSize:32 maxSharedMemoryPerBlock:49152 \
                    maxSharedMemoryPerBlockOptin:232448 reservedSharedMemoryPerBlock:1024 maxRegistersPerSM:65536 \
                    maxCtasPerSM:32 maxThreadsPerBlock:1024 maxThreadsPerSM:2048 isTccDriver:0 supportCoopLaunch:1 \
                    totalGlobalMem:150109880320 smClockRateKHz:1980000 memClockRateKHz:3201000 l2CacheSize:62914560 \
                    cudaDeviceId:0 deviceVer:900";
        let json = device(&setup("H200"));
        for pair in card.split_whitespace() {
            let (key, value) = pair.split_once(':').unwrap();
            assert!(json.contains(&format!(",\"{key}\":{value}")), "{key}: {json}");
        }
    }

    #[test]
    fn every_multiprocessor_lies_in_a_cluster_where_there_are_some() {
        assert_eq!(layout(&setup("A100-80GB")), None);
        for gpu in plimsoll_gpu::GPUS.iter().filter(|gpu| gpu.capability >= CLUSTERS) {
            let layout = layout(&setup(gpu.name)).unwrap();
            assert_eq!(layout.iter().sum::<i32>(), gpu.multiprocessors, "{}", gpu.name);
            assert!(layout.len() <= 24, "{}", gpu.name);
        }
    }
}
