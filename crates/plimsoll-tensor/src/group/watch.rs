//! Ends the work of a rank's GPU if another rank is lost: [`Watch`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use plimsoll_cuda::{Carrier, NcclCommunicator, PeerCopies};
use plimsoll_dist::{Communicator, Error as Lost};

use crate::device::Device;
use crate::error::Error;

/// How often the guard thread checks for lost ranks.
const LOOK: Duration = Duration::from_millis(50);
/// How long a rank waits to learn why another one has ended a group.
const REASON: Duration = Duration::from_secs(2);

/// Watches whether all ranks are alive, and if one is lost, aborts every [`Carrier`] that moves bytes on this rank's GPU.
#[derive(Debug)]
pub(super) struct Watch {
    /// All ranks, even if a group has only some of them: its members may be waiting for a rank outside of it.
    all: Arc<Communicator>,
    carriers: Mutex<Vec<WeakCarrier>>,
    /// Whether the guard is running.
    is_guarded: AtomicBool,
    /// Why the device's work was ended. From then on, its values may be wrong.
    ended: OnceLock<Lost>,
}

#[derive(Debug)]
enum WeakCarrier {
    Nccl(Weak<NcclCommunicator>),
    Peers(Weak<PeerCopies>),
}

impl WeakCarrier {
    fn is_gone(&self) -> bool {
        match self {
            WeakCarrier::Nccl(nccl) => nccl.strong_count() == 0,
            WeakCarrier::Peers(peers) => peers.strong_count() == 0,
        }
    }

    fn abort(&self) {
        match self {
            WeakCarrier::Nccl(nccl) => nccl.upgrade().iter().for_each(NcclCommunicator::abort),
            WeakCarrier::Peers(peers) => peers.upgrade().iter().for_each(|peers| peers.abort()),
        }
    }

    /// Whether another rank has aborted it. NCCL reports that itself.
    fn has_ended(&self) -> bool {
        match self {
            WeakCarrier::Nccl(_) => false,
            WeakCarrier::Peers(peers) => peers.upgrade().is_some_and(|peers| peers.has_ended()),
        }
    }
}

impl Watch {
    pub(super) fn new(all: &Arc<Communicator>) -> Arc<Watch> {
        let (carriers, is_guarded, ended) = Default::default();
        Arc::new(Watch { all: Arc::clone(all), carriers, is_guarded, ended })
    }

    fn carriers(&self) -> MutexGuard<'_, Vec<WeakCarrier>> {
        self.carriers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends this carrier's work, and the host's waits for the device, if a rank is lost.
    pub(super) fn add(self: &Arc<Watch>, device: &Device, carrier: &Carrier) {
        if !self.is_guarded.swap(true, Ordering::Relaxed) {
            self.guard();
        }
        let mut carriers = self.carriers();
        carriers.retain(|other| !other.is_gone());
        carriers.push(match carrier {
            Carrier::Nccl(nccl) => WeakCarrier::Nccl(Arc::downgrade(nccl)),
            Carrier::Peers(peers) => WeakCarrier::Peers(Arc::downgrade(peers)),
        });
        drop(carriers);
        let watch = Arc::downgrade(self);
        device.backend().wait_unless(Box::new(move |waited| {
            let source = watch.upgrade()?.ended(waited)?;
            Some(Error::Distributed { op: "synchronize", source: Box::new(source) })
        }));
    }

    /// The reason to end the device's work, after the host has waited for `waited`; ends the work if it has not ended
    /// yet. `None` if all ranks are alive.
    pub(super) fn ended(&self, waited: Duration) -> Option<Lost> {
        if let Some(ended) = self.ended.get() {
            return Some(ended.clone());
        }
        let lost = self.all.gave_up(waited).or_else(|| self.ended_elsewhere())?;
        let lost = self.ended.get_or_init(|| lost).clone();
        self.carriers().iter().for_each(WeakCarrier::abort);
        Some(lost)
    }

    /// If another rank has aborted a group, returns the reason as soon as it is known here.
    fn ended_elsewhere(&self) -> Option<Lost> {
        if !self.carriers().iter().any(WeakCarrier::has_ended) {
            return None;
        }
        for _ in 0..REASON.as_millis() / LOOK.as_millis() {
            if let Some(lost) = self.all.gave_up(Duration::ZERO) {
                return Some(lost);
            }
            thread::sleep(LOOK);
        }
        Some(Lost::Environment("another rank has ended the collectives of this group".to_owned()))
    }

    /// Starts a thread that ends the device's work if a rank is lost. The host's thread cannot always do so: if it is far
    /// ahead of a device that waits for the lost rank, it is blocked in the driver until the queue has room.
    fn guard(self: &Arc<Watch>) {
        let watch = Arc::downgrade(self);
        let guard = move || {
            while watch.upgrade().is_some_and(|watch| watch.ended(Duration::ZERO).is_none()) {
                thread::sleep(LOOK);
            }
        };
        // Without the thread, the host still notices a lost rank when it waits for the device.
        let _ = thread::Builder::new().name("plimsoll guard".to_owned()).spawn(guard);
    }
}
