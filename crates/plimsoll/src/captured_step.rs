//! A training step that is captured after some runs and then replayed: [`CapturedStep`].
//!
//! [`Graph`] is the device's part of a captured step. This file keeps the inputs at fixed addresses, the gradients, one graph
//! for each shape of the inputs, and the optimizers, whose step numbers and options change from replay to replay.

use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::{
    DType, Device, Error, Graph, GraphPool, MemoryPlan, Result, StorageUses, Tensor, Traced,
    TracedDifference, TracedPlan, no_grad,
};

use crate::optim::{Optimizer, with_state_pool};

/// How many times a step runs as usual before it is captured, for each shape of its inputs.
const WARM_UP: u64 = 3;
/// The maximum number of shapes that are captured.
const MOST_GRAPHS: usize = 8;

/// A training step that the host launches on the GPU with one call: forward pass, backward pass and optimizers. The first runs
/// execute as usual. Then the step is captured, and from then on it is replayed, which costs the host a few microseconds. Each
/// shape, type or layout of the inputs has its own graph. On synchronous devices, such as the host, every run executes as usual.
///
/// The last run before a capture is recorded: what it requests and when it frees it. All of that is packed into one arena, from
/// which the captured step gets its memory ([`CapturedStep::plan`]). So the bytes of a captured step are known before it is
/// captured, and are hardly more than the most that are in use at a time. All graphs share the arena. For a shape that needs a
/// larger one, the arena is replaced, and other shapes are captured again at their next run.
///
/// The results are bit for bit those of the step without capture: random numbers continue, optimizers count their steps, and a
/// changed learning rate takes effect. Everything else that the program itself decides (`if`, `train` and `eval`, the number of
/// layers) keeps the state that it had during the capture, so call [`CapturedStep::reset`] when it changes. A captured step
/// cannot read a value, wait for the device, or copy from the program's memory: such an operation returns an error that names
/// it.
///
/// ```
/// use plimsoll::nn::{self, Module};
/// use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
/// use plimsoll::testing::LateConfig;
/// use plimsoll::{CapturedStep, Device, Tensor};
/// let device = Device::late(LateConfig::default()); // or Device::cuda(0)?
/// let model = nn::Sequential::new(&nn::Scope::new(&device, 1)).add("fc", |s| nn::Linear::new(s, 4, 2))?;
/// let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default());
/// let mut captured = CapturedStep::new(&device);
/// for i in 0..5 {
///     let (x, target) = (Tensor::randn(&[8, 4], &device)?, Tensor::zeros(&[8, 2], &device)?);
///     let outputs = captured.run(&[&x, &target], &mut [&mut adamw], |inputs, optimizers| {
///         let loss = model.forward(&inputs[0])?.mse_loss(&inputs[1])?;
///         optimizers[0].zero_grad();
///         loss.backward()?;
///         optimizers[0].step()?;
///         Ok(vec![loss])
///     })?;
///     adamw.set_lr(1e-3 / f64::from(i + 1));
///     assert!(outputs[0].item::<f32>()?.is_finite());
/// }
/// assert_eq!(captured.captures(), 1);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct CapturedStep {
    device: Device,
    warm_up: u64,
    most_graphs: usize,
    pool: Option<GraphPool>,
    /// Note [State apart].
    state_pool: Option<GraphPool>,
    shapes: Vec<Shape>,
    captures: u64,
}

/// Inputs of the same shape, type and layout, and the state of the step for them.
#[derive(Debug, Default)]
struct Shape {
    inputs: Vec<Form>,
    runs: u64,
    /// Whether each parameter had a gradient before the recorded run or, if none was recorded, before the captured run;
    /// `None` if that does not matter: Note [Gradients of the run before]. Empty if it matters for no parameter, or is
    /// not known yet.
    had_gradients: Vec<Option<bool>>,
    recorded: Option<Recorded>,
    captured: Option<Captured>,
}

/// The last run of a shape before its capture.
#[derive(Debug)]
struct Recorded {
    plan: MemoryPlan,
    /// Whether the step dropped the gradient that each parameter had before: Note [Gradients of the run before].
    replaced: Vec<bool>,
}

/// How a step runs.
enum Place {
    /// By replaying the graph of this shape, which is captured first if it does not exist yet.
    Captured(usize),
    /// As usual, and its requests for memory are recorded.
    Recorded(usize),
    /// As usual, without recording.
    Usual,
}

// Note [State apart]. The first run allocates the state of optimizers. If it were allocated between the run's temporary
// tensors, state would keep pieces of memory from being returned to the device, and the arena could not use them. So
// state has a pool of its own.

// Note [Gradients of the run before]. A step that clears gradients itself drops those of the previous run and makes new
// ones. In a capture, both sets would exist until the step clears the old one, which is outside the arena or where
// another shape has left it. So the gradients are dropped before the capture, if the recorded run shows that the step
// drops them. For all other parameters, it matters whether they have gradients: the step makes new gradients, or adds
// to the existing ones. So there is a graph for each case, and a graph that adds to gradients is captured again if
// these have become other tensors. No graph of another shape overwrites them.

/// The properties of an input that must match for a graph to accept it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Form {
    shape: Vec<usize>,
    strides: Vec<usize>,
    dtype: DType,
}

/// A captured step.
#[derive(Debug)]
struct Captured {
    graph: Graph,
    /// The tensors that a replay reads its inputs from.
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    gradients: Vec<Gradient>,
}

/// A parameter's gradient in a captured step.
#[derive(Debug)]
struct Gradient {
    parameter: Tensor,
    /// The gradient that a replay writes.
    written: Option<Tensor>,
    /// Whether the gradient existed before the capture, so that the step adds to it or leaves it.
    was_there: bool,
}

/// The optimizers of a step.
type Optimizers<'a, 'b> = &'a mut [&'b mut dyn Optimizer];

impl CapturedStep {
    /// A step on a device, not captured yet.
    pub fn new(device: &Device) -> CapturedStep {
        let device = device.clone();
        CapturedStep {
            device,
            warm_up: WARM_UP,
            most_graphs: MOST_GRAPHS,
            pool: None,
            state_pool: None,
            shapes: Vec::new(),
            captures: 0,
        }
    }

    /// Sets how many times the step runs as usual before it is captured; 3 by default. The first step of an optimizer cannot be
    /// captured.
    #[must_use]
    pub fn warm_up(mut self, runs: u64) -> CapturedStep {
        self.warm_up = runs;
        self
    }

    /// Captures at most this many shapes of inputs, 8 by default; with other shapes the step runs as usual.
    #[must_use]
    pub fn most_graphs(mut self, graphs: usize) -> CapturedStep {
        self.most_graphs = graphs;
        self
    }

    /// How many times a step was captured.
    pub fn captures(&self) -> u64 {
        self.captures
    }

    /// Drops all graphs, so that the step runs as usual and is captured again. Call it when something that the program decides
    /// has changed. Memory that no tensor uses is returned to the device.
    pub fn reset(&mut self) {
        self.shapes.clear();
        self.pool = None;
    }

    /// Runs `step` with these inputs, as usual or by a replay. Pass all optimizers that it steps, or whose parameters
    /// get gradients in it: a replay leaves the gradients of other parameters as they were at the capture. The tensors
    /// that `step` returns are detached; after a replay, the next replay overwrites them.
    ///
    /// # Errors
    /// The errors of `step`. During the capture, also [`Error::Captured`] for operations that cannot be replayed, such
    /// as reading a value, and for a second step of an optimizer that has no kernel; or [`Error::Argument`] for an
    /// optimizer that was not passed. In that case nothing was computed, gradients are dropped, and the step can be
    /// called again.
    pub fn run(
        &mut self,
        inputs: &[&Tensor],
        optimizers: Optimizers<'_, '_>,
        mut step: impl FnMut(&[Tensor], Optimizers<'_, '_>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let here = inputs.iter().map(|input| input.to_device(&self.device));
        let inputs: Vec<Tensor> = here.collect::<Result<_>>()?;
        let at = match self.place(&inputs, optimizers) {
            Place::Captured(at) => at,
            Place::Recorded(at) => {
                let pool = self.state_pool()?;
                let had = has_gradients(optimizers);
                let run = || self.recorded(&inputs, optimizers, &mut step);
                let (outputs, recorded) = with_state_pool(&pool, run)?;
                let matters =
                    had.into_iter().zip(&recorded.replaced).map(|(had, dropped)| (!dropped).then_some(had));
                let shape = &mut self.shapes[at];
                shape.had_gradients = matters.collect();
                if shape.had_gradients.iter().all(Option::is_none) {
                    shape.had_gradients.clear();
                }
                shape.recorded = Some(recorded);
                return Ok(outputs);
            }
            Place::Usual if self.device.captures() => {
                let pool = self.state_pool()?;
                return with_state_pool(&pool, || Ok(detached(&step(&inputs, optimizers)?)));
            }
            Place::Usual => return Ok(detached(&step(&inputs, optimizers)?)),
        };
        let shape = &mut self.shapes[at];
        if let Some(captured) = shape.captured.as_mut().filter(|it| it.adds_to_these()) {
            match captured.replay(&inputs, optimizers) {
                // The optimizer's new options need other kernels.
                Err(Error::Captured { .. }) => {}
                done => return done,
            }
        }
        shape.captured = None;
        let captured = self.capture(at, &inputs, optimizers, &mut step)?;
        self.captures += 1;
        self.shapes[at].captured.insert(captured).replay(&inputs, optimizers)
    }

    /// The plan of the memory of the shape that was captured last; `None` if none was recorded, which is the case without
    /// [warm-up](CapturedStep::warm_up) and inside a [`Traced`] run.
    pub fn plan(&self) -> Option<TracedPlan> {
        let captured = self.shapes.iter().filter(|shape| shape.captured.is_some());
        captured.max_by_key(|shape| shape.runs).and_then(Shape::plan)
    }

    /// The first request of a captured step that differed from the recorded run's, if any did. That request and all later ones
    /// of that shape are not in the arena.
    pub fn difference(&self) -> Option<TracedDifference> {
        self.shapes.iter().find_map(|shape| shape.captured.as_ref()?.graph.difference())
    }

    /// Runs the step, and records its requests for memory.
    fn recorded(
        &self,
        inputs: &[Tensor],
        optimizers: Optimizers<'_, '_>,
        step: &mut impl FnMut(&[Tensor], Optimizers<'_, '_>) -> Result<Vec<Tensor>>,
    ) -> Result<(Vec<Tensor>, Recorded)> {
        // A handle would keep the gradient alive.
        let watched = |parameter: &Tensor| {
            let (gradient, is_freed) = (parameter.grad()?, Arc::new(AtomicBool::new(false)));
            let freed = Arc::clone(&is_freed);
            gradient.register_free_hook(move |_| freed.store(true, Relaxed));
            Some((gradient.storage_ptr(), is_freed))
        };
        let parameters = parameters(optimizers);
        let before: Vec<Option<(u64, Arc<AtomicBool>)>> = parameters.iter().map(watched).collect();
        let run = || Ok(detached(&step(inputs, optimizers)?));
        let (outputs, plan) = MemoryPlan::record(&self.device, run)?;
        let is_replaced = |(parameter, before): (&Tensor, &Option<(u64, Arc<AtomicBool>)>)| {
            before.as_ref().is_some_and(|(address, is_freed)| {
                is_freed.load(Relaxed) || parameter.grad().is_none_or(|now| now.storage_ptr() != *address)
            })
        };
        let replaced = parameters.iter().zip(&before).map(is_replaced).collect();
        Ok((outputs, Recorded { plan, replaced }))
    }

    fn state_pool(&mut self) -> Result<GraphPool> {
        match &self.state_pool {
            Some(pool) => Ok(pool.clone()),
            None => Ok(self.state_pool.insert(GraphPool::new(&self.device)?).clone()),
        }
    }

    /// The memory pool for a graph of this shape. `keeps` says that there are gradients to which the step adds, perhaps
    /// in the arena, so the arena must not be replaced.
    fn pool(&mut self, at: usize, keeps: bool) -> Result<GraphPool> {
        let plan = self.shapes[at].recorded.as_ref().map(|recorded| &recorded.plan);
        let arena_bytes = plan.map_or(0, |plan| plan.report().arena_bytes);
        if let Some(pool) = self.pool.as_ref().filter(|pool| keeps || arena_bytes <= pool.arena_bytes()) {
            let captured = self.shapes.iter().filter_map(|shape| shape.captured.as_ref());
            pool.set_in_use(captured.flat_map(Captured::left));
            return Ok(pool.clone());
        }
        self.shapes.iter_mut().for_each(|shape| shape.captured = None);
        self.pool = None;
        // A new pool cannot use the cached memory left over from building the model.
        self.device.empty_cache()?;
        let pool = match &self.shapes[at].recorded {
            Some(Recorded { plan, .. }) => GraphPool::with_arena(&self.device, plan)?,
            None => GraphPool::new(&self.device)?,
        };
        Ok(self.pool.insert(pool).clone())
    }

    /// How a step runs with these inputs and the current gradients.
    fn place(&mut self, inputs: &[Tensor], optimizers: &[&mut dyn Optimizer]) -> Place {
        if !self.device.captures() {
            return Place::Usual;
        }
        let form = |input: &Tensor| Form {
            shape: input.shape().to_vec(),
            strides: input.strides().to_vec(),
            dtype: input.dtype(),
        };
        let forms: Vec<Form> = inputs.iter().map(form).collect();
        // Most steps clear gradients themselves; for them, a replay does not check the gradients.
        let now = LazyCell::new(|| has_gradients(optimizers));
        let suits = |shape: &Shape| {
            let mut had = shape.had_gradients.iter().enumerate();
            had.all(|(i, had)| had.is_none_or(|had| now.get(i) == Some(&had)))
        };
        let mut of_form =
            self.shapes.iter().enumerate().filter(|(_, shape)| shape.inputs == forms).peekable();
        // If other parameters have gradients than in all runs so far, this counts as a new shape, and one more run is
        // recorded, unless no runs are recorded at all.
        let runs = of_form.peek().map_or(0, |_| self.warm_up.saturating_sub(1).max(1));
        let at = match of_form.find(|(_, shape)| suits(shape)) {
            Some((at, _)) => at,
            None if self.shapes.len() >= self.most_graphs => return Place::Usual,
            None => {
                let shape = Shape { inputs: forms, runs, ..Shape::default() };
                self.shapes.push(shape);
                self.shapes.len() - 1
            }
        };
        let shape = &mut self.shapes[at];
        shape.runs += 1;
        match shape.runs.cmp(&self.warm_up) {
            std::cmp::Ordering::Greater => Place::Captured(at),
            std::cmp::Ordering::Equal if !Traced::is_running() => Place::Recorded(at),
            _ => Place::Usual,
        }
    }

    fn capture(
        &mut self,
        at: usize,
        inputs: &[Tensor],
        optimizers: Optimizers<'_, '_>,
        step: &mut impl FnMut(&[Tensor], Optimizers<'_, '_>) -> Result<Vec<Tensor>>,
    ) -> Result<Captured> {
        let parameters = parameters(optimizers);
        if let Some(Recorded { replaced, .. }) = &self.shapes[at].recorded {
            let replaced = parameters.iter().zip(replaced).filter(|(_, replaced)| **replaced);
            replaced.for_each(|(parameter, _)| parameter.clear_grad());
        }
        let had = has_gradients(optimizers);
        if self.shapes[at].recorded.is_none() {
            self.shapes[at].had_gradients = had.iter().copied().map(Some).collect();
        }
        let pool = self.pool(at, had.contains(&true))?;
        let inputs: Vec<Tensor> = inputs.iter().map(room_for).collect::<Result<_>>()?;
        let before = steps(optimizers);
        let run = || Ok(detached(&step(&inputs, optimizers)?));
        let captured = match &self.shapes[at].recorded {
            Some(Recorded { plan, .. }) if !Traced::is_running() => Graph::capture_planned(&pool, plan, run),
            _ => Graph::capture(&self.device, Some(&pool), run),
        };
        // Nothing has run yet: a replay counts its own steps.
        set_steps(optimizers, &before);
        let gradient = |(parameter, was_there): (&Tensor, bool)| {
            let written = parameter.grad();
            Gradient { parameter: parameter.clone(), written, was_there }
        };
        let gradients = parameters.iter().zip(had).map(gradient).collect();
        let checked = captured.and_then(|(graph, outputs)| {
            let mut captured = Captured { graph, inputs, outputs, gradients };
            captured.take_steps(optimizers).map(|()| captured)
        });
        set_steps(optimizers, &before);
        if checked.is_err() {
            // Gradients made during the capture have no values.
            parameters.iter().for_each(|parameter| parameter.clear_grad());
        }
        checked
    }
}

impl Shape {
    fn plan(&self) -> Option<TracedPlan> {
        self.recorded.as_ref().map(|recorded| recorded.plan.report())
    }
}

impl Captured {
    /// Whether the gradients from before the capture are still the current ones.
    fn adds_to_these(&self) -> bool {
        self.gradients.iter().filter(|gradient| gradient.was_there).all(
            |Gradient { parameter, written, .. }| {
                let (written, now) = (written.as_ref(), parameter.grad());
                written.zip(now.as_ref()).is_some_and(|(written, now)| written.shares_storage(now))
            },
        )
    }

    /// The tensors that a replay leaves, and whether anyone else uses them. If not, later captures may overwrite them, because
    /// the next replay writes them again.
    fn left(&self) -> impl Iterator<Item = (&Tensor, bool)> {
        let gradients = self.gradients.iter().filter_map(|gradient| gradient.written.as_ref());
        let is_used = |tensor: &Tensor| {
            let StorageUses { handles, views, saved, .. } = tensor.storage_uses();
            (handles, views, saved) != (1, 0, 0)
        };
        gradients.chain(&self.outputs).map(move |tensor| (tensor, is_used(tensor)))
    }

    fn replay(&mut self, inputs: &[Tensor], optimizers: Optimizers<'_, '_>) -> Result<Vec<Tensor>> {
        for (to, from) in self.inputs.iter().zip(inputs) {
            no_grad(|| to.copy_(from.detach()))?;
        }
        let before = steps(optimizers);
        let done = self.take_steps(optimizers).and_then(|()| self.graph.replay());
        if done.is_err() {
            set_steps(optimizers, &before);
        }
        done?;
        for Gradient { parameter, written, .. } in &self.gradients {
            parameter.set_grad(written.clone())?;
        }
        Ok(self.outputs.clone())
    }

    fn take_steps(&mut self, optimizers: Optimizers<'_, '_>) -> Result<()> {
        let mut given = 0;
        for optimizer in optimizers {
            given += optimizer.replay(&mut self.graph)?;
        }
        if given == self.graph.step_count() + self.graph.updates().len() {
            return Ok(());
        }
        let message = "the captured step uses an optimizer that was not given to `CapturedStep::run`";
        Err(Error::Argument { op: "captured_step", message: message.to_owned() })
    }
}

/// Allocates a tensor like `input`, with memory at a fixed address.
fn room_for(input: &Tensor) -> Result<Tensor> {
    let _owner = Span::of(Category::Input, label::intern(&input.label()));
    no_grad(|| input.detach().empty_like())
}

fn detached(outputs: &[Tensor]) -> Vec<Tensor> {
    outputs.iter().map(Tensor::detach).collect()
}

fn parameters(optimizers: &[&mut dyn Optimizer]) -> Vec<Tensor> {
    optimizers.iter().flat_map(|optimizer| optimizer.parameters()).collect()
}

fn has_gradients(optimizers: &[&mut dyn Optimizer]) -> Vec<bool> {
    parameters(optimizers).iter().map(|parameter| parameter.grad().is_some()).collect()
}

fn steps(optimizers: &[&mut dyn Optimizer]) -> Vec<Vec<u64>> {
    optimizers.iter().map(|optimizer| optimizer.steps()).collect()
}

fn set_steps(optimizers: Optimizers<'_, '_>, steps: &[Vec<u64>]) {
    optimizers.iter_mut().zip(steps).for_each(|(optimizer, steps)| optimizer.set_steps(steps));
}
