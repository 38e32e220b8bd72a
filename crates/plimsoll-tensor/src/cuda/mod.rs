//! How an operator describes its work on an NVIDIA GPU: as kernel launches and matrix products, with sizes and addresses.
//!
//! [`Kernel::cuda`](crate::Kernel::cuda) writes them into a [`CudaCall`]; `cuda_device/` queues them. Nothing here needs a GPU, so
//! a description can be looked at and its kernels compiled without one. The texts are beside the files that lay
//! out what they are called with: CUDA C++ without headers, after a common prelude (`prelude.cu`).
//!
//! | file | what it describes |
//! |---|---|
//! | `space` | operands laid beside each other, in as few dimensions as they need |
//! | `elementwise/` | an expression of each element, of any types; fills and copies; the gradient of an activation |
//! | `reduce/` | sums and other reductions over any dimensions; running sums and products |
//! | `shape/` | elements from other places: padding, flips |
//! | `matmul/` | matrix products, by cuBLASLt where it reads the strides; distances of every pair of vectors |
//! | `convolution/` | convolution: cuDNN's, with kernels of ours where that has none or is slower; pooling; resampling of images |
//! | `normalization/` | normalization of rows, of batches and of groups; softmax |
//! | `attention/` | attention by blocks of scores and by tiles with tensor cores; rotary embedding |
//! | `loss/` | cross entropy, also of a projection whose logits are never whole; likelihoods; losses of each element and its target |
//! | `random/` | drawn values, dropout |
//! | `optimizer/` | optimizers over all parameters, and one parameter at a time; norms of gradients |
//! | `indexing/` | elements read, written or added by index; triangles and masks; rows in order |
//! | `recurrent/` | recurrent layers, step by step |
//!
//! The folders are the families of operators in `ops/` and of the host's kernels in `plimsoll-kernels`, too.

pub(crate) mod attention;
pub(crate) mod convolution;
pub(crate) mod elementwise;
pub(crate) mod indexing;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod normalization;
pub(crate) mod optimizer;
pub(crate) mod random;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod shape;
mod space;

pub(crate) use plimsoll_cuda::ConvolutionPass;
pub use plimsoll_cuda::{Args, Launch, Source, Step};
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::layout::Layout;
use crate::view::{self, View};

/// What every kernel's text begins with: types, conversions, sums over a block.
const PRELUDE: &str = include_str!("prelude.cu");

/// A tensor on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// Where the first element is.
    pub address: u64,
    /// The type of the elements.
    pub dtype: DType,
    /// Shape and strides; the offset is in the address already.
    pub layout: &'a Layout,
}

impl<'a> Placed<'a> {
    pub(crate) fn of(view: &View<'a>) -> Placed<'a> {
        Placed { address: view.first_address(), dtype: view.dtype(), layout: view.layout() }
    }

    /// Sizes, outermost first.
    pub fn shape(&self) -> &'a [usize] {
        self.layout.shape()
    }

    /// A part of it: the layout's offset counts from the first element of this layout's storage.
    pub(crate) fn part<'b>(&self, layout: &'b Layout) -> Placed<'b> {
        let from = layout.offset() - self.layout.offset();
        Placed { address: self.address + (from * self.dtype.size()) as u64, dtype: self.dtype, layout }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// Size of the last dimension; 1 of a scalar.
    pub(crate) fn cols(&self) -> usize {
        self.shape().last().copied().unwrap_or(1)
    }

    /// How many rows of the last dimension there are.
    pub(crate) fn rows(&self) -> usize {
        self.shape().iter().rev().skip(1).product()
    }
}

/// The kinds of error that a kernel can find, as the numbers that [`Args::fault`] takes.
pub(crate) mod fault {
    /// An index outside its dimension.
    pub(crate) const INDEX: u32 = 0;
    /// A target that is no class.
    pub(crate) const TARGET: u32 = 1;
    /// A weight that cannot be one (its place), or too few above 0 (-1).
    pub(crate) const WEIGHT: u32 = 2;
}

/// What a kernel on a GPU is called with, and the work that it asks for. An input that is changed in place comes as an output
/// only; no output shares memory with an input or with another output.
#[derive(Debug)]
pub struct CudaCall<'a> {
    op: &'static str,
    /// What is known of the device.
    pub(crate) facts: DeviceFacts,
    /// The tensors to read, in the operator's order.
    pub ins: SmallVec<[Placed<'a>; 4]>,
    /// The tensors to write, in the operator's order.
    pub outs: SmallVec<[Placed<'a>; 4]>,
    /// As many bytes as [`crate::Operator::scratch`] asked for.
    pub scratch: Option<Placed<'a>>,
    steps: Vec<Step>,
}

impl<'a> CudaCall<'a> {
    pub(crate) fn new(
        op: &'static str,
        facts: DeviceFacts,
        view::Launch { ins, outs, scratch }: view::Launch<'a>,
    ) -> CudaCall<'a> {
        let placed = |views: &'a [View<'a>]| views.iter().map(Placed::of).collect();
        CudaCall {
            op,
            facts,
            ins: placed(ins),
            outs: placed(outs),
            scratch: scratch.as_ref().map(Placed::of),
            steps: Vec::new(),
        }
    }

    /// The operator's name.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// The work, in the order in which it was asked for.
    pub(crate) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Asks for a piece of work, after all that was asked for before.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// The work that `describe` asks for, in place of adding it.
    pub(crate) fn apart(&mut self, describe: impl FnOnce(&mut Self) -> Result<()>) -> Result<Vec<Step>> {
        let before = std::mem::take(&mut self.steps);
        let described = describe(self);
        let steps = std::mem::replace(&mut self.steps, before);
        described.map(|()| steps)
    }

    /// Where scratch begins; 0 where none was asked for.
    pub(crate) fn scratch_address(&self) -> u64 {
        self.scratch.map_or(0, |scratch| scratch.address)
    }

    /// Asks for a kernel with this many blocks.
    pub(crate) fn launch(&mut self, source: Source, grid: [usize; 3], block: u32, args: Args) -> Result<()> {
        let op = self.op;
        let [x, y, z] = grid.map(|n| u32::try_from(n).ok());
        let (Some(x), Some(y), Some(z)) = (x, y.filter(|&y| y < 1 << 16), z.filter(|&z| z < 1 << 16)) else {
            return Err(Error::argument(op, format!("too large for one launch: a grid of {grid:?} blocks")));
        };
        if x > 0 && y > 0 && z > 0 {
            self.push(Step::Launch(Launch { source, grid: [x, y, z], block, shared_bytes: 0, args }));
        }
        Ok(())
    }

    /// The text of one of our kernels.
    pub(crate) fn source(&self, text: &'static str) -> Source {
        Source::new(self.op, PRELUDE, text)
    }

    /// This operator, or these types, have no kernel here yet.
    pub(crate) fn missing<T>(&self) -> Result<T> {
        Err(Error::NoKernel { op: self.op, device: "cuda" })
    }

    /// The type of some tensors, of floating point.
    pub(crate) fn float(&self, of: &[Placed<'_>]) -> Result<DType> {
        match of {
            [first, rest @ ..]
                if first.dtype.is_float() && rest.iter().all(|other| other.dtype == first.dtype) =>
            {
                Ok(first.dtype)
            }
            _ => self.missing(),
        }
    }
}

/// The name of a type in a kernel's text.
pub(crate) fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::U8 => "u8",
        DType::Bool => "boolean",
    }
}

/// Threads of a block that works on a row of this many elements.
pub(crate) fn threads_for(cols: usize) -> u32 {
    u32::try_from(cols.clamp(32, 512).next_power_of_two()).unwrap_or(512)
}

/// Blocks of `block` threads for this many elements, each thread with `each` of them: no more than make a device busy, since
/// kernels go on from the end of the grid.
pub(crate) fn blocks_for(elements: usize, block: usize, each: usize) -> usize {
    elements.div_ceil(block * each).min(1 << 20)
}

/// A text with the types that its rows are of and are computed in.
pub(crate) fn typed(call: &CudaCall<'_>, text: &'static str, dtype: DType) -> Source {
    call.source(text).with("A", name(dtype.accumulator())).with("T", name(dtype))
}

/// A condition in a kernel's text.
pub(crate) fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}
