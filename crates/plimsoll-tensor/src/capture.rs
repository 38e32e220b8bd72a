//! Captured work: what a function queues, recorded once and replayed as one.
//!
//! [`Graph::capture`] runs a function whose operators are recorded instead of run; [`Graph::replay`] queues all of them at once,
//! at the cost of one call of the driver. Tensors keep their places: what a replay reads is what is in the captured function's
//! tensors then, and what it writes replaces what the replay before wrote. As `torch.cuda.CUDAGraph`.
//!
//! Note [What varies]. Random numbers and the steps of optimizers are not those of the capture: before a replay, the operators
//! that have them are described once more, with the next ones, and where a kernel's arguments differ they are set in the graph.
//! So a replay computes what the function would have computed. (PyTorch keeps such numbers in device memory, which kernels
//! must be written for.) What else the host decides is decided at the capture.

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
use crate::ops::{CapturedStep, take_captured_steps};
use crate::random::{Generator, RandomStream, RngState};
use crate::stream::Stream;
use crate::tensor::Tensor;

/// Memory of captured graphs, apart from the device's other memory: what is allocated while a function is captured stays at
/// its place. It goes back to the device when the last graph and the last tensor in it are gone. As the pool of
/// `torch.cuda.graph_pool_handle`.
///
/// Graphs that share one use the same memory for what no tensor keeps: replay them one after the other, each with inputs that
/// no other one computed there.
#[derive(Clone, Debug)]
pub struct GraphPool {
    pool: Arc<Pool>,
    device: Device,
}

impl GraphPool {
    /// A pool on a device.
    ///
    /// # Errors
    /// The allocator's.
    pub fn new(device: &Device) -> Result<GraphPool> {
        let pool = device.memory().new_pool();
        let pool = pool.map_err(|source| refused(device, source))?;
        Ok(GraphPool { pool: Arc::new(pool), device: device.clone() })
    }

    /// Runs `f` with what this thread asks of the device served from this pool. As `torch.cuda.use_mem_pool`.
    ///
    /// For work before a capture, whose memory the capture then uses too. What it leaves stays where it is: a graph of this
    /// pool that was captured before may write there, so there must be none.
    ///
    /// # Errors
    /// The allocator's; those of `f`.
    pub fn serve<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let _served = self.pool.use_here().map_err(|source| refused(&self.device, source))?;
        f()
    }

    /// Bytes that it has of the device, cached ones included.
    pub fn reserved_bytes(&self) -> u64 {
        self.pool.segments().iter().map(|segment| segment.bytes).sum()
    }
}

fn refused(device: &Device, source: plimsoll_alloc::Error) -> Error {
    Error::Allocator { device: device.name().to_owned(), source }
}

/// Captured work of a device, which can be replayed. On a simulated device a replay does nothing, as every operator there.
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
    /// None on a device that computes nothing. Before the pool: what it does ends before memory goes.
    work: Option<Box<dyn Replays>>,
    draws: Draws,
    sources: Vec<Drawn>,
    steps: Vec<CapturedStep>,
    /// For each step its number among what varies.
    step_at: Vec<usize>,
    pool: GraphPool,
}

/// What a replay draws from a source of random numbers.
struct Drawn {
    /// None where it is the device.
    generator: Option<Generator>,
    /// Where it stood at the capture.
    start: RngState,
    /// How many streams each replay draws.
    count: u64,
    /// Where it stood before the numbers that the work has now.
    base: RngState,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).field("on", &self.on).finish_non_exhaustive()
    }
}

impl Graph {
    /// Captures what `f` queues on the current stream of a device that computes later; nothing of it runs. Memory that `f` asks
    /// for on this thread comes from `pool`, or from a new one. Before, all work of the device is waited for and its cache
    /// goes back, as in PyTorch. Random numbers of the device and of generators are then where they were.
    ///
    /// # Errors
    /// Those of `f`; [`Error::Captured`] for what cannot be replayed: reading a value, waiting, values of the program, another
    /// stream; a device that computes at once; a capture inside of a capture. The device can be used as before.
    pub fn capture<T>(
        device: &Device,
        pool: Option<&GraphPool>,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<(Graph, T)> {
        const OP: &str = "capture";
        if !device.captures() {
            let why = "this device computes at once: call the function instead";
            return Err(Error::Captured { op: OP, why });
        }
        if capturing::is_any() {
            return Err(Error::Captured { op: OP, why: "this thread captures one already" });
        }
        device.synchronize()?;
        device.empty_cache()?;
        let pool = pool.map_or_else(|| GraphPool::new(device), |pool| Ok(pool.clone()))?;
        let capture = Capture::begin(device, &pool)?;
        let done = f();
        let ended = capture.end();
        let out = done?;
        Ok((Graph::new(device, pool, ended?)?, out))
    }

    fn new(device: &Device, pool: GraphPool, ended: Ended) -> Result<Graph> {
        let Ended { on, work, draws, sources, steps } = ended;
        let varying = work.as_ref().map_or(&[][..], |work| work.varying());
        let random = |varies: &Varies| match varies {
            Varies::Random(RandomStream { seed, stream }) => Some((*seed, *stream)),
            Varies::Step => None,
        };
        let renewed: BTreeSet<(u64, u64)> = varying.iter().filter_map(random).collect();
        let is_renewed = |draw: RandomStream| renewed.contains(&(draw.seed, draw.stream));
        if work.is_some() && !draws.all().all(is_renewed) {
            let why = "an operator draws random numbers and does not say so: implement `Kernel::varies` and `with_random`";
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
        Ok(Graph { device: device.clone(), on, work, draws, sources, steps, step_at, pool })
    }

    /// Queues all of it once more, with the next random numbers, on the stream that was captured; the current stream waits for it.
    ///
    /// # Errors
    /// The device's, and the error of earlier work that was not reported yet.
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
        for source in &self.sources {
            let next_stream = source.base.next_stream + source.count;
            source.set_state(&self.device, RngState { next_stream, ..source.base });
        }
        Ok(())
    }

    /// Gives the operators that draw the numbers that come next.
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

    /// The device that it is of.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where its memory is: for graphs that share it.
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// How many calls of [`op::optimizer_step`](crate::op::optimizer_step) it contains.
    pub fn step_count(&self) -> usize {
        self.steps.len()
    }

    /// The parameters of one of them, in its order; of 16-bit parameters their 32-bit copies.
    pub fn step_parameters(&self, step: usize) -> &[Tensor] {
        self.steps.get(step).map_or(&[], CapturedStep::parameters)
    }

    /// Sets the rule, with its numbers such as the learning rate, and the number of the step of each parameter, for the
    /// replays from now on.
    ///
    /// # Errors
    /// Another kind of rule; another number of steps than parameters; [`Error::Captured`] where the rule needs other work than
    /// the captured one, so that it has to be captured again.
    pub fn set_step(&mut self, step: usize, rule: &Rule, steps: &[u64]) -> Result<()> {
        let Some(captured) = self.steps.get(step) else {
            let message = format!("step {step} of a graph with {}", self.steps.len());
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

/// A capture under way on this thread; dropped, it is abandoned.
struct Capture<'a> {
    device: &'a Device,
    on: Stream,
    redirected: Option<PoolGuard>,
    is_open: bool,
}

/// What a capture has recorded.
struct Ended {
    on: Stream,
    work: Option<Box<dyn Replays>>,
    draws: Draws,
    sources: Vec<Drawn>,
    steps: Vec<CapturedStep>,
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
        let (mut draws, steps) = self.close();
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
        Ok(Ended { on, work: work?, draws, sources: sources.into_iter().collect::<Result<_>>()?, steps })
    }

    /// Ends what this thread asks elsewhere; the device's capture is left.
    fn close(&mut self) -> (Draws, Vec<CapturedStep>) {
        self.is_open = false;
        let draws = capturing::end();
        self.device.memory().end_capture();
        drop(self.redirected.take());
        (draws, take_captured_steps())
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
