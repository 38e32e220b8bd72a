//! The memory that this process uses on each device: its requests, and the memory outside them ([`Uses`]).

use std::collections::BTreeMap;

use plimsoll_gpu::outside::{self, Basis, Figure, SharedPages};

use crate::call;
use crate::error::{Failure, Outcome};
use crate::gpu::{Outside, setup};
use crate::ledger::{Ledger, Peak, Refused, Row};
use crate::notice;

use super::PAGE_BYTES;

/// The owner, in the ledger, of a process's context.
pub(crate) const CONTEXT: &str = "context";

/// The bytes of a small request, and the page that it shares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    bytes: u64,
    page: usize,
}

/// The managed memory of one device.
#[derive(Debug, Default)]
struct Managed {
    /// All of its bytes.
    all_bytes: u64,
    /// Those on the device, which are part of the requested bytes.
    here_bytes: u64,
}

/// The memory that this process uses on one device.
#[derive(Debug, Default)]
struct Use {
    /// The bytes of its current requests.
    requested_bytes: u64,
    /// The peak of the requested bytes.
    most_bytes: u64,
    /// Managed memory, which the driver moves to the host when the device is full.
    managed: Managed,
    /// The pages that small requests share.
    shared: SharedPages,
    /// The memory outside its requests.
    outside: Ledger,
    /// The peak of the sum of requests and ledger.
    peak: Peak,
    has_context: bool,
}

/// The memory that this process uses on each device.
#[derive(Debug, Default)]
pub(crate) struct Uses(BTreeMap<usize, Use>);

impl Uses {
    pub(super) const fn new() -> Uses {
        Uses(BTreeMap::new())
    }

    /// A device's free bytes.
    pub(crate) fn free_bytes(&self, device: usize) -> u64 {
        setup().free_bytes(device, self.0.get(&device).map_or(0, Use::bytes))
    }

    /// Allocates memory for a request. If `small_bytes` is given and can share a page, `bytes` are allocated only for a
    /// new page; otherwise they are always allocated.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if they do not fit.
    pub(super) fn place(
        &mut self,
        device: usize,
        small_bytes: Option<u64>,
        bytes: u64,
    ) -> Outcome<Option<Place>> {
        let shared = &mut self.device(device).shared;
        let placed = small_bytes.and_then(|bytes| Some((bytes, shared.place(bytes)?)));
        let Some((small_bytes, (page, is_new))) = placed else {
            return self.take(device, bytes).map(|()| None);
        };
        if is_new {
            self.take(device, bytes).inspect_err(|_| {
                self.device(device).shared.remove(page, small_bytes);
            })?;
        }
        Ok(Some(Place { bytes: small_bytes, page }))
    }

    /// Undoes [`Uses::place`].
    pub(super) fn remove(&mut self, device: usize, place: Option<Place>, bytes: u64) {
        let shared = &mut self.device(device).shared;
        if place.is_none_or(|place| shared.remove(place.page, place.bytes)) {
            self.give(device, bytes);
        }
    }

    /// Creates this process's context on a device, unless it has one.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if it does not fit.
    pub(crate) fn enter(&mut self, device: usize) -> Outcome {
        if self.device(device).has_context {
            return Ok(());
        }
        self.device(device).has_context = true;
        let figure = match setup().outside {
            Outside::Nothing => return Ok(()),
            Outside::Given(bytes) => Figure { bytes, basis: Basis::Given },
            Outside::Laws => outside::context(&setup().gpu),
        };
        let charged = self.charge(device, CONTEXT, "", figure);
        charged.inspect_err(|_| self.device(device).has_context = false)
    }

    /// Charges a device for memory that the process uses outside its requests.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if the device has less free memory. The refused charge is then recorded.
    pub(crate) fn charge(
        &mut self,
        device: usize,
        owner: &str,
        part: &'static str,
        figure: Figure,
    ) -> Outcome {
        self.enter(device)?;
        let row = Row { owner: owner.to_owned(), part, figure, call: call::current() };
        if !self.fits(device, figure.bytes) {
            let free_bytes = self.free_bytes(device);
            self.device(device).outside.refused = Some(Refused { row, free_bytes });
            return Err(Failure::OutOfMemory);
        }
        let device = self.device(device);
        device.outside.add(row);
        device.peak.note(device.requested_bytes, &device.outside);
        Ok(())
    }

    /// Raises the bytes charged to an owner to those in `figure`; does nothing if the owner already has at least that
    /// many.
    ///
    /// # Errors
    ///
    /// The errors of [`Uses::charge`].
    pub(crate) fn grow(&mut self, device: usize, owner: &str, figure: Figure) -> Outcome {
        match figure.bytes.saturating_sub(self.charged_bytes(device, owner)) {
            0 => Ok(()),
            bytes => self.charge(device, owner, "", Figure { bytes, ..figure }),
        }
    }

    /// The bytes that have been charged to an owner.
    pub(crate) fn charged_bytes(&self, device: usize, owner: &str) -> u64 {
        self.0.get(&device).map_or(0, |it| it.outside.bytes_of(owner))
    }

    /// Frees all memory that is charged to an owner.
    pub(crate) fn discharge(&mut self, device: usize, owner: &str) {
        self.device(device).outside.remove(owner);
        self.note(device);
    }

    /// Frees bytes of one part that is charged to an owner.
    pub(crate) fn discharge_part(&mut self, device: usize, owner: &str, part: &str, bytes: u64) {
        self.device(device).outside.subtract(owner, part, bytes);
        self.note(device);
    }

    /// Adds bytes to the requests on a device, if there is enough memory.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if they do not.
    pub(crate) fn take(&mut self, device: usize, bytes: u64) -> Outcome {
        self.enter(device)?;
        if !self.fits(device, bytes) {
            return Err(Failure::OutOfMemory);
        }
        let it = self.device(device);
        it.requested_bytes += bytes;
        it.most_bytes = it.most_bytes.max(it.requested_bytes);
        it.peak.note(it.requested_bytes, &it.outside);
        Ok(())
    }

    /// Records that the process uses more bytes of a device, for which managed memory moves to the host if necessary.
    /// Returns `false` if they do not fit.
    fn fits(&mut self, device: usize, bytes: u64) -> bool {
        let Some(all_bytes) = self.device(device).bytes().checked_add(bytes) else { return false };
        if setup().note(device, all_bytes) {
            return true;
        }
        // Another process may have taken the free bytes in between: then they do not fit.
        let short_bytes = bytes.saturating_sub(self.free_bytes(device));
        let it = self.device(device);
        if short_bytes > it.managed.here_bytes || !setup().note(device, all_bytes - short_bytes) {
            return false;
        }
        it.managed.here_bytes -= short_bytes;
        it.requested_bytes -= short_bytes;
        say_moved();
        true
    }

    /// Adds managed memory. What does not fit on the device is on the host.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if there is no memory for a context.
    pub(super) fn take_managed(&mut self, device: usize, bytes: u64) -> Outcome {
        self.enter(device)?;
        let here_bytes = bytes.min(self.free_bytes(device) / PAGE_BYTES * PAGE_BYTES);
        let here_bytes = self.take(device, here_bytes).map_or(0, |()| here_bytes);
        let managed = &mut self.device(device).managed;
        managed.all_bytes += bytes;
        managed.here_bytes += here_bytes;
        if here_bytes < bytes {
            say_moved();
        }
        Ok(())
    }

    /// Subtracts managed memory: first what is on the host.
    pub(super) fn give_managed(&mut self, device: usize, bytes: u64) {
        let managed = &mut self.device(device).managed;
        managed.all_bytes -= bytes;
        let freed_bytes = managed.here_bytes.saturating_sub(managed.all_bytes);
        managed.here_bytes -= freed_bytes;
        self.give(device, freed_bytes);
    }

    /// Subtracts bytes from the requests on a device.
    pub(crate) fn give(&mut self, device: usize, bytes: u64) {
        self.device(device).requested_bytes -= bytes;
        self.note(device);
    }

    /// Records the new total after a decrease, which always fits.
    fn note(&mut self, device: usize) {
        let bytes = self.device(device).bytes();
        setup().note(device, bytes);
    }

    /// The entry of one device.
    fn device(&mut self, device: usize) -> &mut Use {
        self.0.entry(device).or_default()
    }

    /// The bytes that the process has requested on a device, and their peak.
    pub(crate) fn requested_bytes(&self, device: usize) -> (u64, u64) {
        self.0.get(&device).map_or((0, 0), |it| (it.requested_bytes, it.most_bytes))
    }

    /// The memory that the process had on a device at its peak, in the form of [`Peak::text`]. Empty if it never used
    /// the device.
    pub(crate) fn text(&self, device: usize) -> String {
        let used = self.0.get(&device);
        used.map_or_else(String::new, |it| it.peak.text(it.outside.refused.as_ref()))
    }
}

/// Reports once that managed memory moved to the host.
fn say_moved() {
    notice::assume(
        "managed memory (`cudaMallocManaged`)",
        "fills the rest of the GPU: the driver moves its other pages to the host when they are not used, which makes \
         steps slower; the host's figures leave them out",
    );
}

impl Use {
    /// The sum of the requested bytes and the bytes outside requests.
    fn bytes(&self) -> u64 {
        self.requested_bytes + self.outside.bytes()
    }
}
