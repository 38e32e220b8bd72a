//! Streams, events and captures. Everything that is asked of a stream has happened when the call returns, so
//! that all there is to know of one is whether it is being captured.
//!
//! A capture spreads as on a real device: an event recorded on a capturing stream carries it to the streams
//! that wait for the event. What runs during a capture is only counted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::call::new_handle;
use crate::error::{Failure, Outcome};
use crate::lock::locked;
use crate::memory::recent::forget_all;

/// A handle of a stream: 0, 1 and 2 are CUDA's default streams.
pub(crate) type StreamHandle = u64;
/// A handle of an event.
pub(crate) type EventHandle = u64;
/// A handle of a graph.
pub(crate) type GraphHandle = u64;

/// The last of CUDA's names for default streams: null, legacy, per thread.
const LAST_DEFAULT: StreamHandle = 2;

/// A stream.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    priority: i32,
    /// The capture that it takes part in, by its number.
    capture: Option<u64>,
}

/// A capture that is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capture {
    /// CUDA's number of it, from 1.
    pub(crate) number: u64,
    /// Where it was begun, and must be ended.
    origin: StreamHandle,
    /// The graph that comes of it.
    pub(crate) graph: GraphHandle,
    /// Kernels, copies and calls of libraries seen so far.
    nodes: u64,
}

/// All streams, events, captures and graphs of the process.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: BTreeMap<StreamHandle, Stream>,
    /// By event: the capture in which it was recorded last, if it was in one.
    events: BTreeMap<EventHandle, Option<u64>>,
    captures: BTreeMap<u64, Capture>,
    /// By graph: how many nodes it has.
    graphs: BTreeMap<GraphHandle, u64>,
    begun: u64,
}

static STREAMS: Mutex<Streams> = Mutex::new(Streams {
    streams: BTreeMap::new(),
    events: BTreeMap::new(),
    captures: BTreeMap::new(),
    graphs: BTreeMap::new(),
    begun: 0,
});

/// How many captures are under way: launches look here first, and nearly always need no more.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's capture mode, which CUDA lets programs exchange.
    static MODE: Cell<i32> = const { Cell::new(0) };
}

/// The streams of this process, until the guard is dropped.
pub(crate) fn streams() -> MutexGuard<'static, Streams> {
    locked(&STREAMS)
}

/// A kernel ran on a stream. It may have written anywhere.
pub(crate) fn kernel_on(stream: StreamHandle) {
    forget_all();
    ran_on(stream);
}

/// Something ran on a stream: it is part of the capture there, if there is one.
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

/// A kernel ran whose stream is not known, because a library keeps it by its handle: it may be part of any
/// capture.
pub(crate) fn kernel_somewhere() {
    forget_all();
    if UNDER_WAY.load(Ordering::Relaxed) > 0 {
        streams().captures.values_mut().for_each(|capture| capture.nodes += 1);
    }
}

/// Sets this thread's capture mode and returns the one before.
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
    /// `InvalidHandle` if there is none of this handle.
    pub(crate) fn destroy(&mut self, stream: StreamHandle) -> Outcome {
        self.streams.remove(&stream).map(drop).ok_or(Failure::InvalidHandle)
    }

    /// The stream's priority.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle.
    pub(crate) fn priority(&self, stream: StreamHandle) -> Outcome<i32> {
        Ok(self.get(stream)?.priority)
    }

    /// Waits for a stream, which has nothing to do.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle; `CaptureUnsupported` if it is being captured.
    pub(crate) fn settle(&self, stream: StreamHandle) -> Outcome {
        let captured = self.get(stream)?.capture.is_some();
        if captured { Err(Failure::CaptureUnsupported) } else { Ok(()) }
    }

    /// Makes an event.
    pub(crate) fn create_event(&mut self) -> EventHandle {
        let handle = new_handle();
        self.events.insert(handle, None);
        handle
    }

    /// Destroys an event.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle.
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
        *self.events.get_mut(&event).ok_or(Failure::InvalidHandle)? = capture;
        Ok(())
    }

    /// Waits for an event, or asks whether it is past: it always is.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle; `CaptureUnsupported` if it was recorded in a capture.
    pub(crate) fn settle_event(&self, event: EventHandle) -> Outcome {
        match self.events.get(&event) {
            None => Err(Failure::InvalidHandle),
            Some(Some(number)) if self.captures.contains_key(number) => Err(Failure::CaptureUnsupported),
            Some(_) => Ok(()),
        }
    }

    /// Makes a stream wait for an event, whereby it joins the event's capture.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if one of them does not exist.
    pub(crate) fn wait(&mut self, stream: StreamHandle, event: EventHandle) -> Outcome {
        let capture = *self.events.get(&event).ok_or(Failure::InvalidHandle)?;
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
    /// `InvalidHandle` if there is none of this handle; `CaptureUnsupported` for a default stream or one that
    /// is captured already.
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

    /// Ends a capture where it was begun, and returns its graph.
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
    /// `InvalidHandle` if there is none of this handle.
    pub(crate) fn capture(&self, stream: StreamHandle) -> Outcome<Option<Capture>> {
        let number = self.get(stream)?.capture;
        Ok(number.and_then(|number| self.captures.get(&number)).copied())
    }

    /// How many nodes a graph has.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle.
    pub(crate) fn nodes(&self, graph: GraphHandle) -> Outcome<u64> {
        self.graphs.get(&graph).copied().ok_or(Failure::InvalidHandle)
    }

    /// Destroys a graph.
    ///
    /// # Errors
    ///
    /// `InvalidHandle` if there is none of this handle.
    pub(crate) fn destroy_graph(&mut self, graph: GraphHandle) -> Outcome {
        self.graphs.remove(&graph).map(drop).ok_or(Failure::InvalidHandle)
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
