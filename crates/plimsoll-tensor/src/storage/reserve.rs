//! Memory that is reserved before it is needed.

use std::panic::Location;

use plimsoll_alloc::{Category, Request, Tag};

use super::refused;
use crate::caller;
use crate::device::Device;
use crate::error::Result;
use crate::history;
use crate::label;
use crate::stream;

impl Device {
    /// Reserves memory for later requests: gets a segment in which a request of `bytes` fits, and leaves it in the cache of the
    /// current stream. Does nothing if a cached block is large enough. [`Device::empty_cache`] returns it. Like creating a tensor of
    /// this size and dropping it in PyTorch, but the peaks of allocated bytes stay as they are. Requests of up to 1 MiB have segments
    /// of their own.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, SimConfig, Tensor};
    /// let gpu = Device::sim(SimConfig::new(8 << 30));
    /// gpu.reserve(4 << 30)?;
    /// let x = Tensor::zeros(&[1 << 28], &gpu)?; // 1 GiB, from the cache
    /// assert_eq!((gpu.memory_reserved(), gpu.max_memory_allocated()), (4 << 30, 1 << 30));
    /// let error = gpu.reserve(6 << 30).unwrap_err();
    /// assert!(error.out_of_memory().is_some());
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Out of memory, or more than the limit allows: nothing is reserved, and the cache was returned to the device. The driver's
    /// errors.
    #[track_caller]
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        const OP: &str = "reserve";
        caller::called(Location::caller());
        let tag = Tag { category: Category::Temporary, label: label::intern_static(OP) };
        let Tag { category, label } = tag;
        let (stream, stack) = (stream::current(self), Some(history::stack_of(OP)));
        let request = Request { stream, category, label, stack, ..Request::of(bytes) };
        self.memory().reserve(request).map_err(|error| refused(self, OP, tag, error))
    }
}
