//! The GPUs that can be imitated, and the devices of this process.
//!
//! [`GPUS`] is the table that the launcher offers; what a device says of itself follows from a row of it
//! (`gpu/properties.rs`).

mod properties;
mod table;

use std::sync::OnceLock;

pub(crate) use properties::{Form, attribute, structure};
pub use table::GPUS;

use crate::error::{Failure, Outcome};
use crate::{settings, share};

/// A kind of GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    /// The name by which it is chosen: `A100-80GB`.
    pub name: &'static str,
    /// The name that the driver gives: `NVIDIA A100-SXM4-80GB`.
    pub card: &'static str,
    /// What the driver calls the device's total memory, in bytes. It differs between versions of the driver,
    /// which keep more or less for themselves, by up to one percent.
    pub memory_bytes: u64,
    /// Where `memory_bytes` comes from.
    pub source: &'static str,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// Size of the L2 cache.
    pub l2_bytes: i32,
    /// Shared memory of a multiprocessor.
    pub shared_bytes_per_multiprocessor: i32,
    /// Shared memory that a block can have if it asks for it.
    pub shared_bytes_per_block: i32,
    /// Threads that a multiprocessor holds.
    pub threads_per_multiprocessor: i32,
    /// Blocks that a multiprocessor holds.
    pub blocks_per_multiprocessor: i32,
    /// Width of the memory bus.
    pub bus_bits: i32,
    /// Clock of the multiprocessors.
    pub clock_khz: i32,
    /// Clock of the memory.
    pub memory_clock_khz: i32,
}

/// The GPU of this name; upper and lower case are the same.
///
/// ```
/// assert_eq!(plimsoll_standin::gpu::named("h200").expect("listed").memory_bytes, 150_109_880_320);
/// assert!(plimsoll_standin::gpu::named("H9000").is_none());
/// ```
pub fn named(name: &str) -> Option<Gpu> {
    GPUS.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name)).copied()
}

/// The GPU whose properties a device of this compute capability gets: the first of that capability, else of
/// the next lower one that is listed.
fn of_capability(capability: (i32, i32)) -> Option<Gpu> {
    let lower = GPUS.iter().filter(|gpu| gpu.capability <= capability);
    let nearest = lower.clone().map(|gpu| gpu.capability).max()?;
    let gpu = *lower.clone().find(|gpu| gpu.capability == nearest)?;
    Some(Gpu { card: "Plimsoll stand-in", capability, ..gpu })
}

/// The devices of this process, all alike.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) gpu: Gpu,
    /// Memory of each device.
    pub(crate) memory_bytes: u64,
    /// What of that a process takes for its context.
    context_bytes: u64,
    /// By a device's number in this process: its number in the machine.
    visible: Vec<usize>,
    /// In which order addresses are handed out.
    pub(crate) addresses: Addresses,
}

/// In which order addresses are handed out: Note [Up or down] in `memory/space.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addresses {
    /// Each above the one before.
    Up,
    /// Each below the one before.
    Down,
}

impl Setup {
    /// So many devices of a kind, all of them visible.
    pub(crate) fn of(gpu: Gpu, devices: usize) -> Self {
        Setup {
            gpu,
            memory_bytes: gpu.memory_bytes,
            context_bytes: 0,
            visible: (0..devices).collect(),
            addresses: Addresses::Up,
        }
    }

    /// What the environment asks for.
    fn read() -> Self {
        let gpu = settings::value(settings::GPU, "H100", named);
        let gpu = gpu.or_else(|| named("A100-80GB")).unwrap_or(GPUS[0]);
        let capability = settings::value(settings::CAPABILITY, "8.9", |text| {
            let (major, minor) = text.split_once('.')?;
            of_capability((major.parse().ok()?, minor.parse().ok()?))
        });
        let memory = settings::value(settings::MEMORY, "25769803776 (bytes)", |text| text.parse().ok());
        let context = settings::value(settings::CONTEXT, "845000000 (bytes)", |text| text.parse().ok());
        let devices = settings::value(settings::DEVICES, "8", |text| text.parse().ok()).unwrap_or(1);
        let mut setup = Setup::of(capability.unwrap_or(gpu), devices);
        setup.memory_bytes = memory.unwrap_or(gpu.memory_bytes);
        setup.context_bytes = context.unwrap_or(0).min(setup.memory_bytes);
        let addresses = settings::value(settings::ADDRESSES, "down (or up)", |text| match text {
            "up" => Some(Addresses::Up),
            "down" => Some(Addresses::Down),
            _ => None,
        });
        setup.addresses = addresses.unwrap_or(setup.addresses);
        if let Ok(visible) = std::env::var(settings::VISIBLE) {
            setup.visible = seen(&visible, devices);
        }
        setup
    }

    /// How many devices there are.
    pub(crate) fn devices(&self) -> usize {
        self.visible.len()
    }

    /// A device by CUDA's number for it.
    ///
    /// # Errors
    ///
    /// `InvalidDevice` if there are not so many.
    pub(crate) fn device(&self, number: i32) -> Outcome<usize> {
        let device = usize::try_from(number).ok().filter(|device| *device < self.devices());
        device.ok_or(Failure::InvalidDevice)
    }

    /// What of a device is free beside so many bytes of this process, its context and what others have.
    pub(crate) fn free_bytes(&self, device: usize, used_bytes: u64) -> u64 {
        let taken_bytes = used_bytes + self.context_bytes + share::others_bytes(self.visible[device]);
        self.memory_bytes.saturating_sub(taken_bytes)
    }

    /// Notes that this process has so many bytes of a device, if these have room beside its context and what others
    /// have: whether they do. Fewer than before always do.
    pub(crate) fn note(&self, device: usize, used_bytes: u64) -> bool {
        let bytes = used_bytes.saturating_add(self.context_bytes);
        share::note(self.visible[device], bytes, self.memory_bytes)
    }

    /// The PCI bus of a device: its place in the machine, from 1.
    pub(crate) fn bus(&self, device: usize) -> i32 {
        i32::try_from(self.visible[device] + 1).unwrap_or(i32::MAX)
    }

    /// PCI address, as `0000:01:00.0`.
    pub(crate) fn pci(&self, device: usize) -> String {
        format!("0000:{:02x}:00.0", self.bus(device))
    }

    /// The device at a PCI address.
    pub(crate) fn at_pci(&self, address: &str) -> Option<usize> {
        // NVML writes the domain with eight digits, the runtime with four.
        let end = |text: &str| text.to_ascii_lowercase().trim_start_matches('0').to_owned();
        (0..self.devices()).find(|device| end(&self.pci(*device)) == end(address))
    }

    /// An identity that tells the devices of a machine apart.
    pub(crate) fn uuid(&self, device: usize) -> [u8; 16] {
        let mut uuid = *b"plimsoll-standin";
        uuid[15] = self.bus(device).to_le_bytes()[0];
        uuid
    }
}

/// The devices that `CUDA_VISIBLE_DEVICES` names, up to the first that is none, as a real driver reads it.
fn seen(text: &str, devices: usize) -> Vec<usize> {
    let numbers = text.split(',').map(|number| number.trim().parse().ok());
    numbers.map_while(|number: Option<usize>| number.filter(|number| *number < devices)).collect()
}

/// The devices of this process, as the environment asked for them when the first call was made.
pub(crate) fn setup() -> &'static Setup {
    static SETUP: OnceLock<Setup> = OnceLock::new();
    SETUP.get_or_init(|| {
        crate::version::compare();
        Setup::read()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        for gpu in GPUS {
            assert_eq!(named(gpu.name), Some(*gpu));
        }
    }

    #[test]
    fn a_capability_between_two_listed_ones_gets_the_lower_ones_properties() {
        let gpu = of_capability((8, 7)).unwrap();
        assert_eq!(
            (gpu.capability, gpu.multiprocessors),
            ((8, 7), named("RTX-3090").unwrap().multiprocessors)
        );
        assert_eq!(of_capability((6, 0)), None);
    }

    #[test]
    fn visible_devices_are_read_up_to_the_first_that_is_none() {
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
