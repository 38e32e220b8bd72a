//! The device seam: all that the allocator asks of a device is a [`Driver`].
//!
//! Implementations here: [`Sim`](crate::Sim) (addresses only) and the wrappers [`Limit`](crate::Limit) and
//! [`FailNth`](crate::FailNth). Real devices implement it in their own crates. A driver never calls back.

use std::fmt;

use crate::request::{Addr, StreamId};

/// A device's memory, by the segment or by the page, and the events of its streams. Every call can fail; a
/// failed call has changed nothing.
///
/// A driver without virtual memory keeps the defaults of [`reserve`](Self::reserve) to
/// [`unmap`](Self::unmap): expandable segments then fail, in words. One whose streams do nothing on their
/// own keeps those of [`record`](Self::record) to [`wait`](Self::wait): every event is done at once.
///
/// ```
/// use plimsoll_alloc::{Addr, Driver, DriverError, MemoryInfo};
///
/// /// A device with one segment of 2 MiB.
/// struct One(Option<Addr>);
/// impl Driver for One {
///     fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
///         if bytes > 2 << 20 {
///             return Err(DriverError::OutOfMemory);
///         }
///         self.0.take().ok_or(DriverError::OutOfMemory)
///     }
///     fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
///         self.0 = Some(addr);
///         Ok(())
///     }
///     fn memory(&self) -> MemoryInfo {
///         let free_bytes = if self.0.is_some() { 2 << 20 } else { 0 };
///         MemoryInfo { free_bytes, total_bytes: 2 << 20 }
///     }
/// }
/// let mut device = One(Some(Addr(512)));
/// assert_eq!(device.segment_alloc(4096), Ok(Addr(512)));
/// assert_eq!(device.segment_alloc(4096), Err(DriverError::OutOfMemory));
/// ```
pub trait Driver {
    /// Makes a segment of `bytes` and returns its start: not 0, a multiple of 512, apart from all others.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if it does not fit, which the allocator answers by releasing its cache
    /// and asking once more; [`DriverError::Failed`] for anything else, which goes to the caller.
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError>;

    /// Gives back the segment that starts at `addr`.
    ///
    /// # Errors
    /// If the device refuses; the segment then stays in the cache.
    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError>;

    /// Sets `bytes` of address space aside, without memory behind it, and returns its start: not 0, a
    /// multiple of 512, apart from all others.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if there is no such space left, [`DriverError::Failed`] for anything else.
    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        Err(no_pages(&format!("asked to reserve {bytes} bytes")))
    }

    /// Gives back the address space at `at`, all of it and without memory behind it.
    ///
    /// # Errors
    /// If the device refuses.
    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        Err(no_pages(&format!("asked to release {bytes} bytes at {at}")))
    }

    /// Puts `pages` pages of `page_bytes` each behind the reserved address space from `at` on: all or none.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if they do not fit, [`DriverError::Failed`] for anything else.
    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        Err(no_pages(&format!("asked to map {pages} pages of {page_bytes} bytes at {at}")))
    }

    /// Takes the memory behind `pages` pages from `at` on back, after the work on stream `on` is done.
    ///
    /// # Errors
    /// If the device refuses.
    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        let _ = on;
        Err(no_pages(&format!("asked to unmap {pages} pages of {page_bytes} bytes at {at}")))
    }

    /// Marks the end of what is now on a stream. The event is the allocator's until
    /// [`is_done`](Self::is_done) said yes or [`wait`](Self::wait) succeeded; its id may then come again.
    ///
    /// # Errors
    /// If the device refuses. The allocator tries again before the next request.
    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        let _ = stream;
        Ok(EventId(0))
    }

    /// Whether the stream has passed an event. Does not wait.
    ///
    /// # Errors
    /// If the device refuses; the event is then still to come.
    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        let _ = event;
        Ok(true)
    }

    /// Waits until the stream has passed an event.
    ///
    /// # Errors
    /// If the device refuses; the event is then still to come.
    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        let _ = event;
        Ok(())
    }

    /// Whether the work that the calling thread submits now is captured into a graph rather than run. Asked
    /// only between [`begin_capture`](crate::Allocator::begin_capture) and
    /// [`end_capture`](crate::Allocator::end_capture); unless the driver knows better, all work is then.
    /// As CUDA: `cudaStreamIsCapturing` of the thread's current stream.
    fn is_capturing(&self) -> bool {
        true
    }

    /// What a stream is captured into now; `None` if it is not captured, or if the driver does not say. Asked
    /// only in a capture with `graph_capture_record_stream_reuse`. As CUDA: `cudaStreamGetCaptureInfo`.
    ///
    /// # Errors
    /// If the device refuses.
    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, DriverError> {
        let _ = stream;
        Ok(None)
    }

    /// The nodes on which a node of a captured graph depends. As CUDA: `cudaGraphNodeGetDependencies`.
    ///
    /// # Errors
    /// If the device refuses.
    fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DriverError> {
        let _ = node;
        Ok(Vec::new())
    }

    /// What the device has.
    fn memory(&self) -> MemoryInfo;
}

/// What a stream is captured into: [`Driver::captured`].
///
/// ```
/// # use plimsoll_alloc::{Driver, SimDriver, StreamId};
/// let device = SimDriver::with_capacity(64 << 20);
/// assert_eq!(device.captured(StreamId(1)), Ok(None)); // a simulated device captures nothing
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The capture's number, apart from those of all others. Streams that have joined it share it.
    pub capture: u64,
    /// The nodes on which the stream's next work will depend.
    pub tail: Vec<NodeId>,
}

/// A node of a captured graph, named by its driver; apart from those of all graphs that are captured now.
///
/// ```
/// # use plimsoll_alloc::{Driver, NodeId, SimDriver};
/// assert_eq!(SimDriver::with_capacity(64 << 20).dependencies(NodeId(1)), Ok(vec![]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

fn no_pages(asked: &str) -> DriverError {
    DriverError::Failed(format!("it has no pages to map ({asked}); set expandable_segments:False"))
}

/// A mark on a stream, named by its driver.
///
/// ```
/// # use plimsoll_alloc::{Driver, SimDriver, StreamId};
/// let mut device = SimDriver::with_capacity(64 << 20);
/// let event = device.record(StreamId(1))?;
/// assert!(device.is_done(event)?); // a simulated stream has nothing to do
/// # Ok::<(), plimsoll_alloc::DriverError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        (**self).segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        (**self).segment_free(addr)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        (**self).reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        (**self).release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        (**self).map(at, page_bytes, pages)
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        (**self).unmap(at, page_bytes, pages, on)
    }

    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        (**self).record(stream)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        (**self).is_done(event)
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        (**self).wait(event)
    }

    fn is_capturing(&self) -> bool {
        (**self).is_capturing()
    }

    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, DriverError> {
        (**self).captured(stream)
    }

    fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DriverError> {
        (**self).dependencies(node)
    }

    fn memory(&self) -> MemoryInfo {
        (**self).memory()
    }
}

/// A device's memory in numbers.
///
/// ```
/// # use plimsoll_alloc::{Driver, MemoryInfo, SimDriver};
/// let device = SimDriver::with_capacity(64 << 20);
/// assert_eq!(device.memory(), MemoryInfo { free_bytes: 64 << 20, total_bytes: 64 << 20 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What nobody holds, bytes.
    pub free_bytes: u64,
    /// All of it, bytes.
    pub total_bytes: u64,
}

/// Why a device refused.
///
/// ```
/// # use plimsoll_alloc::DriverError;
/// let error = DriverError::Failed("the device fell off the bus".into());
/// assert_eq!(error.to_string(), "the device failed: the device fell off the bus");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverError {
    /// There is not enough memory left.
    OutOfMemory,
    /// Anything else, in the device's own words.
    Failed(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => write!(f, "the device is out of memory"),
            Self::Failed(why) => write!(f, "the device failed: {why}"),
        }
    }
}

impl std::error::Error for DriverError {}
