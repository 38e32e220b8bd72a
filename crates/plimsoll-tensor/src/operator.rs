//! The trait of operators, which our own and user-defined ones implement.
//!
//! An operator is a struct that carries its parameters. It describes its outputs ([`Operator::infer`]), its
//! cost, its derivative, and the tensors to save for it. [`Kernel`] has its kernels. [`crate::call`] runs
//! it on a device (`dispatch/`).

use std::sync::Arc;

use smallvec::SmallVec;

use crate::autograd::{Saved, Unpacked, is_grad_enabled, no_grad};
pub use crate::cost::Cost;
use crate::data::Data;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::Kernel;
use crate::layout::Layout;
pub(crate) use crate::second::Slot;
use crate::second::{linked, record};
use crate::tensor::{Derivative, Edge, Grads, Node, Tensor};

/// The metadata of a tensor: everything except its values.
#[derive(Clone, Copy, Debug)]
pub struct Meta<'a> {
    /// The layout of the elements.
    pub layout: &'a Layout,
    /// The type of the elements.
    pub dtype: DType,
}

impl<'a> Meta<'a> {
    /// Sizes, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        self.layout.shape()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape().len()
    }

    /// Bytes of the elements, each counted once.
    pub fn bytes(&self) -> u64 {
        (self.layout.len() * self.dtype.size()) as u64
    }
}

/// The memory of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Newly allocated memory.
    New,
    /// The memory of this input: the output is a view of it. No kernel runs, but gradients flow through it.
    View(usize),
    /// The memory of this input, which is changed in place.
    InPlace(usize),
}

/// The metadata of an output, known before the operator runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The layout of its elements.
    pub layout: Layout,
    /// The type of its elements.
    pub dtype: DType,
    /// Its memory: new, or an input's.
    pub place: Place,
}

/// The outputs of an operator, in the operator's order.
pub type Outputs = SmallVec<[Output; 1]>;

impl Output {
    /// A new tensor, row-major.
    pub fn new(shape: &[usize], dtype: DType) -> Output {
        Output { layout: Layout::contiguous(shape), dtype, place: Place::New }
    }

    /// A new tensor with this layout, which must have no gaps.
    pub fn laid_out(layout: Layout, dtype: DType) -> Output {
        Output { layout, dtype, place: Place::New }
    }

    /// A view of an input.
    pub fn view(input: usize, layout: Layout, dtype: DType) -> Output {
        Output { layout, dtype, place: Place::View(input) }
    }

    /// An input that is changed in place.
    pub fn in_place(input: usize, meta: &Meta<'_>) -> Output {
        Output { layout: meta.layout.clone(), dtype: meta.dtype, place: Place::InPlace(input) }
    }
}

impl Cost {
    /// The cost of an operator that makes one pass over its inputs and outputs.
    pub fn streaming(flops: u64, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let bytes = |metas: &[Meta<'_>]| metas.iter().map(Meta::bytes).sum();
        Cost { flops, bytes_read: bytes(ins), bytes_written: bytes(outs), ..Cost::default() }
    }

    /// The default: one operation for each element of the outputs.
    fn elementwise(ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(outs.iter().map(|out| out.layout.len() as u64).sum(), ins, outs)
    }
}

/// The cast that autocast applies to the inputs of an operator, from PyTorch's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autocast {
    /// None: the operator runs in the types of its inputs.
    #[default]
    AsGiven,
    /// To the lower precision, for matrix products.
    Lower,
    /// To 32 bits, for operators whose errors would be too large in the lower precision.
    Full,
    /// To the widest type among the inputs.
    Widest,
}

/// The inputs and outputs that a derivative reads. Only those are saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    inputs: u32,
    outputs: u32,
}

impl Saves {
    /// None. (Shapes are always known.)
    pub const NOTHING: Saves = Saves { inputs: 0, outputs: 0 };

    /// One input.
    pub const fn input(i: usize) -> Saves {
        Saves { inputs: 1 << i, outputs: 0 }
    }

    /// One output.
    pub const fn output(i: usize) -> Saves {
        Saves { inputs: 0, outputs: 1 << i }
    }

    /// These tensors if `condition` holds, otherwise none.
    #[must_use]
    pub const fn only_if(self, condition: bool) -> Saves {
        if condition { self } else { Saves::NOTHING }
    }

    /// The union of both.
    #[must_use]
    pub const fn and(self, other: Saves) -> Saves {
        Saves { inputs: self.inputs | other.inputs, outputs: self.outputs | other.outputs }
    }

    pub(crate) fn has_input(self, i: usize) -> bool {
        self.inputs >> i & 1 == 1
    }

    pub(crate) fn has_outputs(self) -> bool {
        self.outputs != 0
    }

    pub(crate) fn has_output(self, i: usize) -> bool {
        self.outputs >> i & 1 == 1
    }
}

/// An operator: everything except its kernels. [`crate::call`] runs it.
///
/// All methods are pure: they depend on the operator's parameters and on sizes, types and layouts. So a simulation can use
/// them to predict the behaviour of a device.
pub trait Operator: Kernel {
    /// Returns the shape, type and layout of each output. Checks that the inputs match.
    ///
    /// # Errors
    /// If the inputs do not fit: [`Error::shape`], [`Error::DType`], [`Error::argument`].
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs>;

    /// Whether the kernels can work on an input with this layout. Otherwise the input is first copied into row-major order;
    /// if it is changed in place, the result is copied back.
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        let _ = (input, layout);
        true
    }

    /// Bytes of scratch memory that a kernel needs. They depend only on sizes, so a simulated device requests the same.
    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let _ = (ins, outs, device);
        0
    }

    /// The cost of one run.
    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::elementwise(ins, outs)
    }

    /// The cast that autocast applies to the inputs.
    fn autocast(&self) -> Autocast {
        Autocast::AsGiven
    }

    /// The tensors that the derivative reads, given which inputs need a gradient.
    fn saves(&self, wanted: &[bool]) -> Saves {
        let _ = wanted;
        Saves::NOTHING
    }

    /// The input (such as a bias) whose gradient is the sum over the rows of the output's gradient. The operation that
    /// computes the output's gradient can then compute that sum in the same pass.
    fn bias(&self) -> Option<usize> {
        None
    }

    /// Whether [`Operator::backward`] has both a kernel, used if nothing is recorded, and differentiable tensor operations. A
    /// recorded backward pass also runs the kernel, so its gradients are bit-identical and no intermediates are saved.
    /// The tensor operations run only if a derivative of those gradients is needed.
    fn has_gradient_kernel(&self) -> bool {
        false
    }

    /// Computes the gradients of the inputs, in the order of the inputs, from those of the outputs. It is written with tensor
    /// operations, so that it can itself be differentiated. It is called only for floating-point outputs.
    ///
    /// # Errors
    /// The errors of its operations, or if an operator has no derivative.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let _ = at;
        Err(Error::autograd(
            self.name(),
            "this operator has no derivative: detach its inputs, or use `no_grad`",
        ))
    }
}

/// The arguments of a derivative.
pub struct Backward<'a> {
    name: &'static str,
    node: &'a Arc<Node>,
    grads: &'a [Option<Tensor>],
    wanted: &'a [bool],
    saved: &'a [(Slot, Saved)],
    unpacked: Unpacked<Slot>,
    /// The tensors that replace the saved ones in a second derivative.
    given: Option<&'a [Tensor]>,
}

impl Backward<'_> {
    /// The gradient of an output; `None` if nothing depends on it.
    pub fn grad(&self, output: usize) -> Option<&Tensor> {
        self.grads[output].as_ref()
    }

    /// Whether the gradient of an input is needed.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted[input]
    }

    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.wanted.len()
    }

    /// The shape of an input.
    pub fn shape(&self, input: usize) -> &[usize] {
        &self.node.ins()[input].0
    }

    /// The type of an input; in a second derivative, its compute type.
    pub fn dtype(&self, input: usize) -> DType {
        let dtype = self.node.ins()[input].1;
        if self.given.is_some() && dtype.is_float() { dtype.accumulator() } else { dtype }
    }

    /// A saved input. It is part of the graph if the derivative is itself recorded.
    ///
    /// # Errors
    /// If it was changed in place after it was saved.
    ///
    /// # Panics
    /// If [`Operator::saves`] did not name it.
    pub fn input(&self, i: usize) -> Result<Tensor> {
        self.tensor(Slot::Input(i))
    }

    /// A saved output, like [`Backward::input`].
    ///
    /// # Errors
    /// If it was changed in place after it was saved.
    ///
    /// # Panics
    /// If [`Operator::saves`] did not name it.
    pub fn output(&self, i: usize) -> Result<Tensor> {
        self.tensor(Slot::Output(i))
    }

    /// Whether the operation that made this input needs the sum over the rows of its gradient.
    pub(crate) fn wants_row_sum(&self, input: usize) -> bool {
        self.given.is_none() && self.node.edges()[input].as_ref().is_some_and(Edge::wants_row_sum)
    }

    /// Whether the derivative may change a saved output in place: this pass frees the graph, and no hook keeps the saved
    /// tensors.
    pub(crate) fn owns_output(&self, i: usize) -> bool {
        let kept = |(slot, saved): &(Slot, Saved)| *slot == Slot::Output(i) && !saved.is_packed();
        self.given.is_none() && self.node.is_freed() && self.saved.iter().any(kept)
    }

    fn tensor(&self, slot: Slot) -> Result<Tensor> {
        let found = self.saved.iter().position(|(at, _)| *at == slot);
        let Some(at) = found else { unreachable!("{} did not save {slot:?}", self.name) };
        if let Some(given) = self.given {
            return Ok(given[at].clone());
        }
        let data: Data = self.unpacked.get(slot, &self.saved[at].1, self.name)?;
        Ok(if is_grad_enabled() { linked(self.node, Some(slot), data) } else { Tensor::from_data(data) })
    }
}

/// An operator that was run and recorded (in the form that dispatch had it in), with its saved tensors.
pub(crate) struct Recorded<H> {
    pub(crate) op: H,
    pub(crate) saved: SavedTensors,
}

/// The tensors that an operator saved, each with the input or output that it was.
pub(crate) type SavedTensors = SmallVec<[(Slot, Saved); 2]>;

/// An operator in the form that dispatch holds it in.
pub(crate) trait AsOperator {
    fn operator(&self) -> &dyn Operator;
}

impl AsOperator for Arc<dyn Operator> {
    fn operator(&self) -> &dyn Operator {
        &**self
    }
}

// Each method calls a function that is compiled once, not for each operator.
impl<H: AsOperator + Send + Sync> Derivative for Recorded<H> {
    fn backward(&self, node: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        backward(self.operator(), &self.saved, node, grads, wanted)
    }

    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        kept(&self.saved, visit);
    }

    fn in_operations(
        &self,
        node: &Arc<Node>,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
        wanted: &[bool],
    ) -> Result<Grads> {
        in_operations(self.operator(), (&self.saved, saved), node, grads, wanted)
    }

    fn bias(&self) -> Option<usize> {
        self.operator().bias()
    }
}

impl<H: AsOperator> Recorded<H> {
    fn operator(&self) -> &dyn Operator {
        self.op.operator()
    }
}

fn backward(
    op: &dyn Operator,
    saved: &SavedTensors,
    node: &Arc<Node>,
    grads: &[Option<Tensor>],
    wanted: &[bool],
) -> Result<Grads> {
    let (name, unpacked) = (op.name(), Unpacked::default());
    let at = Backward { name, node, grads, wanted, saved, unpacked, given: None };
    if !is_grad_enabled() || !op.has_gradient_kernel() {
        return op.backward(&at);
    }
    let results = no_grad(|| op.backward(&at))?;
    let saved = saved.iter().map(|(slot, _)| at.tensor(*slot)).collect::<Result<Vec<_>>>()?;
    record(node, &saved, grads, wanted, results)
}

fn kept(saved: &SavedTensors, visit: &mut dyn FnMut(&Data)) {
    saved.iter().for_each(|(_, saved)| saved.kept(visit));
}

/// The derivative as operations on given values of the saved tensors.
fn in_operations(
    op: &dyn Operator,
    (saved, given): (&SavedTensors, &[Tensor]),
    node: &Arc<Node>,
    grads: &[Option<Tensor>],
    wanted: &[bool],
) -> Result<Grads> {
    let (name, unpacked, given) = (op.name(), Unpacked::default(), Some(given));
    op.backward(&Backward { name, node, grads, wanted, saved, unpacked, given })
}
