//! A function whose memory is planned: [`Traced`].

use std::sync::Arc;

use plimsoll_packing::{Buffer, Effort, lower_bound, pack};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::label::{Category, Span};
use crate::planned::{self, Asked, Plan, Recorded, Recording, Run};
use crate::storage::{Storage, rounded};
use crate::stream;

/// A function that is called again and again with inputs of the same shapes, such as a training step or a forward pass.
/// Its first run is normal. The second run is recorded: each memory request, and when that memory is freed. All of
/// these requests are then packed into one arena. From the third run on, the allocator no longer sees requests for
/// memory that the run itself frees, only for memory that outlives the run, is used on a second stream, or is brought
/// back from the host. This works on every device, for training and for inference. Let the function drop what it makes,
/// especially gradients (`zero_grad` at its end), because memory that outlives a run is allocated outside the arena.
///
/// A run whose requests differ is still correct: the allocator serves the first request that differs and all later
/// ones, and [`Traced::difference`] names that request. If a tensor is still in use when the plan would reuse its
/// bytes, only that one request goes to the allocator.
///
/// ```
/// use plimsoll_tensor::{Device, Tensor, Traced};
/// let device = Device::cpu_with(Default::default());
/// let w = Tensor::randn(&[64, 64], &device)?.requires_grad_(true)?;
/// let x = Tensor::randn(&[32, 64], &device)?;
/// let mut step = Traced::new(&device);
/// for _ in 0..4 {
///     step.run(|| {
///         w.clear_grad();
///         x.matmul(&w)?.gelu()?.matmul(&w)?.square()?.mean()?.backward()
///     })?;
/// }
/// let plan = step.plan().expect("made before the third run");
/// assert!(plan.arena_bytes as f64 <= 1.005 * plan.live_bytes as f64);
/// assert!(step.difference().is_none());
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Debug)]
pub struct Traced {
    device: Device,
    stage: Stage,
    difference: Option<TracedDifference>,
    in_use: usize,
}

/// What is known about the function.
#[derive(Debug)]
enum Stage {
    /// It has not run.
    New,
    /// The next run is recorded.
    HasRun,
    /// The requests of the recorded run.
    Recorded(Vec<Recorded>),
    Planned(Arc<Plan>, TracedPlan),
}

/// What was planned.
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

impl Traced {
    /// A function on a device that has not run yet.
    pub fn new(device: &Device) -> Traced {
        Traced { device: device.clone(), stage: Stage::New, difference: None, in_use: 0 }
    }

    /// Runs the function, which should be the same one each time.
    ///
    /// # Errors
    /// The errors of `f`; also if memory runs out for the arena, or this is called inside another call on the same
    /// thread.
    pub fn run<T>(&mut self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        if planned::is_active() {
            return Err(Error::argument("traced", "a traced function cannot run inside of another one"));
        }
        let device = self.device.number();
        if let Stage::Recorded(recorded) = &self.stage {
            // Done before the run, so that an error leaves nothing half done.
            let (plan, report) = self.planned(recorded)?;
            self.stage = Stage::Planned(plan, report);
        }
        let (done, next) = match &self.stage {
            Stage::New => (f()?, Stage::HasRun),
            // Recorded requests have been planned by now.
            Stage::HasRun | Stage::Recorded(_) => {
                let recording = Arc::new(Recording::default());
                let (done, _) = planned::during(Run::records(device, &recording), f);
                // The results that the caller gets are still alive, so they are not planned.
                (done?, Stage::Recorded(recording.all()))
            }
            Stage::Planned(plan, _) => {
                let (done, served) = planned::during(Run::serves(device, plan), f);
                self.in_use += served.in_use;
                if let Some(Asked { op, bytes, .. }) = served.differs {
                    self.difference.get_or_insert(TracedDifference { number: served.requests, op, bytes });
                }
                return done;
            }
        };
        self.stage = next;
        Ok(done)
    }

    /// The plan, from the third run on.
    pub fn plan(&self) -> Option<TracedPlan> {
        match &self.stage {
            Stage::Planned(_, report) => Some(*report),
            Stage::New | Stage::HasRun | Stage::Recorded(_) => None,
        }
    }

    /// The first request that differed from the plan, if any did.
    pub fn difference(&self) -> Option<TracedDifference> {
        self.difference
    }

    /// How many requests of all runs went to the allocator because their bytes in the arena were still in use. Bytes that
    /// another stream has used stay in use until [`Traced::reset`].
    pub fn in_use_requests(&self) -> usize {
        self.in_use
    }

    /// Discards the plan, so that the function is recorded again. Call this when the shapes of its inputs have changed.
    pub fn reset(&mut self) {
        *self = Traced::new(&self.device);
    }

    /// Packs the requests, and allocates the arena.
    fn planned(&self, recorded: &[Recorded]) -> Result<(Arc<Plan>, TracedPlan)> {
        let size = |recorded: &Recorded| rounded(recorded.asked.bytes);
        // The arena belongs to one stream. Work on other streams may still be running when the host frees its memory.
        let stream = stream::current(&self.device);
        let end = |it: &Recorded| it.end.filter(|_| it.asked.stream == stream);
        let buffer = |it: &Recorded| end(it).map(|upper| Buffer { lower: it.begin, upper, size: size(it) });
        let buffers: Vec<Buffer> = recorded.iter().filter_map(buffer).collect();
        let failed = |why: plimsoll_packing::Error| Error::argument("traced", why.to_string());
        let packing = pack(&buffers, Effort::default()).map_err(failed)?;
        let report = TracedPlan {
            arena_bytes: packing.bytes,
            live_bytes: lower_bound(&buffers).map_err(failed)?,
            planned: buffers.len(),
            unplanned: recorded.len() - buffers.len(),
        };
        // Memory that the recorded run has freed would stay cached outside the arena.
        self.device.empty_cache()?;
        let arena = {
            let _owner = Span::of(Category::Workspace, crate::label::intern("arena of a traced function"));
            Storage::alloc(&self.device, packing.bytes, "traced")?
        };
        let base = arena.address_now().map_or(0, |address| address.0);
        let mut offsets = packing.offsets.into_iter();
        let mut request = |it: &Recorded| {
            let offset = end(it).and_then(|_| offsets.next());
            (it.asked, offset.map(|offset| base + offset))
        };
        let requests = recorded.iter().map(&mut request).collect();
        Ok((Arc::new(Plan::new(requests, Box::new(arena))), report))
    }
}
