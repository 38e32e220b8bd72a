//! A training step that is captured after some runs and then replayed: [`CapturedStep`].
//!
//! [`Graph`] is the device's part of a captured step. This file keeps the inputs at fixed addresses, the gradients, one graph
//! for each shape of the inputs, and the optimizers, whose step numbers and options change from replay to replay.

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::{DType, Device, Error, Graph, GraphPool, Result, Tensor, no_grad};

use crate::optim::Optimizer;

/// How many times a step runs as usual before it is captured, for each shape of its inputs.
const WARM_UP: u64 = 3;
/// The maximum number of shapes that are captured.
const MOST_GRAPHS: usize = 8;

/// A training step that the host launches on the GPU with one call: forward pass, backward pass and optimizers. The first runs
/// execute as usual. Then the step is captured, and from then on it is replayed, which costs the host a few microseconds. Each
/// shape, type or layout of the inputs has its own graph; all graphs share one memory pool. On synchronous devices, such as the
/// host, every run executes as usual.
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
    shapes: Vec<Shape>,
    captures: u64,
}

/// Inputs of the same shape, type and layout, and the state of the step for them.
#[derive(Debug)]
struct Shape {
    inputs: Vec<Form>,
    runs: u64,
    captured: Option<Captured>,
}

/// How a step runs.
enum Place {
    /// By replaying the graph of this shape, which is captured first if it does not exist yet.
    Captured(usize),
    /// As usual, but with memory from the graphs' pool: Note [Memory of the runs before].
    WarmUp,
    /// As usual.
    Usual,
}

// Note [Memory of the runs before]. Memory that a run frees stays cached in the pool that it came from, in pieces between the
// tensors that stay allocated, mainly the optimizer's state. A captured step cannot use pieces of the default pool, and pieces
// smaller than a page cannot be returned to the device. So the runs before the first capture allocate from the graphs' pool,
// where the capture then finds all the memory it needs. Once there is a graph, a replay writes wherever its step wrote. Runs of
// further shapes therefore allocate from the default pool, so that a replay does not overwrite their results.

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
    /// Each parameter, with the gradient that a replay writes.
    gradients: Vec<(Tensor, Option<Tensor>)>,
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

    /// Runs `step`, as usual or by a replay, with these inputs and all optimizers that it steps. The tensors that `step` returns
    /// are detached; after a replay, the next replay overwrites them.
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
        let at = match self.place(&inputs) {
            Place::Captured(at) => at,
            Place::WarmUp => {
                let pool = self.pool()?;
                return pool.serve(|| Ok(detached(&step(&inputs, optimizers)?)));
            }
            Place::Usual => return Ok(detached(&step(&inputs, optimizers)?)),
        };
        if let Some(captured) = &mut self.shapes[at].captured {
            match captured.replay(&inputs, optimizers) {
                // The optimizer's new options need other kernels.
                Err(Error::Captured { .. }) => self.shapes[at].captured = None,
                done => return done,
            }
        }
        let pool = self.pool()?;
        let captured = self.capture(&pool, &inputs, optimizers, &mut step)?;
        self.captures += 1;
        self.shapes[at].captured.insert(captured).replay(&inputs, optimizers)
    }

    /// The memory pool of the graphs. A new pool cannot use the cached memory left over from building the model.
    fn pool(&mut self) -> Result<GraphPool> {
        if let Some(pool) = &self.pool {
            return Ok(pool.clone());
        }
        self.device.empty_cache()?;
        Ok(self.pool.insert(GraphPool::new(&self.device)?).clone())
    }

    /// How a step with these inputs runs.
    fn place(&mut self, inputs: &[Tensor]) -> Place {
        if !self.device.captures() {
            return Place::Usual;
        }
        let form = |input: &Tensor| Form {
            shape: input.shape().to_vec(),
            strides: input.strides().to_vec(),
            dtype: input.dtype(),
        };
        let forms: Vec<Form> = inputs.iter().map(form).collect();
        let known = self.shapes.iter().position(|shape| shape.inputs == forms);
        let at = match known {
            Some(at) => at,
            None if self.shapes.len() >= self.most_graphs => return Place::Usual,
            None => {
                self.shapes.push(Shape { inputs: forms, runs: 0, captured: None });
                self.shapes.len() - 1
            }
        };
        let shape = &mut self.shapes[at];
        shape.runs += 1;
        if shape.runs > self.warm_up {
            return Place::Captured(at);
        }
        let has_graphs = self.shapes.iter().any(|shape| shape.captured.is_some());
        if has_graphs { Place::Usual } else { Place::WarmUp }
    }

    fn capture(
        &self,
        pool: &GraphPool,
        inputs: &[Tensor],
        optimizers: Optimizers<'_, '_>,
        step: &mut impl FnMut(&[Tensor], Optimizers<'_, '_>) -> Result<Vec<Tensor>>,
    ) -> Result<Captured> {
        let inputs: Vec<Tensor> = inputs.iter().map(room_for).collect::<Result<_>>()?;
        let before = steps(optimizers);
        let captured = Graph::capture(&self.device, Some(pool), || Ok(detached(&step(&inputs, optimizers)?)));
        // Nothing has run yet: a replay counts its own steps.
        set_steps(optimizers, &before);
        let parameters: Vec<Tensor> =
            optimizers.iter().flat_map(|optimizer| optimizer.parameters()).collect();
        let gradient = |parameter: &Tensor| (parameter.clone(), parameter.grad());
        let gradients = parameters.iter().map(gradient).collect();
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

impl Captured {
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
        self.gradients.iter().try_for_each(|(parameter, gradient)| parameter.set_grad(gradient.clone()))?;
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

fn steps(optimizers: &[&mut dyn Optimizer]) -> Vec<Vec<u64>> {
    optimizers.iter().map(|optimizer| optimizer.steps()).collect()
}

fn set_steps(optimizers: Optimizers<'_, '_>, steps: &[Vec<u64>]) {
    optimizers.iter_mut().zip(steps).for_each(|(optimizer, steps)| optimizer.set_steps(steps));
}
