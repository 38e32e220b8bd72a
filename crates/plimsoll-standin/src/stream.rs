//! Streams, events and captures. All work has finished when a call returns, so a stream's only state is whether it is
//! being captured.
//!
//! A capture spreads as on a real device: streams that wait for an event recorded on a capturing stream join the
//! capture. Work during a capture is only counted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::call::new_handle;
use crate::error::{Failure, Outcome};
use crate::lock::locked;
use crate::memory::recent::forget_all;

/// A stream handle: 0, 1 and 2 are CUDA's default streams.
pub(crate) type StreamHandle = u64;
/// An event handle.
pub(crate) type EventHandle = u64;
/// A graph handle.
pub(crate) type GraphHandle = u64;
/// The handle of a graph that can be launched.
pub(crate) type ExecHandle = u64;
/// The handle of a graph's node: its graph's handle and its number, from 1.
pub(crate) type NodeHandle = u64;

/// The number of bits in a node's handle that hold its number.
const NODE_BITS: u32 = 24;

/// The highest handle of a default stream: null, legacy, per thread.
const LAST_DEFAULT: StreamHandle = 2;

/// A stream.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    priority: i32,
    /// The ID of the capture that it takes part in.
    capture: Option<u64>,
}

/// The state of an event when it was last recorded.
#[derive(Debug, Clone, Copy, Default)]
struct Event {
    /// The capture in which it was recorded.
    capture: Option<u64>,
    stream: StreamHandle,
    number: u64,
    /// How often it was reported to the watchdog as incomplete.
    refused: u32,
}

/// A capture in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capture {
    /// CUDA's ID for it, from 1.
    pub(crate) number: u64,
    /// The stream on which it began and must end.
    origin: StreamHandle,
    /// The resulting graph.
    pub(crate) graph: GraphHandle,
    /// The number of kernels, copies and library calls recorded so far.
    nodes: u64,
}

impl Capture {
    /// The last node; `None` before the first.
    pub(crate) fn tail(&self) -> Option<NodeHandle> {
        (self.nodes > 0).then_some(self.graph << NODE_BITS | self.nodes)
    }
}

/// All streams, events, captures and graphs of the process.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: BTreeMap<StreamHandle, Stream>,
    /// All events.
    events: BTreeMap<EventHandle, Event>,
    /// How many events were recorded, by stream.
    last: BTreeMap<StreamHandle, u64>,
    captures: BTreeMap<u64, Capture>,
    /// The number of nodes, by graph.
    graphs: BTreeMap<GraphHandle, u64>,
    /// The original graph of each executable graph.
    execs: BTreeMap<ExecHandle, GraphHandle>,
    begun: u64,
}

static STREAMS: Mutex<Streams> = Mutex::new(Streams {
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    last: BTreeMap::new(),
    captures: BTreeMap::new(),
    graphs: BTreeMap::new(),
    execs: BTreeMap::new(),
    begun: 0,
});

/// The number of captures in progress. Launches check it first, and usually need nothing more.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// How many later events on a stream make an event complete for the watchdog. DDP broadcasts twice when it rebuilds
/// its buckets, at the beginning of the second step, and the old buckets exist until the backward pass has begun.
const LATER: u64 = 4;

/// How often an event is reported to the watchdog as incomplete; it asks ten times a second.
const PATIENCE: u32 = 100;

/// The name of PyTorch's thread that waits for NCCL's collectives.
const WATCHDOG: &[u8] = b"pt_nccl_watchdg";

thread_local! {
    /// This thread's capture mode, which CUDA lets programs exchange.
    static MODE: Cell<i32> = const { Cell::new(0) };
    /// Whether this thread is the watchdog, once it has asked.
    static IS_WATCHDOG: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether this is PyTorch's thread that waits for NCCL's collectives.
pub(crate) fn is_watchdog() -> bool {
    if let Some(known) = IS_WATCHDOG.get() {
        return known;
    }
    let mut name = [0_u8; 16];
    // SAFETY: `PR_GET_NAME` writes at most 16 bytes, with a zero at the end, to a buffer of 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let is = name.starts_with(WATCHDOG);
    IS_WATCHDOG.set(Some(is));
    is
}

/// The streams of this process, until the guard is dropped.
pub(crate) fn streams() -> MutexGuard<'static, Streams> {
    locked(&STREAMS)
}

/// A kernel ran on a stream. It may have written to any address.
pub(crate) fn kernel_on(stream: StreamHandle) {
    forget_all();
    ran_on(stream);
}

/// Records work on a stream as part of its capture, if there is one.
pub(crate) fn ran_on(stream: StreamHandle) {
    if UNDER_WAY.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut streams = streams();
    let capture = streams.streams.get(&stream).and_then(|stream| stream.capture);
    if let Some(capture) = capture.and_then(|number| streams.captures.get_mut(&number)) {
        capture.nodes += 1;
    }
}

/// Defines exported functions that would launch a library's kernels. They do nothing, for any arguments.
macro_rules! work {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            $crate::call::answer($crate::error::Library::$library, stringify!($name), || {
                $crate::stream::kernel_somewhere();
                Ok(())
            })
        }
    )*};
}

pub(crate) use work;

/// A kernel ran on an unknown stream, because a library stores the stream in its handle: it may be part of any capture.
pub(crate) fn kernel_somewhere() {
    forget_all();
    if UNDER_WAY.load(Ordering::Relaxed) > 0 {
        streams().captures.values_mut().for_each(|capture| capture.nodes += 1);
    }
}

/// Sets this thread's capture mode and returns the previous one.
pub(crate) fn exchange_mode(mode: i32) -> i32 {
    MODE.replace(mode)
}

impl Streams {
    /// Makes a stream.
    pub(crate) fn create(&mut self, priority: i32) -> StreamHandle {
        let handle = new_handle();
        self.streams.insert(handle, Stream { priority, capture: None });
        handle
    }

    /// Destroys a stream.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such stream.
    pub(crate) fn destroy(&mut self, stream: StreamHandle) -> Outcome {
        self.last.remove(&stream);
        self.streams.remove(&stream).map(drop).ok_or(Failure::InvalidHandle)
    }

    /// The stream's priority.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such stream.
    pub(crate) fn priority(&self, stream: StreamHandle) -> Outcome<i32> {
        Ok(self.get(stream)?.priority)
    }

    /// Synchronizes with a stream, which has no pending work.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such stream; `CaptureUnsupported` if it is being captured.
    pub(crate) fn settle(&self, stream: StreamHandle) -> Outcome {
        let captured = self.get(stream)?.capture.is_some();
        if captured { Err(Failure::CaptureUnsupported) } else { Ok(()) }
    }

    /// Makes an event.
    pub(crate) fn create_event(&mut self) -> EventHandle {
        let handle = new_handle();
        self.events.insert(handle, Event::default());
        handle
    }

    /// Destroys an event.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such event.
    pub(crate) fn destroy_event(&mut self, event: EventHandle) -> Outcome {
        self.events.remove(&event).map(drop).ok_or(Failure::InvalidHandle)
    }

    /// Records an event on a stream.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if one of them does not exist.
    pub(crate) fn record(&mut self, event: EventHandle, stream: StreamHandle) -> Outcome {
        let capture = self.get(stream)?.capture;
        let own = self.events.get_mut(&event).ok_or(Failure::InvalidHandle)?;
        let number = self.last.entry(stream).or_default();
        *number += 1;
        *own = Event { capture, stream, number: *number, refused: 0 };
        Ok(())
    }

    /// Queries an event for PyTorch's NCCL watchdog ([`is_watchdog`]), the thread that releases the tensors of finished
    /// collectives. The event is complete once [`LATER`] more events were recorded on its stream.
    ///
    /// The watchdog asks ten times a second, and PyTorch's host code runs ahead of the GPU. On a real GPU it releases
    /// the gradients of a step while the next step runs, mostly after the peak. Here a step may take longer than the
    /// watchdog's period, so without this rule the result would depend on this machine's speed.
    ///
    /// # Errors
    ///
    /// The errors of `settle_event`; `NotReady`.
    pub(crate) fn query_late(&mut self, event: EventHandle) -> Outcome {
        self.settle_event(event)?;
        let own = self.events.get_mut(&event).ok_or(Failure::InvalidHandle)?;
        let later = self.last.get(&own.stream).map_or(0, |last| last - own.number);
        // At the end of the program, the watchdog must see it as complete.
        if later > LATER || own.refused >= PATIENCE {
            return Ok(());
        }
        own.refused += 1;
        Err(Failure::NotReady)
    }

    /// Synchronizes with an event, or queries it: it is always complete.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such event; `CaptureUnsupported` if it was recorded in a capture.
    pub(crate) fn settle_event(&self, event: EventHandle) -> Outcome {
        match self.events.get(&event) {
            None => Err(Failure::InvalidHandle),
            Some(Event { capture: Some(number), .. }) if self.captures.contains_key(number) => {
                Err(Failure::CaptureUnsupported)
            }
            Some(_) => Ok(()),
        }
    }

    /// Makes a stream wait for an event, and so join the event's capture.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if one of them does not exist.
    pub(crate) fn wait(&mut self, stream: StreamHandle, event: EventHandle) -> Outcome {
        let capture = self.events.get(&event).ok_or(Failure::InvalidHandle)?.capture;
        self.get(stream)?;
        if let Some(number) = capture.filter(|number| self.captures.contains_key(number))
            && let Some(stream) = self.streams.get_mut(&stream)
        {
            stream.capture = Some(number);
        }
        Ok(())
    }

    /// Begins a capture on a stream.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such stream; `CaptureUnsupported` for a default stream or one that is already
    /// being captured.
    pub(crate) fn begin(&mut self, stream: StreamHandle) -> Outcome {
        if self.get(stream)?.capture.is_some() || stream <= LAST_DEFAULT {
            return Err(Failure::CaptureUnsupported);
        }
        self.begun += 1;
        let number = self.begun;
        self.captures.insert(number, Capture { number, origin: stream, graph: new_handle(), nodes: 0 });
        self.streams.entry(stream).or_default().capture = Some(number);
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a capture on the stream where it began, and returns its graph.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such stream; `CaptureUnmatched` if no capture began there.
    pub(crate) fn end(&mut self, stream: StreamHandle) -> Outcome<GraphHandle> {
        let capture = self.capture(stream)?.filter(|capture| capture.origin == stream);
        let capture = capture.ok_or(Failure::CaptureUnmatched)?;
        self.captures.remove(&capture.number);
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(capture.number)) {
            stream.capture = None;
        }
        self.graphs.insert(capture.graph, capture.nodes);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        Ok(capture.graph)
    }

    /// The capture that a stream takes part in.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such stream.
    pub(crate) fn capture(&self, stream: StreamHandle) -> Outcome<Option<Capture>> {
        let number = self.get(stream)?.capture;
        Ok(number.and_then(|number| self.captures.get(&number)).copied())
    }

    /// The number of nodes of a graph.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such graph.
    pub(crate) fn nodes(&self, graph: GraphHandle) -> Outcome<u64> {
        self.graphs.get(&graph).copied().ok_or(Failure::InvalidHandle)
    }

    /// Destroys a graph.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such graph.
    pub(crate) fn destroy_graph(&mut self, graph: GraphHandle) -> Outcome {
        self.graphs.remove(&graph).map(drop).ok_or(Failure::InvalidHandle)
    }

    /// Makes a graph that can be launched.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such graph.
    pub(crate) fn instantiate(&mut self, graph: GraphHandle) -> Outcome<ExecHandle> {
        self.nodes(graph)?;
        let exec = new_handle();
        self.execs.insert(exec, graph);
        Ok(exec)
    }

    /// The original graph of an executable graph.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none.
    pub(crate) fn origin(&self, exec: ExecHandle) -> Outcome<GraphHandle> {
        self.execs.get(&exec).copied().ok_or(Failure::InvalidHandle)
    }

    /// Changes the arguments of a kernel in a graph that can be launched.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such graph, or it was made from a graph without this node.
    pub(crate) fn change(&self, exec: ExecHandle, node: NodeHandle) -> Outcome {
        let graph = self.origin(exec)?;
        let number = node & ((1 << NODE_BITS) - 1);
        let is_there = node >> NODE_BITS == graph && (1..=self.nodes(graph)?).contains(&number);
        if is_there { Ok(()) } else { Err(Failure::InvalidHandle) }
    }

    /// Destroys a graph that can be launched.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is no such graph.
    pub(crate) fn destroy_exec(&mut self, exec: ExecHandle) -> Outcome {
        self.execs.remove(&exec).map(drop).ok_or(Failure::InvalidHandle)
    }

    fn get(&self, stream: StreamHandle) -> Outcome<Stream> {
        match self.streams.get(&stream) {
            Some(stream) => Ok(*stream),
            None if stream <= LAST_DEFAULT => Ok(Stream::default()),
            None => Err(Failure::InvalidHandle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_spreads_by_events_and_ends_for_all() {
        let mut streams = Streams::default();
        let (first, second, event) = (streams.create(0), streams.create(0), streams.create_event());
        streams.begin(first).unwrap();
        streams.record(event, first).unwrap();
        assert!(streams.capture(second).unwrap().is_none());
        streams.wait(second, event).unwrap();
        assert_eq!(streams.capture(second).unwrap().map(|capture| capture.number), Some(1));
        assert_eq!(streams.end(second), Err(Failure::CaptureUnmatched));
        let graph = streams.end(first).unwrap();
        assert_eq!(streams.nodes(graph), Ok(0));
        assert!(streams.capture(second).unwrap().is_none());
        assert_eq!(streams.settle_event(event), Ok(()));
    }

    #[test]
    fn the_watchdog_finds_an_event_complete_after_others_on_its_stream_or_in_the_end() {
        let mut streams = Streams::default();
        let (stream, one, two) = (streams.create(0), streams.create_event(), streams.create_event());
        streams.record(one, stream).unwrap();
        for _ in 0..LATER {
            streams.record(two, stream).unwrap();
            assert_eq!(
                (streams.query_late(one), streams.settle_event(one)),
                (Err(Failure::NotReady), Ok(()))
            );
        }
        streams.record(two, stream).unwrap();
        assert_eq!((streams.query_late(one), streams.query_late(two)), (Ok(()), Err(Failure::NotReady)));
        assert!((0..PATIENCE).any(|_| streams.query_late(two).is_ok()));
    }

    #[test]
    fn a_graph_knows_its_nodes() {
        let mut streams = Streams::default();
        let stream = streams.create(0);
        streams.begin(stream).unwrap();
        assert_eq!(streams.capture(stream).unwrap().unwrap().tail(), None);
        streams.captures.values_mut().for_each(|capture| capture.nodes += 1);
        let node = streams.capture(stream).unwrap().unwrap().tail().unwrap();
        let graph = streams.end(stream).unwrap();
        let exec = streams.instantiate(graph).unwrap();
        assert_eq!((streams.change(exec, node), streams.origin(exec)), (Ok(()), Ok(graph)));
        assert_eq!(streams.change(exec, node + 1), Err(Failure::InvalidHandle));
        assert_eq!(streams.destroy_exec(exec), Ok(()));
        assert_eq!(streams.change(exec, node), Err(Failure::InvalidHandle));
    }

    #[test]
    fn a_stream_under_capture_cannot_be_waited_for() {
        let mut streams = Streams::default();
        let stream = streams.create(-1);
        assert_eq!((streams.settle(stream), streams.priority(stream)), (Ok(()), Ok(-1)));
        streams.begin(stream).unwrap();
        assert_eq!(streams.settle(stream), Err(Failure::CaptureUnsupported));
        assert_eq!(streams.begin(0), Err(Failure::CaptureUnsupported));
        assert_eq!(streams.settle(77), Err(Failure::InvalidHandle));
    }
}
