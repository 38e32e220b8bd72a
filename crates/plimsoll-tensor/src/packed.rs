//! Requests that were recorded while a function ran, packed into an arena: [`MemoryPlan`].

use std::sync::Arc;

use plimsoll_alloc::{StreamId, Tag};
use plimsoll_packing::{Buffer, Effort, pack, peak};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::label::{Category, Span};
use crate::planned::{self, Arena, Asked, Plan, Recorded, Recording, Run, Served};
use crate::storage::{Storage, rounded};
use crate::stream;

/// A summary of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedPlan {
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// The most bytes of planned requests that are in use at the same time: no arena can be smaller.
    pub live_bytes: u64,
    /// The number of requests that the arena serves.
    pub planned: usize,
    /// The number of requests of each run that the allocator serves, because their memory outlives the run or is used by another
    /// stream.
    pub unplanned: usize,
}

/// A request that differed from the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedDifference {
    /// Its number in the run, from 0.
    pub number: usize,
    /// The operation that requested memory.
    pub op: &'static str,
    /// Its bytes.
    pub bytes: u64,
}

impl Served {
    /// The first request that differed from the plan.
    pub(crate) fn difference(&self) -> Option<TracedDifference> {
        self.differs.map(|Asked { op, bytes, .. }| TracedDifference { number: self.requests, op, bytes })
    }
}

/// A plan of the memory of a function, made from one run, for a capture of the next run:
/// [`Graph::capture_planned`](crate::Graph::capture_planned).
///
/// ```
/// use plimsoll_tensor::{Device, MemoryPlan, SimConfig, Tensor};
/// let gpu = Device::sim(SimConfig::like("H200")?);
/// let x = Tensor::zeros(&[1024, 1024], &gpu)?;
/// let (y, plan) = MemoryPlan::record(&gpu, || x.add_scalar(1.0)?.exp()?.sum())?;
/// // Two temporary tensors of 4 MiB, the sum, which outlives the run, and the memory that computes it.
/// let report = plan.report();
/// assert_eq!((report.live_bytes >> 20, report.unplanned), (8, 0));
/// # drop(y);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    requests: Arc<[(Asked, Option<u64>)]>,
    report: TracedPlan,
    /// Who uses the bytes when most of them are in use.
    owners: Vec<(Tag, u64)>,
}

impl MemoryPlan {
    /// Runs a function as usual, and plans the memory that it requests on a device's current stream from this thread:
    /// both the memory that it frees and the memory that it leaves. Returns what the function returns, and the plan.
    ///
    /// # Errors
    /// The errors of `f`; also if this is called inside a [`Traced`](crate::Traced) run or another recording on the same
    /// thread.
    pub fn record<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, MemoryPlan)> {
        let (done, requests) = recorded(device, f)?;
        let plan = MemoryPlan::new(&requests, stream::current(device), true)?;
        Ok((done, plan))
    }

    /// Packs the requests of a run on a stream; if `keeps` is set, also those that outlive the run.
    pub(crate) fn new(requests: &[Recorded], stream: StreamId, keeps: bool) -> Result<MemoryPlan> {
        let last = requests.iter().flat_map(|it| [Some(it.begin), it.end]).flatten().max().unwrap_or(0) + 1;
        // An arena belongs to one stream. Work on other streams may still be running when the host frees its memory.
        let upper = |it: &Recorded| {
            let end = it.end.or_else(|| keeps.then_some(last));
            end.filter(|_| it.asked.stream == stream && !it.is_shared)
        };
        let buffer = |it: &Recorded| {
            upper(it).map(|upper| Buffer { lower: it.begin, upper, size: rounded(it.asked.bytes) })
        };
        let buffers: Vec<Buffer> = requests.iter().filter_map(buffer).collect();
        let failed = |why: plimsoll_packing::Error| Error::argument("traced", why.to_string());
        let packing = pack(&buffers, Effort::default()).map_err(failed)?;
        let (at_peak, live_bytes) = peak(&buffers).map_err(failed)?;
        let report = TracedPlan {
            arena_bytes: packing.bytes,
            live_bytes,
            planned: buffers.len(),
            unplanned: requests.len() - buffers.len(),
        };
        let mut offsets = packing.offsets.into_iter();
        let place = |it: &Recorded| (it.asked, upper(it).and_then(|_| offsets.next()));
        let is_live = |buffer: &Buffer| buffer.lower <= at_peak && at_peak < buffer.upper;
        let owners = requests
            .iter()
            .filter_map(|it| buffer(it).filter(is_live).map(|buffer| (it.tag, buffer.size)))
            .collect();
        Ok(MemoryPlan { requests: requests.iter().map(place).collect(), report, owners })
    }

    /// A summary of the plan.
    pub fn report(&self) -> TracedPlan {
        self.report
    }

    /// Allocates an arena for this plan. Its bytes are those of the plan's owners in the account of the device.
    pub(crate) fn arena(&self, device: &Device) -> Result<Arc<Arena>> {
        // Memory that the recorded run has freed would stay cached outside the arena.
        device.empty_cache()?;
        let label = device.new_arena(&self.owners);
        let _owner = Span::of(Category::Workspace, label);
        let memory = Storage::alloc(device, self.report.arena_bytes, "traced")?;
        Ok(Arc::new(Arena::new(Box::new(memory))))
    }

    /// The addresses of this plan in an arena that is large enough.
    pub(crate) fn within(&self, arena: &Arc<Arena>) -> Arc<Plan> {
        Plan::new(&self.requests, arena)
    }
}

/// Runs a function, and records the memory that this thread requests on a device.
pub(crate) fn recorded<T>(device: &Device, f: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Recorded>)> {
    want_no_other_run()?;
    let recording = Arc::new(Recording::default());
    let (done, _) = planned::during(Run::records(device.number(), &recording), f);
    // The results that the caller gets are still alive, so they outlive the run.
    Ok((done?, recording.all()))
}

/// # Errors
/// If this thread's requests are already recorded, or served by a plan.
pub(crate) fn want_no_other_run() -> Result<()> {
    match planned::is_active() {
        true => Err(Error::argument("traced", "a traced function cannot run inside of another one")),
        false => Ok(()),
    }
}
