//! The state behind the lock: [`Shared`].

use std::panic::Location;
use std::sync::Arc;

use super::device::Device;
use super::levels::StepLevels;
use super::locations::Locations;
use super::redirect::Redirects;
use crate::allocator::{Allocator, CallbackResult};
use crate::config::Config;
use crate::driver::Driver;
use crate::history::History;
use crate::ledger::Ledger;
use crate::out_of_memory::OutOfMemory;
use crate::request::Request;
use crate::stats::Stats;

/// A callback that may free memory: `DeviceMemory::on_memory_wanted`.
pub(super) type FreeMemory = Arc<dyn Fn() -> CallbackResult + Send + Sync>;
/// A callback for requests that ran out of memory: `DeviceMemory::on_out_of_memory`.
pub(super) type SeeOutOfMemory = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

pub(super) type Core = Allocator<Device, (Stats, Ledger, History)>;

/// The state behind the lock.
pub(super) struct Shared {
    pub(super) core: Core,
    pub(super) redirects: Redirects,
    /// The number of pools made with a new id.
    pub(super) pools_made: u64,
    pub(super) locations: Option<Locations>,
    pub(super) levels: StepLevels,
    pub(super) free_memory: Vec<FreeMemory>,
    pub(super) see_out_of_memory: Vec<SeeOutOfMemory>,
}

impl Shared {
    /// Makes the state for the device behind `driver`. Nothing is allocated yet.
    pub(super) fn new(config: Config, driver: impl Driver + Send + 'static) -> Self {
        let observer = (Stats::new(&config), Ledger::default(), History::default());
        Self {
            core: Allocator::new(config, Device::new(driver), observer),
            redirects: Redirects::default(),
            pools_made: 0,
            locations: None,
            levels: StepLevels::default(),
            free_memory: Vec::new(),
            see_out_of_memory: Vec::new(),
        }
    }

    /// Fills in the pool that the request is sent to, and the place in the program that made it.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(super) fn resolve(&mut self, request: Request, caller: &'static Location<'static>) -> Request {
        let stack = match &mut self.locations {
            Some(locations) if self.core.observer().2.is_recording() => Some(locations.id(caller)),
            _ => request.stack,
        };
        Request { pool: self.redirects.serving(&request), stack, ..request }
    }
}
