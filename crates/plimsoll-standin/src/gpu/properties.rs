//! Device properties: attributes by CUDA's numbers, and `cudaDeviceProp`, which is built from them.
//!
//! Attributes that do not differ between the GPUs of the table have the values of an H200 (driver 580.159.04).

use plimsoll_gpu::{Gpu, Pool};

use super::Setup;

/// The attributes with the same value on every device: CUDA's number (`cudaDeviceAttr`, `CUdevice_attribute`), value.
#[rustfmt::skip] // many to a line
const COMMON: [(i32, i32); 92] = [
    (1, 1024), (2, 1024), (3, 1024), (4, 64), (5, i32::MAX), (6, 65535), (7, 65535), (8, 49152), (9, 65536),
    (10, 32), (11, i32::MAX), (12, 65536), (14, 512), (15, 1), (17, 0), (19, 1), (20, 0),
    (21, 131_072), (22, 131_072), (23, 65536), (24, 16384), (25, 16384), (26, 16384), (27, 32768),
    (28, 32768), (29, 2048), (30, 512), (31, 1), (32, 1), (34, 0), (35, 0), (40, 3), (41, 1), (42, 32768),
    (43, 2048), (45, 32768), (46, 32768), (47, 8192), (48, 8192), (49, 32768), (50, 0), (51, 32), (52, 32768),
    (53, 32768), (54, 2046), (55, 32768), (56, 131_072), (57, 65536), (58, 16384), (59, 16384), (60, 16384),
    (61, 32768), (62, 2048), (63, 32768), (64, 32768), (65, 2048), (66, 32768), (67, 32768), (68, 2046),
    (69, 1 << 28), (70, 131_072), (71, 65000), (72, 2_097_120), (73, 32768), (74, 32768), (77, 32768),
    (78, 1), (79, 1), (80, 1), (82, 65536), (83, 1), (87, 2), (89, 1), (90, 1), (91, 1), (95, 1), (96, 1),
    (99, 1), (102, 1), (103, 1), (107, 1), (109, 1 << 27), (112, 1), (113, 1), (114, 1), (115, 1), (118, 100),
    (119, 1), (121, 1), (125, 1), (126, 4), (131, -1),
];

/// The value of a device's attribute; 0, which means "no", for unknown attributes.
pub(crate) fn attribute(setup: &Setup, device: usize, number: i32) -> i32 {
    let gpu = &setup.gpu;
    match number {
        13 => gpu.clock_khz,
        16 => gpu.multiprocessors,
        // Integrated: it has no memory of its own.
        18 => i32::from(gpu.pool == Pool::Host),
        33 => setup.bus(device),
        36 => gpu.memory_clock_khz,
        37 => gpu.bus_bits,
        38 => gpu.l2_bytes,
        39 => gpu.threads_per_multiprocessor,
        75 => gpu.capability.0,
        76 => gpu.capability.1,
        81 => gpu.shared_bytes_per_multiprocessor,
        // It reaches the host's pageable memory, through the host's page tables.
        88 | 100 => i32::from(gpu.pool != Pool::Own),
        97 => gpu.shared_bytes_per_block,
        106 => gpu.blocks_per_multiprocessor,
        // The H200 and the A100 can set aside five eighths of the L2 cache, older GPUs none.
        108 if gpu.capability.0 >= 8 => gpu.l2_bytes / 8 * 5,
        // Since compute capability 8.0 the system reserves some of each block's shared memory.
        111 if gpu.capability.0 >= 8 => 1024,
        // Thread block clusters require compute capability 9.0.
        120 => i32::from(gpu.capability.0 >= 9),
        _ => COMMON.iter().find(|(known, _)| *known == number).map_or(0, |(_, value)| *value),
    }
}

/// A field of `cudaDeviceProp`.
#[derive(Clone, Copy)]
enum Field {
    /// `char name[256]`
    Name,
    /// `cudaUUID_t`
    Uuid,
    /// `size_t totalGlobalMem`
    Memory,
    /// An attribute as `int`.
    Int(i32),
    /// An attribute as `size_t`.
    Size(i32),
    /// This many zero bytes.
    Zero(usize),
    /// Only in CUDA 12's structure.
    Only12(&'static [Field]),
}

use Field::{Int, Memory, Name, Only12, Size, Uuid, Zero};

/// The fields of `cudaDeviceProp` in order, from `driver_types.h` of CUDA 12.8 and 13.2.
#[rustfmt::skip] // many to a line
const LAYOUT: &[Field] = &[
    Name, Uuid, Zero(8), Zero(4), Memory, Size(8), Int(12), Int(10), Size(11), Int(1), Int(2), Int(3), Int(4),
    Int(5), Int(6), Int(7), Only12(&[Int(13)]), Size(9), Int(75), Int(76), Size(14), Size(51),
    Only12(&[Int(15)]), Int(16), Only12(&[Int(17)]), Int(18), Int(19), Only12(&[Int(20)]),
    // textures: 1D, mipmap, [linear], 2D, mipmap, linear, gather, 3D, alternative, cubemap, layered
    Int(21), Int(77), Only12(&[Int(69)]), Int(22), Int(23), Int(73), Int(74), Int(70), Int(71), Int(72),
    Int(45), Int(46), Int(24), Int(25), Int(26), Int(47), Int(48), Int(49), Int(52), Int(42), Int(43),
    Int(27), Int(28), Int(29), Int(53), Int(54),
    // surfaces: 1D, 2D, 3D, layered, cubemap, alignment
    Int(55), Int(56), Int(57), Int(58), Int(59), Int(60), Int(61), Int(62), Int(63), Int(64), Int(65),
    Int(66), Int(67), Int(68), Size(30), Int(31), Int(32), Int(33), Int(34), Int(50), Int(35), Int(40),
    Int(41), Only12(&[Int(36)]), Int(37), Int(38), Int(108), Int(39), Int(78), Int(79), Int(80), Size(81),
    Int(82), Int(83), Int(84), Int(85), Int(86), Only12(&[Int(87)]), Int(88), Int(89), Int(90), Int(91),
    Int(95), Only12(&[Int(96)]), Size(97), Int(100), Int(101), Int(106), Int(109), Size(111), Int(99),
    Int(112), Int(113), Int(114), Int(115), Int(116), Int(117), Int(118), Int(119), Int(121), Int(125),
    Int(120), Int(123),
    // reserved: 63 numbers, some of which CUDA 13 names (NUMA, MPS, PCI numbers); all zero
    Zero(63 * 4),
];

/// The requested form of the structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `cudaGetDeviceProperties_v2` of CUDA 12.
    Twelve,
    /// `cudaGetDeviceProperties` of CUDA 13.
    Thirteen,
}

/// The bytes of a device's `cudaDeviceProp`.
pub(crate) fn structure(setup: &Setup, device: usize, form: Form) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, LAYOUT, setup, device, form);
    pad(&mut bytes, 8);
    bytes
}

fn append(bytes: &mut Vec<u8>, fields: &[Field], setup: &Setup, device: usize, form: Form) {
    let gpu: &Gpu = &setup.gpu;
    for field in fields {
        match *field {
            Name => {
                bytes.extend(gpu.card.bytes());
                bytes.resize(256, 0);
            }
            Uuid => bytes.extend(setup.uuid(device)),
            Memory => size(bytes, setup.memory_bytes()),
            Int(number) => {
                pad(bytes, 4);
                bytes.extend(attribute(setup, device, number).to_ne_bytes());
            }
            Size(number) => size(bytes, u64::from(attribute(setup, device, number).unsigned_abs())),
            Zero(count) => bytes.resize(bytes.len() + count, 0),
            Only12(more) if form == Form::Twelve => append(bytes, more, setup, device, form),
            Only12(_) => {}
        }
    }
}

fn size(bytes: &mut Vec<u8>, value: u64) {
    pad(bytes, 8);
    bytes.extend(value.to_ne_bytes());
}

/// Pads to the next multiple of an alignment.
fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu;

    fn int(bytes: &[u8], offset: usize) -> i32 {
        i32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    #[test]
    fn both_forms_have_the_offsets_that_a_c_compiler_gives_them() {
        let setup = Setup::of(gpu::named("A100-80GB").unwrap(), 1);
        // sizeof, and offsetof of major, multiProcessorCount, l2CacheSize, sharedMemPerBlockOptin,
        // clusterLaunch
        for (form, length, [major, sms, l2, optin, cluster]) in [
            (Form::Twelve, 1032, [360, 388, 616, 696, 772]),
            (Form::Thirteen, 1008, [360, 384, 596, 672, 748]),
        ] {
            let bytes = structure(&setup, 0, form);
            assert_eq!(bytes.len(), length, "{form:?}");
            assert_eq!(u64::from_ne_bytes(bytes[288..296].try_into().unwrap()), setup.memory_bytes());
            assert_eq!((int(&bytes, major), int(&bytes, sms)), (8, 108), "{form:?}");
            assert_eq!((int(&bytes, l2), int(&bytes, optin)), (40 << 20, 166_912), "{form:?}");
            assert_eq!(int(&bytes, cluster), 0, "{form:?}");
        }
    }

    #[test]
    fn no_attribute_is_listed_twice() {
        assert!(COMMON.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
