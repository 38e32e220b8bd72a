//! The devices of this process: [`Setup`], from a row of the table of GPUs ([`plimsoll_gpu`]).
//!
//! A device's properties follow from that row (`gpu/properties.rs`). Each thread has a current device (`gpu/current.rs`).

mod current;
mod properties;

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_gpu::{GPUS, Gpu};

pub(crate) use current::{current_device, set_current_device};
pub(crate) use properties::{Form, attribute, structure};

use crate::error::{Failure, Outcome};
use crate::{settings, share};

/// The GPU with this name or description.
pub(crate) fn named(text: &str) -> Option<Gpu> {
    plimsoll_gpu::described(text).ok().map(|it| it.gpu)
}

/// A device with this compute capability. Its properties are those of the first GPU in the table with that capability,
/// or with the next lower one.
fn of_capability(capability: (i32, i32)) -> Option<Gpu> {
    let gpu = *plimsoll_gpu::of_capability(capability)?;
    Some(Gpu { card: "Plimsoll stand-in", capability, ..gpu })
}

/// The devices of this process, all of the same kind.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) gpu: Gpu,
    /// Memory of each device, unless the process has called [`plimsoll_standin_take`].
    memory_bytes: u64,
    /// Bytes of each device beyond the size that it reports.
    beyond_bytes: AtomicU64,
    /// How memory outside a process's requests is counted.
    pub(crate) outside: Outside,
    /// Memory of each device that other programs use.
    pub(crate) others_bytes: u64,
    /// The number of devices of the machine.
    pub(crate) in_the_machine: usize,
    /// For each device of this process, its index on the machine.
    visible: Vec<usize>,
    /// The order of allocation addresses.
    pub(crate) addresses: Addresses,
}

/// How to count the memory that a device uses outside a process's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    /// Nothing.
    Nothing,
    /// These bytes are charged at the first use of a device; the memory of NCCL and of kernels' stacks is added to
    /// them.
    Given(u64),
    /// The memory is computed with the formulas and the table of `plimsoll_gpu::outside`, and charged at the calls
    /// that would allocate it.
    Laws,
}

impl Outside {
    fn read(text: &str) -> Option<Outside> {
        match text {
            "laws" => Some(Outside::Laws),
            _ => Some(match text.parse().ok()? {
                0 => Outside::Nothing,
                bytes => Outside::Given(bytes),
            }),
        }
    }
}

/// The order of allocation addresses: Note [A driver's addresses] in `memory/space.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// Each address is above the previous one.
    Up,
    /// Addresses come in chunks, each below the previous one.
    Driver,
}

impl Setup {
    /// This many devices of one kind, all of them visible.
    pub(crate) fn of(gpu: Gpu, devices: usize) -> Self {
        Setup {
            gpu,
            memory_bytes: gpu.memory_bytes,
            beyond_bytes: AtomicU64::new(0),
            outside: Outside::Nothing,
            others_bytes: 0,
            in_the_machine: devices,
            visible: (0..devices).collect(),
            addresses: Addresses::Driver,
        }
    }

    /// The devices that the environment describes.
    fn read() -> Self {
        let gpu = settings::value(settings::GPU, "H100, H100:3g.40gb or custom:memory=48GiB,cc=8.9", named);
        let gpu = gpu.or_else(|| named("A100-80GB")).unwrap_or(GPUS[0]);
        let capability = settings::value(settings::CAPABILITY, "8.9", |text| {
            let (major, minor) = text.split_once('.')?;
            of_capability((major.parse().ok()?, minor.parse().ok()?))
        });
        let memory = settings::value(settings::MEMORY, "25769803776 (bytes)", |text| text.parse().ok());
        let outside = settings::value(settings::CONTEXT, "845000000 (bytes), or laws", Outside::read);
        let devices = settings::value(settings::DEVICES, "8", |text| text.parse().ok()).unwrap_or(1);
        let mut setup = Setup::of(capability.unwrap_or(gpu), devices);
        setup.memory_bytes = memory.unwrap_or(gpu.memory_bytes);
        let beyond = settings::value(settings::BEYOND, "549755813888 (bytes)", |text| text.parse().ok());
        setup.beyond_bytes = AtomicU64::new(beyond.unwrap_or(0));
        setup.outside = outside.unwrap_or(Outside::Nothing);
        let others = settings::value(settings::OTHERS, "1073741824 (bytes)", |text| text.parse().ok());
        setup.others_bytes = others.unwrap_or(0);
        let addresses = settings::value(settings::ADDRESSES, "driver (or up)", |text| match text {
            "up" => Some(Addresses::Up),
            "driver" => Some(Addresses::Driver),
            _ => None,
        });
        setup.addresses = addresses.unwrap_or(setup.addresses);
        if let Ok(visible) = std::env::var(settings::VISIBLE) {
            setup.visible = seen(&visible, devices);
        }
        setup
    }

    /// The number of devices.
    pub(crate) fn devices(&self) -> usize {
        self.visible.len()
    }

    /// Memory of each device, as the program sees it.
    pub(crate) fn memory_bytes(&self) -> u64 {
        share::note_question();
        self.size_bytes()
    }

    fn size_bytes(&self) -> u64 {
        TAKEN_BYTES.get().copied().unwrap_or(self.memory_bytes)
    }

    /// A device by CUDA's number.
    ///
    /// # Errors
    ///
    /// `InvalidDevice` if there is none with that number.
    pub(crate) fn device(&self, number: i32) -> Outcome<usize> {
        let device = usize::try_from(number).ok().filter(|device| *device < self.devices());
        device.ok_or(Failure::InvalidDevice)
    }

    /// A device's free bytes, if this process uses `used_bytes`. The bytes of other processes and of other programs are not free.
    pub(crate) fn free_bytes(&self, device: usize, used_bytes: u64) -> u64 {
        let others_bytes = self.others_bytes.saturating_add(share::others_bytes(self.visible[device]));
        self.size_bytes().saturating_sub(used_bytes.saturating_add(others_bytes))
    }

    /// The memory of a device that the driver reserves, which NVML counts and CUDA does not.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        match self.outside {
            Outside::Laws => plimsoll_gpu::outside::reserve(&self.gpu, self.size_bytes()).bytes,
            Outside::Nothing | Outside::Given(_) => 0,
        }
    }

    /// Records that this process uses this many bytes of a device, with its context. Returns `false` if an increase does
    /// not fit in addition to the other processes' bytes.
    pub(crate) fn note(&self, device: usize, bytes: u64) -> bool {
        let all_bytes = self.size_bytes().saturating_add(self.beyond_bytes.load(Ordering::Relaxed));
        let limit_bytes = all_bytes.saturating_sub(self.others_bytes);
        share::note(self.visible[device], bytes, limit_bytes)
    }

    /// CUDA's number for a device of the machine, if this process sees it.
    pub(crate) fn seen_as(&self, in_machine: usize) -> Option<usize> {
        self.visible.iter().position(|number| *number == in_machine)
    }

    /// A device's number on the machine.
    pub(crate) fn in_machine(&self, device: usize) -> usize {
        self.visible[device]
    }

    /// The PCI bus of a device: its number on the machine, counted from 1.
    pub(crate) fn bus(&self, device: usize) -> i32 {
        i32::try_from(self.visible[device] + 1).unwrap_or(i32::MAX)
    }

    /// The PCI address, such as `0000:01:00.0`.
    pub(crate) fn pci(&self, device: usize) -> String {
        format!("0000:{:02x}:00.0", self.bus(device))
    }

    /// The device at a PCI address.
    pub(crate) fn at_pci(&self, address: &str) -> Option<usize> {
        // NVML writes the domain with eight digits, the runtime with four.
        let end = |text: &str| text.to_ascii_lowercase().trim_start_matches('0').to_owned();
        (0..self.devices()).find(|device| end(&self.pci(*device)) == end(address))
    }

    /// An ID that differs between the devices of a machine.
    pub(crate) fn uuid(&self, device: usize) -> [u8; 16] {
        let mut uuid = *b"plimsoll-standin";
        uuid[15] = self.bus(device).to_le_bytes()[0];
        uuid
    }
}

/// The devices that `CUDA_VISIBLE_DEVICES` names, up to the first invalid one, as with a real driver.
fn seen(text: &str, devices: usize) -> Vec<usize> {
    let numbers = text.split(',').map(|number| number.trim().parse().ok());
    numbers.map_while(|number: Option<usize>| number.filter(|number| *number < devices)).collect()
}

/// The devices of this process, as the environment described them at the first call.
pub(crate) fn setup() -> &'static Setup {
    static SETUP: OnceLock<Setup> = OnceLock::new();
    SETUP.get_or_init(|| {
        crate::version::compare();
        Setup::read()
    })
}

/// The memory of each device, as set by [`plimsoll_standin_take`].
static TAKEN_BYTES: OnceLock<u64> = OnceLock::new();

/// Gives this process its own devices, each with this much memory (0 means unchanged). It shares them with its
/// children through this folder. Call it once, in a fork, before the first use of CUDA.
///
/// # Safety
///
/// `folder` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn plimsoll_standin_take(memory_bytes: u64, folder: *const c_char) {
    if memory_bytes > 0 {
        // A second call changes nothing.
        let _again = TAKEN_BYTES.set(memory_bytes);
    }
    if !folder.is_null() {
        // SAFETY: the caller guarantees that this is a C string.
        let folder = unsafe { CStr::from_ptr(folder) };
        share::take(Path::new(OsStr::from_bytes(folder.to_bytes())));
    }
}

/// Gives each device this many bytes beyond the memory that it reports. Called by hooks inside the process.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_extend(bytes: u64) {
    setup().beyond_bytes.store(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_between_two_listed_ones_gets_the_lower_ones_properties() {
        let gpu = of_capability((8, 7)).unwrap();
        assert_eq!(
            (gpu.capability, gpu.multiprocessors),
            ((8, 7), named("RTX-3090").unwrap().multiprocessors)
        );
        assert_eq!(of_capability((5, 2)), None);
    }

    #[test]
    fn visible_devices_are_read_up_to_the_first_invalid_one() {
        assert_eq!(seen("2,0,9,1", 4), [2, 0]);
        assert_eq!(seen("", 4), []);
        assert_eq!(seen("-1", 4), []);
    }

    #[test]
    fn a_device_is_found_by_either_form_of_its_pci_address() {
        let setup = Setup { visible: vec![3, 1], ..Setup::of(GPUS[0], 4) };
        assert_eq!(setup.pci(0), "0000:04:00.0");
        assert_eq!(setup.at_pci("00000000:02:00.0"), Some(1));
        assert_eq!(setup.at_pci("0000:01:00.0"), None);
    }
}
