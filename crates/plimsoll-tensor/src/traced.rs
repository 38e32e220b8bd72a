//! A function whose memory is planned: [`Traced`].

use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::packed::{MemoryPlan, TracedDifference, TracedPlan, recorded, want_no_other_run};
use crate::planned::{self, Plan, Recorded, Run};
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
        want_no_other_run()?;
        if let Stage::Recorded(requests) = &self.stage {
            // Done before the run, so that an error leaves nothing half done.
            let plan = MemoryPlan::new(requests, stream::current(&self.device), false)?;
            self.stage = Stage::Planned(plan.within(&plan.arena(&self.device)?), plan.report());
        }
        let (done, next) = match &self.stage {
            Stage::New => (f()?, Stage::HasRun),
            // Recorded requests have been planned by now.
            Stage::HasRun | Stage::Recorded(_) => {
                let (done, requests) = recorded(&self.device, f)?;
                (done, Stage::Recorded(requests))
            }
            Stage::Planned(plan, _) => {
                let (done, served) = planned::during(Run::serves(self.device.number(), plan), f);
                self.in_use += served.in_use;
                self.difference = self.difference.or(served.difference());
                return done;
            }
        };
        self.stage = next;
        Ok(done)
    }

    /// Whether this thread is in a run whose requests are recorded or planned: of this type, or for a captured step.
    pub fn is_running() -> bool {
        planned::is_active()
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
}
