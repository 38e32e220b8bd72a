//! Kernel architectures: a library contains each kernel for several architectures, and a device runs one of them. CUB
//! queries which one that is, and fails if it has no tuning for it.
//!
//! The layout is that of `fatbinary_section.h` and of the sections that `nvcc` writes, as `cuobjdump` reads them.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use crate::argument::Text;
use crate::call::new_handle;
use crate::error::{Failure, Outcome};
use crate::gpu::setup;
use crate::lock::locked;

/// The versions of the code that a device runs, as in `cudaFuncAttributes`: ten times the compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Versions {
    /// The PTX version.
    pub(super) ptx: i32,
    /// The binary version.
    pub(super) binary: i32,
}

/// One image of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Image {
    /// Whether it is PTX, which the driver compiles for any newer device.
    is_ptx: bool,
    architecture: i32,
}

/// The location of a module's images: `__fatBinC_Wrapper_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Wrapper {
    magic: u32,
    _version: u32,
    data: *const u8,
    _of_linker: *const c_void,
}

/// The header before all images.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    magic: u32,
    _version: u16,
    header_bytes: u16,
    bytes: u64,
}

/// The header of each image; more fields follow.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    kind: u16,
    _version: u16,
    header_bytes: u32,
    bytes: u64,
    _packed_bytes: u32,
    _options: u32,
    _minor: u16,
    _major: u16,
    architecture: u32,
}

const WRAPPER_MAGIC: u32 = 0x4662_43b1;
const HEADER_MAGIC: u32 = 0xba55_ed50;
const PTX: u16 = 1;
const BINARY: u16 = 2;

/// Parts of the names of CUB's kernels that select part of their input by value. The host then reads how many
/// elements were selected, and sizes its next request accordingly. `nonzero`, `unique`, masks and `coalesce` use
/// them.
const SELECTIONS: [&str; 2] = ["DeviceSelectSweepKernel", UNIQUE_BY_KEY];
const UNIQUE_BY_KEY: &str = "DeviceUniqueByKeySweepKernel";
/// Part of the name of the kernel for the gradient of a dense embedding, which counts values by key. PyTorch does not
/// read the count; it requests the maximum.
const COUNTED: &str = "counting_iterator";

/// The kernels of one module.
struct Module {
    /// The location of its images.
    wrapper: usize,
    /// The version that the device runs, once a kernel was queried.
    chosen: Option<Outcome<Versions>>,
}

/// A kernel.
struct Kernel {
    /// Its module's handle.
    module: u64,
    /// Whether it selects by value.
    selects: bool,
}

/// Modules by handle, and kernels by their host addresses.
#[derive(Default)]
struct Known {
    modules: HashMap<u64, Module>,
    kernels: HashMap<usize, Kernel>,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn with_known<T>(act: impl FnOnce(&mut Known) -> T) -> T {
    act(locked(&KNOWN).get_or_insert_default())
}

/// Registers a module; its kernels refer to it by the returned handle.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFatBinary(wrapper: *const c_void) -> u64 {
    let handle = new_handle();
    let module = Module { wrapper: wrapper.addr(), chosen: None };
    with_known(|known| known.modules.insert(handle, module));
    handle
}

/// Registers a kernel: a host function stands for the kernel of this name. Further arguments are ignored.
#[unsafe(no_mangle)]
extern "C" fn __cudaRegisterFunction(module: u64, function: *const c_void, name: Text) {
    let kernel = Kernel { module, selects: name.read().is_ok_and(|name| selects(&name)) };
    with_known(|known| known.kernels.insert(function.addr(), kernel));
}

/// Whether the kernel of this name selects by value.
fn selects(name: &str) -> bool {
    let is_dense = name.contains(UNIQUE_BY_KEY) && name.contains(COUNTED);
    !is_dense && SELECTIONS.iter().any(|part| name.contains(part))
}

/// The version of a kernel that the device runs; an unregistered kernel has the device's own version.
///
/// # Errors
///
/// `NoKernelImage` if the kernel is compiled only for other devices.
pub(super) fn versions(function: *const c_void) -> Outcome<Versions> {
    with_known(|known| Ok(known.kernel(function)?.0))
}

/// Whether a launched kernel selects by value.
///
/// # Errors
///
/// `NoKernelImage` as for [`versions`].
pub(super) fn launched(function: *const c_void) -> Outcome<bool> {
    with_known(|known| Ok(known.kernel(function)?.1))
}

impl Known {
    /// A kernel's version, and whether it selects by value.
    fn kernel(&mut self, function: *const c_void) -> Outcome<(Versions, bool)> {
        let (major, minor) = setup().gpu.capability;
        let device = major * 10 + minor;
        let own = Versions { ptx: device, binary: device };
        let Some(kernel) = self.kernels.get(&function.addr()) else { return Ok((own, false)) };
        let Some(module) = self.modules.get_mut(&kernel.module) else { return Ok((own, kernel.selects)) };
        let choose = || {
            let images = images(module.wrapper);
            if images.is_empty() { Ok(own) } else { newest(&images, device).ok_or(Failure::NoKernelImage) }
        };
        let versions = *module.chosen.get_or_insert_with(choose);
        Ok((versions?, kernel.selects))
    }
}

/// Chooses like the driver: the newest binary of the same generation that is not newer than the device; otherwise
/// PTX.
fn newest(images: &[Image], device: i32) -> Option<Versions> {
    let of_kind = |is_ptx: bool| {
        let fits = images.iter().filter(move |image| image.is_ptx == is_ptx && image.architecture <= device);
        fits.map(|image| image.architecture)
    };
    let binary = of_kind(false).filter(|architecture| architecture / 10 == device / 10).max();
    let binary = binary.map(|architecture| Versions { ptx: architecture, binary: architecture });
    binary.or_else(|| of_kind(true).max().map(|ptx| Versions { ptx, binary: device }))
}

/// A module's images; none if the memory does not have the expected layout.
fn images(wrapper: usize) -> Vec<Image> {
    let wrapper = std::ptr::with_exposed_provenance::<Wrapper>(wrapper);
    // SAFETY: `as_ref` checks for null; otherwise the library that registered the module put a wrapper there, which
    // lives as long as the library.
    let Some(wrapper) = (unsafe { wrapper.as_ref() }).filter(|it| it.magic == WRAPPER_MAGIC) else {
        return Vec::new();
    };
    let data = wrapper.data;
    // SAFETY: as above: a wrapper points to a header.
    let header = unsafe { data.cast::<Header>().as_ref() };
    let Some(header) = header.filter(|header| header.magic == HEADER_MAGIC) else { return Vec::new() };
    let (mut at, mut images) = (u64::from(header.header_bytes), Vec::new());
    let end = at.saturating_add(header.bytes);
    while at.saturating_add(size_of::<Entry>() as u64) <= end {
        // SAFETY: the header states that its images reach to `end`, and this one starts before it.
        let entry = unsafe { data.add(at as usize).cast::<Entry>().read_unaligned() };
        if matches!(entry.kind, PTX | BINARY)
            && let Ok(architecture) = i32::try_from(entry.architecture)
        {
            images.push(Image { is_ptx: entry.kind == PTX, architecture });
        }
        let bytes = u64::from(entry.header_bytes).saturating_add(entry.bytes);
        if bytes == 0 {
            break;
        }
        at = at.saturating_add(bytes);
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_runs_the_newest_code_of_its_generation_or_compiles_it() {
        let binary = |architecture| Image { is_ptx: false, architecture };
        let images =
            [binary(75), binary(80), binary(86), binary(90), Image { is_ptx: true, architecture: 75 }];
        let check = |device, ptx, binary| {
            assert_eq!(newest(&images, device), Some(Versions { ptx, binary }), "{device}");
        };
        check(75, 75, 75);
        check(80, 80, 80);
        check(86, 86, 86);
        check(89, 86, 86);
        check(90, 90, 90);
        check(120, 75, 120);
        assert_eq!(newest(&images, 70), None);
    }

    #[test]
    fn the_gradient_of_a_dense_embedding_counts_its_values_and_selects_nothing_that_is_asked_for() {
        // Names from PyTorch 2.15: of an embedding, of `coalesce`, of `nonzero`.
        let unique = "_ZN14at_cuda_detail3cub6detail13unique_by_key28DeviceUniqueByKeySweepKernelINS2_10policy_hubIllE";
        let nonzero =
            "_ZN14at_cuda_detail3cub6detail6select23DeviceSelectSweepKernelINS2_10policy_hubIlbiLb0ELNS0_";
        assert!(!selects(&format!(
            "{unique}10Policy1000EPKlN6thrust17counting_iteratorIlNSA_11use_defaultE"
        )));
        assert!(selects(&format!("{unique}10Policy1000EN6thrust10device_ptrIlEESA_SA_SA_PjNS0_")));
        assert!(selects(&format!("{nonzero}10SelectImplE0EE10Policy1000EN6thrust17counting_iteratorIl")));
        assert!(!selects("_ZN14at_cuda_detail3cub6detail4scan16DeviceScanKernelINS2_10policy_hubI"));
    }

    #[test]
    fn a_modules_forms_are_read_from_where_it_lies() {
        let mut data = Vec::new();
        let entry = |kind: u16, architecture: u32, payload: u64| {
            let mut bytes = Vec::new();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(0x101_u16.to_ne_bytes());
            bytes.extend(64_u32.to_ne_bytes());
            bytes.extend(payload.to_ne_bytes());
            bytes.extend([0; 12]);
            bytes.extend(architecture.to_ne_bytes());
            bytes.resize(64 + payload as usize, 0);
            bytes
        };
        let forms = [entry(BINARY, 80, 24), entry(BINARY, 90, 8), entry(PTX, 90, 40)].concat();
        data.extend(HEADER_MAGIC.to_ne_bytes());
        data.extend(1_u16.to_ne_bytes());
        data.extend(16_u16.to_ne_bytes());
        data.extend((forms.len() as u64).to_ne_bytes());
        data.extend(forms);
        // Aligned, as it is in a library.
        let mut words = vec![0_u64; data.len() / 8];
        for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        let wrapper = Wrapper {
            magic: WRAPPER_MAGIC,
            _version: 1,
            data: words.as_ptr().cast(),
            _of_linker: std::ptr::null(),
        };
        let found: Vec<_> = images(std::ptr::from_ref(&wrapper).expose_provenance())
            .iter()
            .map(|image| (image.is_ptx, image.architecture))
            .collect();
        assert_eq!(found, [(false, 80), (false, 90), (true, 90)]);
        assert_eq!(images(0), []);
    }
}
