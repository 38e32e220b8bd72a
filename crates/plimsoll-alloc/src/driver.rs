//! The device interface: [`Driver`] has every call that the allocator makes to a device.
//!
//! Implementations here: [`Sim`](crate::Sim) (addresses only) and the wrappers [`Limit`](crate::Limit) and
//! [`FailNth`](crate::FailNth). Real devices implement it in their own crates. A driver does not call the allocator.

use std::fmt;

use crate::request::{Addr, StreamId};

/// A device's memory, by segment or by page, and the events of its streams. Every call can fail; a
/// failed call must change nothing.
/// A driver without virtual memory keeps the default implementations of [`reserve`](Self::reserve) to
/// [`unalias`](Self::unalias): expandable segments then fail with an error that says so. A driver whose streams run
/// synchronously keeps the defaults of [`record`](Self::record) to [`wait`](Self::wait): every event is done at once.
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
    /// Allocates a segment of `bytes` and returns its address: not 0, a multiple of 512, overlapping no other.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if it does not fit; the allocator then releases its cache
    /// and retries. [`DriverError::Failed`] for anything else; the error goes to the caller.
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError>;

    /// Frees the segment that starts at `addr`.
    ///
    /// # Errors
    /// If the device fails; the segment then stays cached.
    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError>;

    /// Reserves `bytes` of address space, unmapped, and returns its address: not 0, a
    /// multiple of 512, overlapping no other.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if no address space is left, [`DriverError::Failed`] for anything else.
    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        Err(no_pages(&format!("asked to reserve {bytes} bytes")))
    }

    /// Releases the address space at `at`: all of a reserved range, with nothing mapped.
    ///
    /// # Errors
    /// If the device fails.
    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        Err(no_pages(&format!("asked to release {bytes} bytes at {at}")))
    }

    /// Maps `pages` pages of `page_bytes` each at the reserved address `at`: all or none.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if they do not fit, [`DriverError::Failed`] for anything else.
    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        Err(no_pages(&format!("asked to map {pages} pages of {page_bytes} bytes at {at}")))
    }

    /// Unmaps `pages` pages at `at`, after the work on stream `on` is done.
    ///
    /// # Errors
    /// If the device fails.
    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        let _ = on;
        Err(no_pages(&format!("asked to unmap {pages} pages of {page_bytes} bytes at {at}")))
    }

    /// Maps pages that are mapped elsewhere a second time, in this order, at the reserved address `at`: all or none.
    /// They take no more memory. As CUDA: `cuMemMap` of a handle that is mapped already.
    ///
    /// # Errors
    /// If one of `pages` is not the start of a page that [`map`](Self::map) mapped, or if the device fails.
    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        Err(no_pages(&format!("asked to map {} pages of {page_bytes} bytes again at {at}", pages.len())))
    }

    /// Unmaps `pages` pages that [`alias`](Self::alias) mapped at `at`, after the work on stream `on` is done.
    ///
    /// # Errors
    /// If the device fails.
    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        let _ = on;
        Err(no_pages(&format!("asked to unmap {pages} pages of {page_bytes} bytes at {at}")))
    }

    /// Records an event after the work now queued on a stream. The allocator owns the event until
    /// [`is_done`](Self::is_done) returns true or [`wait`](Self::wait) succeeds; after that, its id may be
    /// reused.
    ///
    /// # Errors
    /// If the device fails. The allocator retries before the next request.
    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        let _ = stream;
        Ok(EventId(0))
    }

    /// Whether an event is done. Does not wait.
    ///
    /// # Errors
    /// If the device fails; the event then counts as not done.
    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        let _ = event;
        Ok(true)
    }

    /// Waits until an event is done.
    ///
    /// # Errors
    /// If the device fails; the event then counts as not done.
    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        let _ = event;
        Ok(())
    }

    /// Whether work that the calling thread submits is captured into a graph rather than run. Called
    /// only between [`begin_capture`](crate::Allocator::begin_capture) and
    /// [`end_capture`](crate::Allocator::end_capture). By default, all work during a capture counts
    /// as captured. As CUDA: `cudaStreamIsCapturing` of the thread's current stream.
    fn is_capturing(&self) -> bool {
        true
    }

    /// The capture of a stream; `None` if it is not captured, or if the driver does not know. Called
    /// only in a capture with `graph_capture_record_stream_reuse`. As CUDA: `cudaStreamGetCaptureInfo`.
    ///
    /// # Errors
    /// If the device fails.
    fn captured(&self, stream: StreamId) -> Result<Option<Captured>, DriverError> {
        let _ = stream;
        Ok(None)
    }

    /// The nodes that a node of a captured graph depends on. As CUDA: `cudaGraphNodeGetDependencies`.
    ///
    /// # Errors
    /// If the device fails.
    fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>, DriverError> {
        let _ = node;
        Ok(Vec::new())
    }

    /// The device's free and total memory.
    fn memory(&self) -> MemoryInfo;
}

/// The capture of a stream: [`Driver::captured`].
///
/// ```
/// # use plimsoll_alloc::{Driver, SimDriver, StreamId};
/// let device = SimDriver::with_capacity(64 << 20);
/// assert_eq!(device.captured(StreamId(1)), Ok(None)); // a simulated device captures nothing
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The capture's unique number. Streams that have joined the capture share it.
    pub capture: u64,
    /// The nodes that the stream's next work will depend on.
    pub tail: Vec<NodeId>,
}

/// A node of a captured graph. The driver chooses the id; it is unique among all graphs that are being captured.
///
/// ```
/// # use plimsoll_alloc::{Driver, NodeId, SimDriver};
/// assert_eq!(SimDriver::with_capacity(64 << 20).dependencies(NodeId(1)), Ok(vec![]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

fn no_pages(asked: &str) -> DriverError {
    DriverError::Failed(format!("no virtual memory support ({asked}); set expandable_segments:False"))
}

/// An event on a stream. The driver chooses the id.
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

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        (**self).alias(at, page_bytes, pages)
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        (**self).unalias(at, page_bytes, pages, on)
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

/// A device's free and total memory.
///
/// ```
/// # use plimsoll_alloc::{Driver, MemoryInfo, SimDriver};
/// let device = SimDriver::with_capacity(64 << 20);
/// assert_eq!(device.memory(), MemoryInfo { free_bytes: 64 << 20, total_bytes: 64 << 20 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free memory, bytes.
    pub free_bytes: u64,
    /// Total memory, bytes.
    pub total_bytes: u64,
}

/// Why a device call failed.
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
    /// Any other failure, with the device's message.
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
