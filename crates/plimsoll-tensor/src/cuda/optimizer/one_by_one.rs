//! The optimizers that are not in `step`, with one or more launches per parameter.

use plimsoll_cuda::Args;
use smallvec::SmallVec;

use super::StepSlot;
use crate::cuda::matmul::product::{Operand, product};
use crate::cuda::{CudaCall, Placed, flag, name};
use crate::dtype::DType;
use crate::error::Result;

const ELEMENTS: &str = concat!(include_str!("rounding.cu"), include_str!("one_by_one.cu"));
const WHOLE: &str = include_str!("whole_matrix.cu");

/// A parameter, its gradient and its state.
#[derive(Clone)]
pub(crate) struct Stepped<'a> {
    pub(crate) parameter: Placed<'a>,
    pub(crate) grad: Placed<'a>,
    pub(crate) state: SmallVec<[Placed<'a>; 3]>,
    /// The tensor that receives the parameter's rounded values.
    pub(crate) rounded: Option<Placed<'a>>,
    pub(crate) step: u64,
    /// The seed with which the parameter is rounded stochastically.
    pub(crate) seed: Option<u64>,
}

impl Stepped<'_> {
    /// The address of a state tensor; 0 if there is none.
    pub(super) fn state(&self, nth: usize) -> u64 {
        self.state.get(nth).map_or(0, |state| state.address)
    }
}

/// The parameters of a call. They are outputs; each is followed by its state tensors (`slots` has their number) and, with
/// `rounds`, the tensor for its rounded values.
pub(crate) fn slots<'a>(call: &CudaCall<'a>, slots: &[StepSlot], rounds: bool) -> Vec<Stepped<'a>> {
    let (mut changed, mut grads) = (call.outs.iter().copied(), call.ins.iter().copied());
    let slot = |&StepSlot { step, states, seed }: &StepSlot| {
        let (parameter, grad) = (changed.next()?, grads.next()?);
        let state = changed.by_ref().take(states).collect();
        let rounded = rounds.then(|| changed.next()).flatten();
        Some(Stepped { parameter, grad, state, rounded, step, seed })
    };
    slots.iter().filter_map(slot).filter(|slot| !slot.parameter.is_empty()).collect()
}

/// An elementwise rule: its number in the kernel text, its numeric options, and the state tensor for each of the kernel's
/// three.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) number: u32,
    pub(crate) values: [f64; 12],
    pub(crate) state: [Option<usize>; 3],
}

/// One step of an elementwise rule.
pub(crate) fn step(call: &mut CudaCall<'_>, slot: &Stepped<'_>, rule: &Rule) -> Result<()> {
    let Stepped { parameter, grad, .. } = slot;
    let of_state = slot.state.first().map_or(parameter.dtype, |state| state.dtype);
    let source = call
        .source(ELEMENTS)
        .with("A", name(parameter.dtype.accumulator()))
        .with("P", name(parameter.dtype))
        .with("G", name(grad.dtype))
        .with("S", name(of_state))
        .with("RANDOM", flag(slot.seed.is_some()))
        .with("RULE", rule.number.to_string());
    let args = Args::new().address(parameter.address).address(grad.address);
    let args = rule.state.iter().fold(args, |args, nth| args.address(nth.map_or(0, |nth| slot.state(nth))));
    let args = args.size(parameter.len()).words(&rule.values.map(f64::to_bits));
    let args = args.words(&[slot.seed.unwrap_or(0), 2 * slot.step]);
    call.launch(source, [crate::cuda::blocks_for(parameter.len(), 256, 4), 1, 1], 256, args)
}

/// `[batch, height, width]`.
type Sizes = [usize; 3];

/// The addresses of the buffers for a step that uses the complete matrix.
#[derive(Clone, Copy, Default)]
struct Buffers {
    means: u64,
    sums: u64,
    x: u64,
    y: u64,
}

fn whole(
    call: &mut CudaCall<'_>,
    slot: &Stepped<'_>,
    buffers: Buffers,
    sizes: Sizes,
    (pass, blocks): (u32, usize),
    numbers: [f64; 8],
) -> Result<()> {
    let of_state = slot.state.first().map_or(DType::F32, |state| state.dtype);
    let source = call
        .source(WHOLE)
        .with("P", name(slot.parameter.dtype))
        .with("G", name(slot.grad.dtype))
        .with("S", name(of_state))
        .with("PASS", pass.to_string());
    let args = Args::new().address(slot.parameter.address).address(slot.grad.address);
    let args =
        args.address(slot.state(0)).address(slot.state(1)).address(buffers.means).address(buffers.sums);
    let args = args.address(buffers.x).address(buffers.y).words(&sizes.map(|n| n as u64));
    call.launch(source, [blocks, 1, 1], 512, args.words(&numbers.map(f64::to_bits)))
}

fn eight<const N: usize>(numbers: [f64; N]) -> [f64; 8] {
    std::array::from_fn(|i| numbers.get(i).copied().unwrap_or(0.0))
}

/// Bytes of scratch memory of Adafactor: sums, and a mean for each matrix.
pub(crate) fn adafactor_scratch(shape: &[usize]) -> u64 {
    let matrices: usize = shape.iter().rev().skip(2).product();
    (16 + 4 * matrices) as u64
}

/// Adafactor's options for one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adafactor {
    pub(crate) weight: f64,
    pub(crate) eps1: f64,
    pub(crate) eps2: f64,
    pub(crate) rate: f64,
    pub(crate) d: f64,
    pub(crate) keep: f64,
    pub(crate) sign: f64,
}

/// One step of Adafactor.
pub(crate) fn adafactor(call: &mut CudaCall<'_>, slot: &Stepped<'_>, of: &Adafactor) -> Result<()> {
    let (len, shape) = (slot.parameter.len(), slot.parameter.shape());
    let sums = call.scratch_address();
    let buffers = Buffers { sums, means: sums + 16, ..Buffers::default() };
    let elements = len.div_ceil(512);
    let factored = slot.state.len() == 2;
    let sizes = match shape {
        [lead @ .., height, width] if factored => [lead.iter().product(), *height, *width],
        _ => [1, 1, len],
    };
    let [batch, height, width] = sizes;
    if factored {
        whole(call, slot, buffers, sizes, (0, batch * height), eight([of.weight]))?;
        whole(call, slot, buffers, sizes, (1, (batch * width).div_ceil(512)), eight([of.weight]))?;
        whole(call, slot, buffers, sizes, (4, batch), eight([of.eps1]))?;
    } else {
        whole(call, slot, buffers, sizes, (2, elements), eight([of.weight]))?;
    }
    whole(call, slot, buffers, sizes, (3, 1), [0.0; 8])?;
    whole(call, slot, buffers, sizes, (5, 1), eight([of.eps1]))?;
    let numbers = eight([of.eps1, of.keep, of.eps2, of.rate, of.d, of.sign]);
    whole(call, slot, buffers, sizes, (6, elements), numbers)
}

/// Muon's options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Muon {
    pub(crate) momentum: f64,
    pub(crate) nesterov: bool,
    pub(crate) eps: f64,
    pub(crate) coefficients: (f64, f64, f64),
    pub(crate) iterations: u32,
    pub(crate) keep: f64,
    pub(crate) rate: f64,
}

/// Bytes of scratch memory of Muon: two copies of the matrix, two square matrices of its smaller dimension, and a number.
pub(crate) fn muon_scratch(shape: &[usize]) -> u64 {
    let &[rows, columns] = shape else { return 0 };
    let (m, n) = (rows.min(columns), rows.max(columns));
    (4 * (2 * m * n + 2 * m * m) + 16) as u64
}

/// One step of Muon. Products are computed in 32 bits; intermediates are rounded as in PyTorch.
pub(crate) fn muon(call: &mut CudaCall<'_>, slot: &Stepped<'_>, of: &Muon) -> Result<()> {
    let &[rows, columns] = slot.parameter.shape() else { return call.missing() };
    let (m, n) = (rows.min(columns), rows.max(columns));
    let tall = f64::from(u8::from(rows > columns));
    let means = call.scratch_address();
    let x = means + 16;
    let next = x + (4 * m * n) as u64;
    let gram = next + (4 * m * n) as u64;
    let update = gram + (4 * m * m) as u64;
    let (whole_sizes, square) = ([1, rows, columns], [1, m, m]);
    let (elements, squares) = ((m * n).div_ceil(512), (m * m).div_ceil(512));
    let buffers = Buffers { means, x, ..Buffers::default() };
    let fresh = 1.0 - of.momentum;
    let numbers = eight([of.momentum, fresh, f64::from(u8::from(of.nesterov)), tall]);
    whole(call, slot, buffers, whole_sizes, (7, elements), numbers)?;
    whole(call, slot, buffers, whole_sizes, (8, 1), eight([of.eps]))?;
    whole(call, slot, buffers, whole_sizes, (9, elements), [0.0; 8])?;
    let (a, b, c) = of.coefficients;
    let matrix = |address: u64, width: usize| Operand::rows(address, DType::F32, width);
    for _ in 0..of.iterations {
        let wide = matrix(x, n);
        product(call, [1, m, m, n], wide, wide.transposed(), matrix(gram, m), None, 0.0)?;
        whole(call, slot, Buffers { x: gram, ..buffers }, square, (10, squares), [0.0; 8])?;
        product(call, [1, m, m, m], matrix(gram, m), matrix(gram, m), matrix(update, m), None, 0.0)?;
        let both = Buffers { x: gram, y: update, ..buffers };
        whole(call, slot, both, square, (11, squares), eight([b, c]))?;
        product(call, [1, m, n, m], matrix(update, m), wide, matrix(next, n), None, 0.0)?;
        // Copies the result back to the first of the two buffers.
        whole(call, slot, Buffers { x: next, y: x, ..buffers }, [1, m, n], (11, elements), eight([1.0, a]))?;
    }
    whole(call, slot, buffers, whole_sizes, (12, elements), eight([of.keep, of.rate, tall]))
}
