//! CUDA graphs: the work that a function queues is captured once, and then replayed with a single call.
//!
//! [`Graph::capture`] runs a function whose operators are recorded instead of run; [`Graph::replay`] queues all of them
//! at once, at the cost of one driver call. Tensors keep their addresses: a replay reads the current contents of the
//! captured function's tensors, and overwrites the results of the previous replay. Like `torch.cuda.CUDAGraph`.
//!
//! Note [What varies]. Each replay uses new random numbers and new optimizer step numbers. Before a replay, the
//! operators that use them describe their launches again, with the next numbers, and kernel arguments that differ are
//! updated in the graph. So a replay computes what the function itself would have computed. (PyTorch keeps such numbers
//! in device memory, and its kernels must be written to read them from there.) Every other decision of the host is
//! fixed at capture.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use plimsoll_alloc::{Pool, PoolGuard};

use crate::backend::{Queues, Replays};
use crate::capturing::{self, Draws};
use crate::cpu::kernels::optim::Rule;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::Varies;
use crate::ops::{CapturedStep, CapturedUpdate, take_captured_steps};
use crate::packed::{MemoryPlan, TracedDifference, want_no_other_run};
use crate::planned::{self, Arena, Run};
use crate::random::{Generator, RandomStream, RngState};
use crate::stream::Stream;
use crate::tensor::Tensor;

/// The memory of captured graphs, separate from the device's other memory. Allocations made during a capture keep their
/// addresses. The memory returns to the device when the last graph and the last tensor in it are dropped. Like the pool
/// of `torch.cuda.graph_pool_handle`.
///
/// Graphs that share a pool use the same memory for their temporaries. Replay them one after the other, and do not use a result
/// of one in this pool as an input of another.
#[derive(Clone, Debug)]
pub struct GraphPool {
    pool: Arc<Pool>,
    device: Device,
    /// The memory of planned captures, and its bytes.
    arena: Option<(Arc<Arena>, u64)>,
}

impl GraphPool {
    /// Makes a pool on a device.
    ///
    /// # Errors
    /// The allocator's errors.
    pub fn new(device: &Device) -> Result<GraphPool> {
        let pool = device.memory().new_pool();
        let pool = pool.map_err(|source| refused(device, source))?;
        Ok(GraphPool { pool: Arc::new(pool), device: device.clone(), arena: None })
    }

    /// Makes a pool whose graphs also share an arena, which is just large enough for this plan:
    /// [`Graph::capture_planned`].
    ///
    /// # Errors
    /// The allocator's errors.
    pub fn with_arena(device: &Device, plan: &MemoryPlan) -> Result<GraphPool> {
        let arena = Some((plan.arena(device)?, plan.report().arena_bytes));
        Ok(GraphPool { arena, ..GraphPool::new(device)? })
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.as_ref().map_or(0, |(_, bytes)| *bytes)
    }

    /// Says which tensors that earlier captures have left in the arena are in use. Later captures overwrite the others, such as a
    /// gradient that the next replay of its graph writes again. Call it with all of them before each capture.
    pub fn set_in_use<'a>(&self, left: impl IntoIterator<Item = (&'a Tensor, bool)>) {
        if let Some((arena, _)) = &self.arena {
            let place =
                |(tensor, is_used): (&Tensor, bool)| (tensor.storage_ptr(), tensor.storage_bytes(), is_used);
            arena.set_in_use(left.into_iter().map(place));
        }
    }

    /// Runs `f`; while it runs, this thread's allocations on the device come from this pool. Like
    /// `torch.cuda.use_mem_pool`.
    ///
    /// Use it for warm-up work before a capture, so that the capture reuses its memory. No graph of this pool may have been
    /// captured before: it could overwrite tensors that `f` leaves in the pool.
    ///
    /// # Errors
    /// Errors of the allocator or of `f`.
    pub fn serve<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _served = self.pool.use_here().map_err(|source| refused(&self.device, source))?;
        f()
    }

    /// Bytes that the pool has reserved on the device, including cached ones.
    pub fn reserved_bytes(&self) -> u64 {
        self.pool.segments().iter().map(|segment| segment.bytes).sum()
    }
}

fn refused(device: &Device, source: plimsoll_alloc::Error) -> Error {
    Error::Allocator { device: device.name().to_owned(), source }
}

/// Captured work of a device, which can be replayed. On a simulated device, a replay does nothing, like every operator.
///
/// ```
/// use plimsoll_tensor::testing::LateConfig;
/// use plimsoll_tensor::{Device, Graph, Tensor};
/// let device = Device::late(LateConfig::default()); // computes later, as a GPU does
/// let x = Tensor::zeros(&[2], &device)?;
/// let (mut graph, y) = Graph::capture(&device, None, || x.add_scalar(1.0))?;
/// for value in [2.0, 3.0] {
///     x.fill_(value)?;
///     graph.replay()?;
///     assert_eq!(y.to_vec::<f32>()?, [value as f32 + 1.0; 2]);
/// }
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
pub struct Graph {
    device: Device,
    on: Stream,
    /// `None` on a device that computes nothing. Declared before the pool, so that its work ends before the memory is freed.
    work: Option<Box<dyn Replays>>,
    draws: Draws,
    sources: Vec<Drawn>,
    steps: Vec<CapturedStep>,
    updates: Vec<CapturedUpdate>,
    /// For each step, its index among the varying kernels.
    step_at: Vec<usize>,
    pool: GraphPool,
    difference: Option<TracedDifference>,
    /// How long a replay takes on a simulated GPU, in seconds.
    seconds: f64,
}

/// The random streams that a replay draws from one source.
struct Drawn {
    /// `None` if the source is the device.
    generator: Option<Generator>,
    /// Its state at the capture.
    start: RngState,
    /// The number of random streams that each replay draws.
    count: u64,
    /// Its state before it drew the numbers that are in the graph now.
    base: RngState,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).field("on", &self.on).finish_non_exhaustive()
    }
}

impl Graph {
    /// Captures the work that `f` queues on the current stream of an asynchronous device, without running it. Memory that `f`
    /// allocates on this thread comes from `pool`, or from a new pool. As in PyTorch, the call first waits for all work of the
    /// device and empties its cache. The random states of the device and of generators do not change.
    ///
    /// # Errors
    /// The errors of `f`; [`Error::Captured`] for operations that cannot be replayed (reading a value, waiting, copying
    /// values from the host, using another stream). Also if the device is synchronous or evicts tensors
    /// ([`Device::rematerialize`]), or a capture is already under way. The device remains usable.
    pub fn capture<T>(
        device: &Device,
        pool: Option<&GraphPool>,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<(Graph, T)> {
        const OP: &str = "capture";
        if !device.captures() {
            let why = "this device runs operations immediately: call the function instead";
            return Err(Error::Captured { op: OP, why });
        }
        if capturing::is_any() {
            return Err(Error::Captured { op: OP, why: "this thread is already capturing a step" });
        }
        if device.evicts() {
            let why = "a replay finds tensors at the addresses of the capture, but `Device::rematerialize` evicts them: use one of \
                       the two";
            return Err(Error::Captured { op: OP, why });
        }
        device.synchronize()?;
        device.empty_cache()?;
        let pool = pool.map_or_else(|| GraphPool::new(device), |pool| Ok(pool.clone()))?;
        let capture = Capture::begin(device, &pool)?;
        let (done, seconds) = match device.clocks() {
            Some(clocks) => clocks.undone(device.current_stream().id(), f),
            None => (f(), 0.0),
        };
        let ended = capture.end();
        let out = done?;
        Ok((Graph { seconds, ..Graph::new(device, pool, ended?)? }, out))
    }

    /// [`Graph::capture`] of a function whose memory was planned in the run before: planned requests are served from the
    /// arena of the pool, and all others from the pool. If the arena is too small for the plan, or a request differs from
    /// it, the pool serves that request and all later ones: [`Graph::difference`].
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Graph, GraphPool, MemoryPlan, SimConfig, Tensor};
    /// let gpu = Device::sim(SimConfig::like("H200")?);
    /// let x = Tensor::zeros(&[1024, 1024], &gpu)?;
    /// let f = || x.add_scalar(1.0)?.exp()?.sum();
    /// let (y, plan) = MemoryPlan::record(&gpu, f)?;
    /// let pool = GraphPool::with_arena(&gpu, &plan)?;
    /// let (graph, y) = Graph::capture_planned(&pool, &plan, f)?;
    /// assert_eq!((graph.difference(), pool.reserved_bytes()), (None, 0));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Graph::capture`]; also if this is called inside a [`Traced`](crate::Traced) run.
    pub fn capture_planned<T>(
        pool: &GraphPool,
        plan: &MemoryPlan,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<(Graph, T)> {
        want_no_other_run()?;
        let device = &pool.device;
        let arena = pool.arena.as_ref().filter(|(_, bytes)| plan.report().arena_bytes <= *bytes);
        let Some((arena, _)) = arena else { return Graph::capture(device, Some(pool), f) };
        let run = Run::serves_capture(device.number(), &plan.within(arena));
        let (done, served) = planned::during(run, || Graph::capture(device, Some(pool), f));
        let (graph, done) = done?;
        Ok((Graph { difference: served.difference(), ..graph }, done))
    }

    fn new(device: &Device, pool: GraphPool, ended: Ended) -> Result<Graph> {
        let Ended { on, work, draws, sources, steps, updates } = ended;
        let varying = work.as_ref().map_or(&[][..], |work| work.varying());
        let random = |varies: &Varies| match varies {
            Varies::Random(RandomStream { seed, stream }) => Some((*seed, *stream)),
            Varies::Step => None,
        };
        let renewed: BTreeSet<(u64, u64)> = varying.iter().filter_map(random).collect();
        let is_renewed = |draw: RandomStream| renewed.contains(&(draw.seed, draw.stream));
        if work.is_some() && !draws.all().all(is_renewed) {
            let why = "an operator draws random numbers without declaring it: implement `Kernel::varies` and `with_random`";
            return Err(Error::Captured { op: "capture", why });
        }
        let step_at: Vec<usize> = varying
            .iter()
            .enumerate()
            .filter(|(_, varies)| **varies == Varies::Step)
            .map(|(at, _)| at)
            .collect();
        if work.is_some() && step_at.len() != steps.len() {
            let why = "a step of an optimizer that is not `op::optimizer_step` cannot be replayed";
            return Err(Error::Captured { op: "capture", why });
        }
        let device = device.clone();
        Ok(Graph {
            device,
            on,
            work,
            draws,
            sources,
            steps,
            updates,
            step_at,
            pool,
            difference: None,
            seconds: 0.0,
        })
    }

    /// Queues the captured work again, with the next random numbers, on the captured stream. The current stream waits for it.
    ///
    /// # Errors
    /// The device's errors, and any unreported error of earlier work.
    pub fn replay(&mut self) -> Result<()> {
        let current = self.device.current_stream();
        capturing::refuse(self.device.number(), "replay", "a graph cannot be part of another one")?;
        self.device.late_error()?;
        self.renew()?;
        if let Some(work) = &self.work {
            self.on.wait_stream(&current)?;
            work.replay()?;
            current.wait_stream(&self.on)?;
        }
        if let Some(clocks) = self.device.clocks() {
            clocks.advance(current.id(), self.seconds);
        }
        for source in &self.sources {
            let next_stream = source.base.next_stream + source.count;
            source.set_state(&self.device, RngState { next_stream, ..source.base });
        }
        Ok(())
    }

    /// Updates the operators that draw random numbers with the next ones.
    fn renew(&mut self) -> Result<()> {
        let mut is_new = false;
        for source in &mut self.sources {
            let now = source.state(&self.device);
            is_new |= now != source.base;
            source.base = now;
        }
        let Some(work) = self.work.as_mut().filter(|_| is_new) else { return Ok(()) };
        for at in 0..work.varying().len() {
            let Varies::Random(captured) = work.varying()[at] else { continue };
            let Some(source) = self.draws.source(captured).map(|source| &self.sources[source]) else {
                continue;
            };
            let stream = source.base.next_stream + (captured.stream - source.start.next_stream);
            let from = RandomStream { seed: source.base.seed, stream };
            if let Some(kernel) = work.kernel(at).with_random(from) {
                work.change(at, kernel)?;
            }
        }
        Ok(())
    }

    /// The device of the captured work.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The pool of its memory, to share with other graphs.
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// The first request that differed from the plan of a planned capture, if any did.
    pub fn difference(&self) -> Option<TracedDifference> {
        self.difference
    }

    /// The number of calls to [`op::optimizer_step`](crate::op::optimizer_step) that it contains.
    pub fn step_count(&self) -> usize {
        self.steps.len()
    }

    /// The parameters of one of these calls, in the call's order; for 16-bit parameters, their 32-bit copies.
    pub fn step_parameters(&self, step: usize) -> &[Tensor] {
        self.steps.get(step).map_or(&[], CapturedStep::parameters)
    }

    /// The optimizer steps in the graph that consist of tensor operations, as
    /// [`op::capture_update`](crate::op::capture_update) recorded them.
    pub fn updates(&self) -> &[CapturedUpdate] {
        &self.updates
    }

    /// Sets the optimizer's rule (including options such as the learning rate) and each parameter's step number for all later
    /// replays.
    ///
    /// # Errors
    /// If the kind of rule differs, or the length of `steps` is not the number of parameters; [`Error::Captured`] if
    /// the rule needs different launches, so that the step must be captured again.
    pub fn set_step(&mut self, step: usize, rule: &Rule, steps: &[u64]) -> Result<()> {
        let Some(captured) = self.steps.get(step) else {
            let message = format!("step {step} is out of range: the graph has {} steps", self.steps.len());
            return Err(Error::argument("set_step", message));
        };
        let kernel = captured.rebuild(rule, steps)?;
        match (&mut self.work, self.step_at.get(step)) {
            (Some(work), Some(&at)) => work.change(at, kernel),
            _ => Ok(()),
        }
    }
}

impl Drawn {
    fn state(&self, device: &Device) -> RngState {
        self.generator.as_ref().map_or_else(|| device.rng_state(), Generator::state)
    }

    fn set_state(&self, device: &Device, state: RngState) {
        match &self.generator {
            None => device.set_rng_state(state),
            Some(generator) => generator.set_state(state),
        }
    }
}

/// A capture in progress on this thread. Dropping it abandons the capture.
struct Capture<'a> {
    device: &'a Device,
    on: Stream,
    redirected: Option<PoolGuard>,
    is_open: bool,
}

/// The results of a capture.
struct Ended {
    on: Stream,
    work: Option<Box<dyn Replays>>,
    draws: Draws,
    sources: Vec<Drawn>,
    steps: Vec<CapturedStep>,
    updates: Vec<CapturedUpdate>,
}

impl<'a> Capture<'a> {
    fn begin(device: &'a Device, pool: &GraphPool) -> Result<Capture<'a>> {
        let on = device.current_stream();
        let redirected = pool.pool.use_here().map_err(|source| refused(device, source))?;
        if let Some(queues) = device.queues() {
            queues.begin_capture(on.id())?;
        }
        device.memory().begin_capture();
        capturing::begin(device.number(), on.id());
        drop(take_captured_steps());
        Ok(Capture { device, on, redirected: Some(redirected), is_open: true })
    }

    fn end(mut self) -> Result<Ended> {
        let on = self.on.clone();
        let (mut draws, steps, updates) = self.close();
        let work = self.device.queues().map(Queues::end_capture).transpose();
        let sources = std::mem::take(&mut draws.sources).into_iter().map(|source| {
            let drawn =
                Drawn { generator: source.generator, start: source.start, count: 0, base: source.start };
            let now = drawn.state(self.device);
            drawn.set_state(self.device, source.start);
            match now.next_stream.checked_sub(source.start.next_stream) {
                Some(count) if now.seed == source.start.seed => Ok(Drawn { count, ..drawn }),
                _ => Err(Error::Captured {
                    op: "manual_seed",
                    why: "each replay would draw the same numbers: seed before the step",
                }),
            }
        });
        let sources: Vec<Result<Drawn>> = sources.collect();
        Ok(Ended {
            on,
            work: work?,
            draws,
            sources: sources.into_iter().collect::<Result<_>>()?,
            steps,
            updates,
        })
    }

    /// Clears all of this thread's capture state except the device's own capture.
    fn close(&mut self) -> (Draws, Vec<CapturedStep>, Vec<CapturedUpdate>) {
        self.is_open = false;
        let draws = capturing::end();
        self.device.memory().end_capture();
        drop(self.redirected.take());
        let (steps, updates) = take_captured_steps();
        (draws, steps, updates)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.is_open {
            drop(self.close());
            if let Some(queues) = self.device.queues() {
                queues.abandon_capture();
            }
        }
    }
}
