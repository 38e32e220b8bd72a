//! Whether this thread captures its work on a device, and the random numbers that it draws during the capture.
//!
//! `capture.rs` begins and ends a capture. Operations that a capture cannot contain check here. A thread captures one device at
//! a time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use plimsoll_alloc::StreamId;

use crate::error::{Error, Result};
use crate::random::{Generator, RandomStream, RngState};

thread_local! {
    /// The device whose work this thread captures, by [`Device::number`](crate::Device); 0 if it captures none. Every operation
    /// reads it.
    static DEVICE: Cell<usize> = const { Cell::new(0) };
    static CURRENT: RefCell<Option<Capturing>> = const { RefCell::new(None) };
}

struct Capturing {
    stream: StreamId,
    /// A second stream, which waits for the captured one, and which the captured one waits for.
    branch: Option<StreamId>,
    draws: Draws,
}

/// The sources of random numbers that a capture has used, in the order of first use.
///
/// Note [Draws in a capture]. A draw is identified by its seed and stream. The second run of a checkpoint draws the numbers of
/// the first run again, from a separate generator: that counts as the same draw. So do the draws of two generators in the same
/// state.
#[derive(Debug, Default)]
pub(crate) struct Draws {
    pub(crate) sources: Vec<Source>,
    /// The index of the source of each seed and stream that was drawn.
    of: BTreeMap<(u64, u64), usize>,
}

/// A source of random numbers.
#[derive(Debug)]
pub(crate) struct Source {
    /// `None` if the source is the device.
    pub(crate) generator: Option<Generator>,
    /// Its state before the first draw.
    pub(crate) start: RngState,
}

impl Draws {
    fn note(&mut self, generator: Option<Generator>, RandomStream { seed, stream }: RandomStream) {
        if self.of.contains_key(&(seed, stream)) {
            return;
        }
        let known = self.sources.iter().position(|source| match (&source.generator, &generator) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is(b),
            _ => false,
        });
        let source = known.unwrap_or_else(|| {
            self.sources.push(Source { generator, start: RngState { seed, next_stream: stream } });
            self.sources.len() - 1
        });
        self.of.insert((seed, stream), source);
    }

    /// The index of a draw's source.
    pub(crate) fn source(&self, RandomStream { seed, stream }: RandomStream) -> Option<usize> {
        self.of.get(&(seed, stream)).copied()
    }

    /// All draws, each by its seed and stream.
    pub(crate) fn all(&self) -> impl Iterator<Item = RandomStream> + '_ {
        self.of.keys().map(|&(seed, stream)| RandomStream { seed, stream })
    }
}

/// Begins to capture the work of a device on a stream. Returns false if this thread already captures something.
pub(crate) fn begin(device: usize, stream: StreamId) -> bool {
    if DEVICE.get() != 0 {
        return false;
    }
    DEVICE.set(device);
    CURRENT.set(Some(Capturing { stream, branch: None, draws: Draws::default() }));
    true
}

/// Ends this thread's capture. Returns the random draws.
pub(crate) fn end() -> Draws {
    DEVICE.set(0);
    CURRENT.take().map(|capturing| capturing.draws).unwrap_or_default()
}

/// Whether this thread captures the work of a device.
#[inline]
pub(crate) fn is_open(device: usize) -> bool {
    DEVICE.get() == device
}

/// Whether this thread captures anything.
#[inline]
pub(crate) fn is_any() -> bool {
    DEVICE.get() != 0
}

/// Records a draw.
pub(crate) fn drawn(device: usize, generator: Option<&Generator>, from: RandomStream) {
    if is_open(device) {
        CURRENT.with_borrow_mut(|current| {
            if let Some(capturing) = current {
                capturing.draws.note(generator.cloned(), from);
            }
        });
    }
}

/// Rejects an operation that a replay of this device could not repeat.
///
/// # Errors
/// [`Error::Captured`] if this thread captures the device's work.
#[inline]
pub(crate) fn refuse(device: usize, op: &'static str, why: &'static str) -> Result<()> {
    if is_open(device) { Err(Error::Captured { op, why }.in_layer()) } else { Ok(()) }
}

/// Allows work on another stream during the capture: a branch of the graph. The caller orders it with events at both ends.
pub(crate) fn allow_branch(device: usize, stream: StreamId) {
    if is_open(device) {
        CURRENT.with_borrow_mut(|current| {
            if let Some(capturing) = current {
                capturing.branch = Some(stream);
            }
        });
    }
}

/// Rejects work on a stream other than the captured one and its branch.
///
/// # Errors
/// The same errors as [`refuse`].
#[inline]
pub(crate) fn check_stream(device: usize, on: StreamId, op: &'static str) -> Result<()> {
    if !is_open(device) {
        return Ok(());
    }
    let is_captured = CURRENT.with_borrow(|current| {
        current.as_ref().is_some_and(|capturing| capturing.stream == on || capturing.branch == Some(on))
    });
    match is_captured {
        true => Ok(()),
        false => refuse(device, op, "a captured step runs on one stream: end `with_stream` first"),
    }
}
