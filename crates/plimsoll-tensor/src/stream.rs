//! Streams, the current stream of each thread, events, and the estimated time of a simulated GPU.
//!
//! A stream is a queue of a device's work: work on one stream runs in the order in which it was queued, and streams
//! run concurrently. Work goes to the current stream of its thread and device, the default stream unless
//! [`with_stream`] is open. If two streams use one tensor, the program must order them with [`Stream::wait_stream`]
//! or an [`Event`].
//!
//! Synchronous devices (`cpu`, `sim`) have streams too; all work on them is complete when the call returns. Their
//! allocators keep separate blocks for each stream, so that `sim` requests the memory that a GPU would.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use plimsoll_alloc::{EventId, StreamId};

use crate::capturing;
use crate::clock::{Clocks, TimelineSpan};
use crate::device::Device;
use crate::error::Result;

/// The number of streams that a device has besides the default one, as in PyTorch's stream pool.
const STREAMS: u64 = 32;

/// A queue of a device's work. Clones are the same stream. Like `torch.cuda.Stream`.
///
/// ```
/// use plimsoll_tensor::testing::LateConfig;
/// use plimsoll_tensor::{Device, Stream, Tensor, with_stream};
/// let device = Device::late(LateConfig::default()); // computes later, as a GPU does
/// let x = Tensor::ones(&[4], &device)?;
/// let side = Stream::new(&device);
/// side.wait_stream(&device.current_stream())?; // `x` is computed on the default stream
/// let y = with_stream(&side, || x.mul_scalar(3.0))?;
/// device.current_stream().wait_stream(&side)?; // and `y` on the other
/// assert_eq!(y.to_vec::<f32>()?, [3.0; 4]);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Stream {
    device: Device,
    id: StreamId,
}

thread_local! {
    /// The streams of this thread's nested calls to [`with_stream`].
    static OPEN: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
    /// The number of streams in `OPEN`, which every operation reads.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

impl Stream {
    /// Returns the next of the device's 32 streams in turn: the 33rd call returns the first stream again, as in
    /// PyTorch.
    pub fn new(device: &Device) -> Stream {
        Stream::numbered(device, StreamId(device.count_stream() % STREAMS + 1))
    }

    /// The stream with this number.
    pub(crate) fn numbered(device: &Device, id: StreamId) -> Stream {
        Stream { device: device.clone(), id }
    }

    /// The device whose work this stream queues.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its number; the default stream has number 0.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Waits until the work that is now on this stream is done. Like `torch.cuda.Stream.synchronize`.
    ///
    /// # Errors
    /// [`Error::Late`](crate::Error::Late) for an unreported error of earlier work.
    pub fn synchronize(&self) -> Result<()> {
        self.record_event()?.synchronize()
    }

    /// Whether all work on this stream is done. Like `torch.cuda.Stream.query`.
    ///
    /// # Errors
    /// The same errors as [`Stream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        self.record_event()?.query()
    }

    /// Makes later work on this stream wait for the work that is now on `other`; the host does not wait. Like
    /// `torch.cuda.Stream.wait_stream`.
    ///
    /// # Errors
    /// The same errors as [`Stream::synchronize`].
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        if self == other { Ok(()) } else { self.wait_event(&other.record_event()?) }
    }

    /// Makes later work on this stream wait for an event. The host does not wait, unless the event is on another
    /// device. Like `torch.cuda.Stream.wait_event`.
    ///
    /// # Errors
    /// The same errors as [`Stream::synchronize`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait(self)
    }

    /// Records an event after the work that is now on this stream. Like `torch.cuda.Stream.record_event`.
    ///
    /// # Errors
    /// The same errors as [`Stream::synchronize`].
    pub fn record_event(&self) -> Result<Event> {
        let event = Event::new();
        event.record(self)?;
        Ok(event)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({}, {})", self.device, self.id.0)
    }
}

impl Device {
    /// The stream of work outside [`with_stream`]. Like `torch.cuda.default_stream`.
    pub fn default_stream(&self) -> Stream {
        Stream::numbered(self, StreamId::default())
    }

    /// The stream on which this thread queues work of this device. Like `torch.cuda.current_stream`.
    pub fn current_stream(&self) -> Stream {
        Stream::numbered(self, current(self))
    }

    /// The estimated time of all work so far on a simulated GPU; `None` for other devices. It is the time until the
    /// last stream finishes, not counting the host's work. Kernels take as long as their arithmetic or memory traffic
    /// at rates that were fitted on an H200; collectives take as long as NCCL's on NVLink.
    ///
    /// ```
    /// use plimsoll_tensor::{DType, Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::like("H200")?);
    /// let x = Tensor::empty(&[8192, 8192], DType::BF16, &device)?;
    /// let before = device.estimated_time().unwrap();
    /// x.matmul(&x)?;
    /// let ms = (device.estimated_time().unwrap() - before).as_secs_f64() * 1e3;
    /// assert!(ms > 1.2 && ms < 2.0); // 1.1e12 operations at 989e12 a second would take 1.1 ms
    /// assert!(Device::cpu().estimated_time().is_none());
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn estimated_time(&self) -> Option<Duration> {
        self.clocks().map(Clocks::all_done)
    }

    /// Runs `f`, and returns the kernels and collectives that a simulated GPU received in that time, with their
    /// estimated durations. Empty on other devices.
    pub fn record_timeline<T>(&self, f: impl FnOnce() -> T) -> (T, Vec<TimelineSpan>) {
        let Some(clocks) = self.clocks() else { return (f(), Vec::new()) };
        clocks.record(true);
        let result = f();
        (result, clocks.record(false))
    }
}

/// Runs `f`. While it runs, this thread's work for the stream's device is queued on that stream, and new tensors
/// on the device belong to it. Like `torch.cuda.stream`.
pub fn with_stream<T>(stream: &Stream, f: impl FnOnce() -> T) -> T {
    /// Restores the previous stream even if `f` panics.
    struct Open(usize);
    impl Drop for Open {
        fn drop(&mut self) {
            let ended = OPEN.with_borrow_mut(|open| open.split_off(self.0));
            DEPTH.set(self.0);
            drop(ended); // outside the borrow: this may drop the last handle to a device
        }
    }
    let _open = Open(OPEN.with_borrow_mut(|open| {
        open.push(stream.clone());
        DEPTH.set(open.len());
        open.len() - 1
    }));
    f()
}

/// The number of this thread's current stream on a device.
#[inline]
pub(crate) fn current(device: &Device) -> StreamId {
    if DEPTH.get() == 0 { StreamId::default() } else { innermost(device) }
}

#[cold]
fn innermost(device: &Device) -> StreamId {
    OPEN.with_borrow(|open| {
        open.iter()
            .rev()
            .find(|stream| stream.device == *device)
            .map_or(StreamId::default(), |stream| stream.id)
    })
}

/// A point in a stream's work. Like `torch.cuda.Event`.
///
/// ```
/// use plimsoll_tensor::testing::LateConfig;
/// use plimsoll_tensor::{Device, Event, Tensor};
/// let device = Device::late(LateConfig::default());
/// let event = Event::new();
/// assert!(event.query()?); // nothing to wait for yet
/// let x = Tensor::ones(&[4], &device)?;
/// event.record(&device.current_stream())?;
/// event.synchronize()?; // now `x` has its values
/// assert!(event.query()?);
/// # drop(x);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct Event(Mutex<Option<Recorded>>);

/// The place where an event was last recorded.
struct Recorded {
    device: Device,
    /// `None` on a synchronous device.
    id: Option<EventId>,
    /// When the work before the event finishes on a simulated GPU.
    at: Option<f64>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if let (Some(queues), Some(id)) = (self.device.queues(), self.id) {
            queues.release(id);
        }
    }
}

impl Event {
    /// An event that is not recorded yet. It counts as done.
    pub fn new() -> Event {
        Event::default()
    }

    /// Records the event again, after the work that is now on a stream. Like `torch.cuda.Event.record`.
    ///
    /// # Errors
    /// [`Error::Late`](crate::Error::Late) for an unreported error of earlier work.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        stream.device.late_error()?;
        self.record_now(stream)
    }

    /// Like [`Event::record`], but leaves the errors of earlier work to the next call.
    pub(crate) fn record_now(&self, stream: &Stream) -> Result<()> {
        let id = stream.device.queues().map(|queues| queues.record(stream.id)).transpose()?;
        let at = stream.device.clocks().map(|clocks| clocks.done(stream.id));
        let before = self.replace(Some(Recorded { device: stream.device.clone(), id, at }));
        drop(before); // outside the lock
        Ok(())
    }

    /// Makes later work on `stream` wait for this event. Like `torch.cuda.Event.wait`.
    ///
    /// # Errors
    /// The same errors as [`Event::record`].
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        let recorded = self.lock();
        if let (Some(Recorded { at: Some(at), .. }), Some(clocks)) = (&*recorded, stream.device.clocks()) {
            clocks.wait(stream.id, *at);
        }
        let Some(Recorded { device, id: Some(id), .. }) = &*recorded else { return Ok(()) };
        let Some(queues) = device.queues() else { return Ok(()) };
        // A device cannot wait for another device's events, so the host waits instead.
        if *device == stream.device { queues.wait_on(stream.id, *id) } else { queues.wait(*id) }
    }

    /// Waits on the host until the work before this event is done. Like `torch.cuda.Event.synchronize`.
    ///
    /// # Errors
    /// The same errors as [`Event::record`].
    pub fn synchronize(&self) -> Result<()> {
        let recorded = self.lock();
        let Some(Recorded { device, id, .. }) = &*recorded else { return Ok(()) };
        capturing::refuse(device.number(), "synchronize", "nothing runs before the replay: wait afterwards")?;
        if let (Some(queues), Some(id)) = (device.queues(), id) {
            queues.wait(*id)?;
        }
        device.late_error()
    }

    /// Whether the work before this event is done. Like `torch.cuda.Event.query`.
    ///
    /// # Errors
    /// The same errors as [`Event::record`].
    pub fn query(&self) -> Result<bool> {
        let recorded = self.lock();
        let Some(Recorded { device, id, .. }) = &*recorded else { return Ok(true) };
        capturing::refuse(device.number(), "query", "nothing runs before the replay: query it afterwards")?;
        device.late_error()?;
        match (device.queues(), id) {
            (Some(queues), Some(id)) => queues.is_done(*id),
            _ => Ok(true),
        }
    }

    fn replace(&self, recorded: Option<Recorded>) -> Option<Recorded> {
        std::mem::replace(&mut *self.lock(), recorded)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Recorded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.lock() {
            Some(Recorded { device, .. }) => write!(f, "Event(recorded on {device})"),
            None => f.write_str("Event(not recorded)"),
        }
    }
}
