//! What an operator is: the one trait that ours and the users' own implement.
//!
//! An operator is a value: a struct that carries its parameters. It says what its outputs will be
//! ([`Operator::infer`]), what it costs, what it saves for its derivative and what that is; its kernels are the
//! other half ([`Kernel`]). [`crate::call`] runs it on a device (`dispatch/`).

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::autograd::{Saved, Unpacked, is_grad_enabled, no_grad};
use crate::data::Data;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::kernel::Kernel;
use crate::layout::Layout;
pub(crate) use crate::second::Slot;
use crate::second::{linked, record};
use crate::tensor::{Derivative, Edge, Grads, Node, Tensor};

/// What is known of a tensor without its values.
#[derive(Clone, Copy, Debug)]
pub struct Meta<'a> {
    /// Where the elements lie.
    pub layout: &'a Layout,
    /// What they are.
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

/// Where the bytes of an output are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory of its own.
    New,
    /// In this input's memory, as a view: nothing runs, gradients flow.
    View(usize),
    /// In this input's memory, which changes.
    InPlace(usize),
}

/// One output: what is known of it before the operator runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Where its elements lie.
    pub layout: Layout,
    /// What they are.
    pub dtype: DType,
    /// Whose memory that is.
    pub place: Place,
}

/// The outputs of an operator, in its order.
pub type Outputs = SmallVec<[Output; 1]>;

impl Output {
    /// A new tensor, row-major.
    pub fn new(shape: &[usize], dtype: DType) -> Output {
        Output { layout: Layout::contiguous(shape), dtype, place: Place::New }
    }

    /// A new tensor in a layout without gaps.
    pub fn laid_out(layout: Layout, dtype: DType) -> Output {
        Output { layout, dtype, place: Place::New }
    }

    /// A view of an input.
    pub fn view(input: usize, layout: Layout, dtype: DType) -> Output {
        Output { layout, dtype, place: Place::View(input) }
    }

    /// An input that changes.
    pub fn in_place(input: usize, meta: &Meta<'_>) -> Output {
        Output { layout: meta.layout.clone(), dtype: meta.dtype, place: Place::InPlace(input) }
    }
}

/// The cost of one run of an operator, which depends only on sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point operations; a fused multiply-add counts as two.
    pub flops: u64,
    /// Bytes that it must read.
    pub bytes_read: u64,
    /// Bytes that it must write.
    pub bytes_written: u64,
}

impl Cost {
    /// An operator that passes once over its inputs and outputs.
    pub fn streaming(flops: u64, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        let bytes = |metas: &[Meta<'_>]| metas.iter().map(Meta::bytes).sum();
        Cost { flops, bytes_read: bytes(ins), bytes_written: bytes(outs) }
    }
}

/// What autocast does to the inputs of an operator: PyTorch's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Autocast {
    /// Nothing: it runs in the types that it is given.
    #[default]
    AsGiven,
    /// To the lower precision: products.
    Lower,
    /// To 32 bits: where the lower precision loses too much.
    Full,
    /// To the widest type among them.
    Widest,
}

/// Which inputs and outputs a derivative reads. Only those are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    inputs: u32,
    outputs: u32,
}

impl Saves {
    /// None of them: sizes are known anyway.
    pub const NOTHING: Saves = Saves { inputs: 0, outputs: 0 };

    /// An input.
    pub const fn input(i: usize) -> Saves {
        Saves { inputs: 1 << i, outputs: 0 }
    }

    /// An output.
    pub const fn output(i: usize) -> Saves {
        Saves { inputs: 0, outputs: 1 << i }
    }

    /// These where `condition` holds.
    #[must_use]
    pub const fn only_if(self, condition: bool) -> Saves {
        if condition { self } else { Saves::NOTHING }
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Saves) -> Saves {
        Saves { inputs: self.inputs | other.inputs, outputs: self.outputs | other.outputs }
    }

    pub(crate) fn has_input(self, i: usize) -> bool {
        self.inputs >> i & 1 == 1
    }

    pub(crate) fn has_output(self, i: usize) -> bool {
        self.outputs >> i & 1 == 1
    }
}

/// An operator: everything about it but its kernels. [`crate::call`] runs it.
///
/// All methods are pure: they depend on the operator's parameters and on sizes, types and layouts. So a
/// simulation can ask them what a device would do.
pub trait Operator: Kernel {
    /// Shape, type and layout of each output; checks that the inputs go together.
    ///
    /// # Errors
    /// Inputs that do not: [`Error::shape`], [`Error::DType`], [`Error::argument`].
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs>;

    /// Whether the kernels can work on an input that lies like this. An input that they cannot read is
    /// gathered into row-major order first; one that they cannot change is gathered and put back.
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        let _ = (input, layout);
        true
    }

    /// Bytes that a kernel needs to work in. By sizes alone: a simulated device asks for the same.
    fn scratch(&self, ins: &[Meta<'_>], outs: &[Meta<'_>], device: DeviceFacts) -> u64 {
        let _ = (ins, outs, device);
        0
    }

    /// What one run costs.
    fn cost(&self, ins: &[Meta<'_>], outs: &[Meta<'_>]) -> Cost {
        Cost::streaming(outs.iter().map(|out| out.layout.len() as u64).sum(), ins, outs)
    }

    /// What autocast does to its inputs.
    fn autocast(&self) -> Autocast {
        Autocast::AsGiven
    }

    /// What the derivative reads, given which inputs want a gradient.
    fn saves(&self, wanted: &[bool]) -> Saves {
        let _ = wanted;
        Saves::NOTHING
    }

    /// The input whose gradient is the sum of the rows of the output's gradient, as a bias's is: what makes that gradient can
    /// then make the sum in the same pass.
    fn bias(&self) -> Option<usize> {
        None
    }

    /// Whether [`Operator::backward`] calls a kernel for the gradients where nothing is recorded, and has operations on
    /// tensors, which have derivatives, beside it. A pass that is recorded takes the kernel too: the gradients are the same to
    /// the bit, and nothing between is kept. The operations run where a derivative of those gradients is asked for.
    fn has_gradient_kernel(&self) -> bool {
        false
    }

    /// The gradients of the inputs, in their order, from those of the outputs: written with operations on
    /// tensors, so that it has a derivative itself. Only outputs of floating point are ever asked about.
    ///
    /// # Errors
    /// What the operations report; an operator without a derivative.
    fn backward(&self, at: &Backward<'_>) -> Result<Grads> {
        let _ = at;
        Err(Error::autograd(
            self.name(),
            "this operator has no derivative: detach its inputs, or use `no_grad`",
        ))
    }
}

/// What a derivative works from.
pub struct Backward<'a> {
    name: &'static str,
    node: &'a Arc<Node>,
    grads: &'a [Option<Tensor>],
    wanted: &'a [bool],
    saved: &'a [(Slot, Saved)],
    unpacked: Unpacked<Slot>,
    /// What stands for the saved tensors, in the derivative of a derivative.
    given: Option<&'a [Tensor]>,
}

impl Backward<'_> {
    /// The gradient of an output; `None` where nothing depends on it.
    pub fn grad(&self, output: usize) -> Option<&Tensor> {
        self.grads[output].as_ref()
    }

    /// Whether the gradient of an input is asked for.
    pub fn wants(&self, input: usize) -> bool {
        self.wanted[input]
    }

    /// How many inputs there were.
    pub fn inputs(&self) -> usize {
        self.wanted.len()
    }

    /// The shape of an input.
    pub fn shape(&self, input: usize) -> &[usize] {
        &self.node.ins()[input].0
    }

    /// The type of an input; the one that it is computed in, in the derivative of a derivative.
    pub fn dtype(&self, input: usize) -> DType {
        let dtype = self.node.ins()[input].1;
        if self.given.is_some() && dtype.is_float() { dtype.accumulator() } else { dtype }
    }

    /// An input that was saved; part of the graph where the derivative is recorded itself.
    ///
    /// # Errors
    /// It was changed in place since.
    ///
    /// # Panics
    /// When [`Operator::saves`] did not name it.
    pub fn input(&self, i: usize) -> Result<Tensor> {
        self.tensor(Slot::Input(i))
    }

    /// An output that was saved, as [`Backward::input`].
    ///
    /// # Errors
    /// It was changed in place since.
    ///
    /// # Panics
    /// When [`Operator::saves`] did not name it.
    pub fn output(&self, i: usize) -> Result<Tensor> {
        self.tensor(Slot::Output(i))
    }

    /// Whether the sum of the rows of this input's gradient is wanted, by what made the input.
    pub(crate) fn wants_row_sum(&self, input: usize) -> bool {
        self.given.is_none() && self.node.edges()[input].as_ref().is_some_and(Edge::wants_row_sum)
    }

    /// Whether the derivative may change a saved output in place: this pass frees the graph, and no hook keeps what was
    /// saved.
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

/// An operator that was run and recorded, as dispatch held it, with what it saved.
pub(crate) struct Recorded<H> {
    pub(crate) op: H,
    pub(crate) saved: SavedTensors,
}

/// What an operator saved, and where it was.
pub(crate) type SavedTensors = SmallVec<[(Slot, Saved); 2]>;

impl<H: Deref<Target: Operator> + Send + Sync> Derivative for Recorded<H> {
    fn backward(&self, node: &Arc<Node>, grads: &[Option<Tensor>], wanted: &[bool]) -> Result<Grads> {
        let name = self.op.name();
        let unpacked = Unpacked::default();
        let at = Backward { name, node, grads, wanted, saved: &self.saved, unpacked, given: None };
        if !is_grad_enabled() || !self.op.has_gradient_kernel() {
            return self.op.backward(&at);
        }
        let results = no_grad(|| self.op.backward(&at))?;
        let saved = self.saved.iter().map(|(slot, _)| at.tensor(*slot)).collect::<Result<Vec<_>>>()?;
        record(node, &saved, grads, wanted, results)
    }

    fn kept(&self, visit: &mut dyn FnMut(&Data)) {
        self.saved.iter().filter_map(|(_, saved)| saved.data()).for_each(visit);
    }

    fn in_operations(
        &self,
        node: &Arc<Node>,
        saved: &[Tensor],
        grads: &[Option<Tensor>],
        wanted: &[bool],
    ) -> Result<Grads> {
        let name = self.op.name();
        let (unpacked, given) = (Unpacked::default(), Some(saved));
        self.op.backward(&Backward { name, node, grads, wanted, saved: &self.saved, unpacked, given })
    }

    fn bias(&self) -> Option<usize> {
        self.op.bias()
    }
}
