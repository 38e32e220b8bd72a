//! Captures of the late device: kernels with the views of their operands, queued again at each
//! replay.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use plimsoll_alloc::StreamId;
use smallvec::SmallVec;

use super::streams::{Cause, Streams};
use crate::backend::{Backend, Replays};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::kernel::{Kernel, Varies};
use crate::view::{Launch, QueuedView, View};

type Views = SmallVec<[QueuedView; 4]>;

/// The arguments of a queued kernel.
pub(super) struct Operands {
    ins: Views,
    outs: Views,
    scratch: Option<QueuedView>,
}

impl Operands {
    pub(super) fn of(launch: &Launch<'_>) -> Operands {
        let copies = |views: &[View<'_>]| -> Views { views.iter().map(|view| view.to_queued()).collect() };
        Operands {
            ins: copies(launch.ins),
            outs: copies(launch.outs),
            scratch: launch.scratch.map(View::to_queued),
        }
    }

    fn run(&self, kernel: &dyn Kernel, host: &Cpu) -> Result<()> {
        let ins: SmallVec<[View<'_>; 4]> = self.ins.iter().map(QueuedView::view).collect();
        let outs: SmallVec<[View<'_>; 4]> = self.outs.iter().map(QueuedView::view).collect();
        host.run(
            kernel,
            Launch { ins: &ins, outs: &outs, scratch: self.scratch.as_ref().map(QueuedView::view) },
        )
    }
}

/// A kernel and its operands.
pub(super) struct Piece {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) operands: Arc<Operands>,
    pub(super) cause: Cause,
}

impl Piece {
    /// Queues the kernel.
    pub(super) fn queue(&self, streams: &Streams, host: &Arc<Cpu>, on: StreamId) -> Result<()> {
        let (queued, operands, host) =
            (streams.queued(self.kernel.clone()), self.operands.clone(), host.clone());
        streams.queue(on, self.cause, move || operands.run(&*queued.kernel, &host))
    }
}

/// For each capture's number, the thread that captures, the stream, and the work so far.
type ByNumber = BTreeMap<u64, (ThreadId, StreamId, Vec<Piece>)>;

/// The captures in progress, by thread.
#[derive(Default)]
pub(super) struct Captures(Mutex<ByNumber>);

impl Captures {
    fn lock(&self) -> MutexGuard<'_, ByNumber> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, on: StreamId) {
        let mut open = self.lock();
        let next = open.keys().next_back().map_or(0, |last| last + 1);
        open.insert(next, (thread::current().id(), on, Vec::new()));
    }

    /// Whether this thread is capturing.
    pub(super) fn is_open(&self) -> bool {
        let this = thread::current().id();
        self.lock().values().any(|(thread, ..)| *thread == this)
    }

    /// Adds a piece of work to this thread's capture, or returns it if there is none.
    pub(super) fn note(&self, piece: Piece) -> Option<Piece> {
        let this = thread::current().id();
        match self.lock().values_mut().find(|(thread, ..)| *thread == this) {
            Some((.., pieces)) => {
                pieces.push(piece);
                None
            }
            None => Some(piece),
        }
    }

    /// Ends this thread's capture.
    pub(super) fn end(&self) -> (StreamId, Vec<Piece>) {
        let this = thread::current().id();
        let mut open = self.lock();
        let at = open.iter().find(|(_, (thread, ..))| *thread == this).map(|(&at, _)| at);
        let ended = at.and_then(|at| open.remove(&at));
        ended.map_or_else(Default::default, |(_, on, pieces)| (on, pieces))
    }
}

/// Captured work.
pub(super) struct Captured {
    streams: Arc<Streams>,
    host: Arc<Cpu>,
    on: StreamId,
    pieces: Vec<Piece>,
    /// The indices of the pieces that vary.
    varying: Vec<usize>,
    varies: Vec<Varies>,
}

impl Captured {
    pub(super) fn new(streams: Arc<Streams>, host: Arc<Cpu>, on: StreamId, pieces: Vec<Piece>) -> Captured {
        let varying = pieces.iter().enumerate().filter_map(|(at, piece)| Some((at, piece.kernel.varies()?)));
        let (varying, varies) = varying.unzip();
        Captured { streams, host, on, pieces, varying, varies }
    }
}

impl Replays for Captured {
    fn varying(&self) -> &[Varies] {
        &self.varies
    }

    fn kernel(&self, at: usize) -> &Arc<dyn Kernel> {
        &self.pieces[self.varying[at]].kernel
    }

    fn change(&mut self, at: usize, kernel: Arc<dyn Kernel>) -> Result<()> {
        self.pieces[self.varying[at]].kernel = kernel;
        Ok(())
    }

    fn replay(&self) -> Result<()> {
        self.pieces.iter().try_for_each(|piece| piece.queue(&self.streams, &self.host, self.on))
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.streams.wait(self.streams.record(self.on));
    }
}
