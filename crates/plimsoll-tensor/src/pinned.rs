//! Pinned host memory: devices copy to and from it while the host continues.
//!
//! As in PyTorch, it belongs to the process. It has its own cache (`plimsoll_alloc::PinnedMemory`) and its own
//! statistics, separate from those of the host device. A block that is freed during a copy is reused only after that
//! copy. If no device reads host memory itself, the pages need not be locked: they are mapped like the host's segments.
//! A GPU registers them with its driver: at the GPU's first copy it registers all pages that are mapped then, and later
//! each new mapping.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use plimsoll_alloc::{
    Addr, DeviceStream, Driver, DriverError, EventId, PinnedAllocation, PinnedConfig, PinnedDriver,
    PinnedMemory, PinnedRequest, Timed,
};

use crate::cpu::HostDriver;
use crate::device::{Device, Inner};
use crate::error::{Error, Result};
use crate::label;
use crate::stream::Stream;

/// The statistics of pinned memory under PyTorch's keys (`allocated_bytes.current`, `active_requests.peak`, …), sorted.
/// Like `torch.cuda.host_memory_stats`.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, pinned};
/// let x = Tensor::ones(&[1000], &Device::cpu())?.pin_memory()?;
/// assert!(pinned::host_memory_stats()["active_bytes.current"] >= 4096);
/// # drop(x);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub fn host_memory_stats() -> BTreeMap<String, i64> {
    memory().host_memory_stats()
}

/// Sets the peaks to the current values. Like `torch.cuda.reset_peak_host_memory_stats`.
pub fn reset_peak_host_memory_stats() {
    memory().reset_peak_host_memory_stats();
}

/// Returns cached blocks to the system. Returns the number of bytes. Like `torch.cuda.host_empty_cache`.
///
/// # Errors
/// The system's errors.
pub fn empty_host_cache() -> Result<u64> {
    memory().empty_cache().map_err(|source| Error::PinnedMemory {
        op: "empty_host_cache",
        owner: String::new(),
        source,
    })
}

fn memory() -> &'static PinnedMemory {
    static MEMORY: OnceLock<PinnedMemory> = OnceLock::new();
    MEMORY.get_or_init(|| {
        let host = Host { mapped: HostDriver::new(), events: BTreeMap::new(), last: 0 };
        PinnedMemory::new(PinnedConfig::default(), host)
    })
}

/// A block of pinned memory, freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Block(Option<PinnedAllocation>);

impl Block {
    /// Allocates `bytes` for an operation. An error names `owner`.
    pub(crate) fn alloc(bytes: u64, op: &'static str, owner: label::LabelId) -> Result<Block> {
        let block = memory().alloc(PinnedRequest::of(bytes));
        let block = block.map_err(|source| Error::PinnedMemory { op, owner: label::text(owner), source })?;
        Ok(Block(Some(block)))
    }

    pub(crate) fn address(&self) -> Addr {
        self.0.as_ref().map_or(Addr(0), PinnedAllocation::addr)
    }

    /// Records that work on a stream uses the block: once freed, it is not reused before that work is done.
    pub(crate) fn record_use(&self, on: &Stream) {
        if on.device().queues().is_some() {
            let on = DeviceStream { device: number_of(on.device()), stream: on.id() };
            memory().record_event(self.address(), on);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            // The block is freed anyway. The error comes from releasing another block to the system, which stays cached.
            let _ = memory().free(block);
        }
    }
}

/// All devices that have used pinned memory, indexed by number.
static DEVICES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

fn devices() -> MutexGuard<'static, Vec<Weak<Inner>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number_of(device: &Device) -> u32 {
    let mut devices = devices();
    let known = devices.iter().position(|weak| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(&device.0)));
    let number = known.unwrap_or_else(|| {
        devices.push(Arc::downgrade(&device.0));
        devices.len() - 1
    });
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// A mapping, and the device that registered it with its driver.
struct Mapped {
    bytes: u64,
    registered: Option<Weak<Inner>>,
}

impl Mapped {
    fn device(&self) -> Option<Device> {
        self.registered.as_ref().and_then(Weak::upgrade).map(Device)
    }

    /// Registers the mapping with a device, unless it is registered already. A device whose registration fails copies
    /// through its driver's buffers.
    fn register(&mut self, address: u64, device: &Device) {
        if self.device().is_none()
            && let Some(queues) = device.queues()
            && queues.register(address, self.bytes).is_ok()
        {
            self.registered = Some(Arc::downgrade(&device.0));
        }
    }
}

/// All mappings, by address. If both locks are needed, the one of `devices` is taken first.
static MAPPED: Mutex<BTreeMap<u64, Mapped>> = Mutex::new(BTreeMap::new());

fn mapped() -> MutexGuard<'static, BTreeMap<u64, Mapped>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called before a device copies to or from pinned memory. At its first copy, all mappings are registered; later
/// mappings are registered when made.
pub(crate) fn is_used_by(device: &Device) {
    let known = devices().iter().any(|weak| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(&device.0)));
    if !known && device.queues().is_some() {
        number_of(device);
        mapped().iter_mut().for_each(|(&address, piece)| piece.register(address, device));
    }
}

fn device(number: u32) -> Option<Device> {
    devices().get(number as usize).and_then(Weak::upgrade).map(Device)
}

/// The driver of pinned memory: memory comes from the system, events from the devices.
struct Host {
    mapped: HostDriver,
    events: BTreeMap<EventId, (u32, EventId)>,
    last: u64,
}

fn timed<T>(call: impl FnOnce() -> Result<T, DriverError>) -> Result<Timed<T>, DriverError> {
    let start = Instant::now();
    let value = call()?;
    Ok(Timed { value, elapsed_us: u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX) })
}

fn text(error: &Error) -> DriverError {
    DriverError::Failed(error.to_string())
}

impl PinnedDriver for Host {
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError> {
        timed(|| {
            let addr = self.mapped.segment_alloc(bytes)?;
            let mut piece = Mapped { bytes, registered: None };
            let open: Vec<Device> = devices().iter().filter_map(Weak::upgrade).map(Device).collect();
            open.iter().for_each(|device| piece.register(addr.0, device));
            mapped().insert(addr.0, piece);
            Ok(addr)
        })
    }

    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError> {
        timed(|| {
            if let Some(device) = mapped().remove(&addr.0).and_then(|piece| piece.device())
                && let Some(queues) = device.queues()
            {
                queues.unregister(addr.0).map_err(|error| text(&error))?;
            }
            self.mapped.segment_free(addr)
        })
    }

    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError> {
        self.last += 1;
        let event = EventId(self.last);
        // A device that was dropped has finished its work.
        if let Some(device) = device(on.device)
            && let Some(queues) = device.queues()
        {
            let theirs = queues.record(on.stream).map_err(|error| text(&error))?;
            self.events.insert(event, (on.device, theirs));
        }
        Ok(event)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        let Some(&(number, theirs)) = self.events.get(&event) else { return Ok(true) };
        let device = device(number);
        let queues = device.as_ref().and_then(Device::queues);
        let done = queues.map_or(Ok(true), |queues| queues.is_done(theirs)).map_err(|error| text(&error))?;
        if done {
            self.events.remove(&event);
            if let Some(queues) = queues {
                queues.release(theirs);
            }
        }
        Ok(done)
    }
}
