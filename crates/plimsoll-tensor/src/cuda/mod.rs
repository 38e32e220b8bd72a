//! Descriptions of an operator's work on an NVIDIA GPU: kernel launches and matrix products, with sizes and addresses.
//!
//! [`Kernel::cuda`](crate::Kernel::cuda) writes them into a [`CudaCall`]; `cuda_device/` queues them. Nothing here needs a GPU,
//! so a description can be inspected, and its kernels compiled, without one. The kernel sources are in the same folders
//! as the Rust files that prepare their arguments. They are CUDA C++ without headers, and follow a common prelude
//! (`prelude.cu`).
//!
//! | file | what it describes |
//! |---|---|
//! | `space` | the common shape of several operands, with as few dimensions as possible |
//! | `elementwise/` | elementwise expressions of any types; fills and copies; the gradient of an activation |
//! | `reduce/` | sums and other reductions over any dimensions; running sums and products |
//! | `shape/` | moving elements to other positions: padding, flips |
//! | `matmul/` | matrix products, with cuBLASLt if it supports the strides; distances between all pairs of vectors |
//! | `convolution/` | convolution with cuDNN, or our kernels if cuDNN has none or is slower; pooling; resampling |
//! | `normalization/` | normalization of rows, of batches and of groups; softmax |
//! | `attention/` | attention by blocks of scores and by tiles with tensor cores; rotary embedding |
//! | `loss/` | cross entropy, also of a projection whose logits are never all in memory at once; negative log likelihood; elementwise losses |
//! | `random/` | random values, dropout |
//! | `optimizer/` | optimizers over all parameters, and one parameter at a time; norms of gradients |
//! | `indexing/` | elements read, written or added by index; triangles and masks; sorting |
//! | `recurrent/` | recurrent layers, step by step |
//!
//! The folders correspond to the families of operators in `ops/` and of the host's kernels in `plimsoll-kernels`.

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

/// The beginning of every kernel's source: types, conversions, sums over a block.
const PRELUDE: &str = include_str!("prelude.cu");

/// A tensor on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// The address of the first element.
    pub address: u64,
    /// The type of the elements.
    pub dtype: DType,
    /// Shape and strides; the address already includes the offset.
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

    /// A part of this tensor. The offset of `layout` is relative to the same storage.
    pub(crate) fn part<'b>(&self, layout: &'b Layout) -> Placed<'b> {
        let from = layout.offset() - self.layout.offset();
        Placed { address: self.address + (from * self.dtype.size()) as u64, dtype: self.dtype, layout }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// Size of the last dimension; 1 for a scalar.
    pub(crate) fn cols(&self) -> usize {
        self.shape().last().copied().unwrap_or(1)
    }

    /// The number of rows along the last dimension.
    pub(crate) fn rows(&self) -> usize {
        self.shape().iter().rev().skip(1).product()
    }
}

/// The kinds of error that a kernel can detect, as numbers for [`Args::fault`].
pub(crate) mod fault {
    /// An index outside its dimension.
    pub(crate) const INDEX: u32 = 0;
    /// A target that is not a class.
    pub(crate) const TARGET: u32 = 1;
    /// An invalid weight (its position), or too few weights above 0 (-1).
    pub(crate) const WEIGHT: u32 = 2;
}

/// The arguments of an operator on a GPU, and the work that it describes. An input that is changed in place appears only as an
/// output; no output shares memory with an input or with another output.
#[derive(Debug)]
pub struct CudaCall<'a> {
    op: &'static str,
    /// The properties of the device.
    pub(crate) facts: DeviceFacts,
    /// The tensors to read, in the operator's order.
    pub ins: SmallVec<[Placed<'a>; 4]>,
    /// The tensors to write, in the operator's order.
    pub outs: SmallVec<[Placed<'a>; 4]>,
    /// Scratch memory of the size that [`crate::Operator::scratch`] returned.
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

    /// The work, in order.
    pub(crate) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Adds a piece of work after all previous work.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Returns the work that `describe` adds instead of adding it to this call.
    pub(crate) fn apart(&mut self, describe: impl FnOnce(&mut Self) -> Result<()>) -> Result<Vec<Step>> {
        let before = std::mem::take(&mut self.steps);
        let described = describe(self);
        let steps = std::mem::replace(&mut self.steps, before);
        described.map(|()| steps)
    }

    /// The address of the scratch memory; 0 if there is none.
    pub(crate) fn scratch_address(&self) -> u64 {
        self.scratch.map_or(0, |scratch| scratch.address)
    }

    /// Adds a kernel launch with this many blocks.
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

    /// The source of one of our kernels.
    pub(crate) fn source(&self, text: &'static str) -> Source {
        Source::new(self.op, PRELUDE, text)
    }

    /// The error for an operator or types without a kernel.
    pub(crate) fn missing<T>(&self) -> Result<T> {
        Err(Error::NoKernel { op: self.op, device: "cuda" })
    }

    /// The common floating-point type of some tensors.
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

/// The name of a type in kernel sources.
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

/// The number of threads in a block that handles a row with this many elements.
pub(crate) fn threads_for(cols: usize) -> u32 {
    u32::try_from(cols.clamp(32, 512).next_power_of_two()).unwrap_or(512)
}

/// The number of blocks of `block` threads for this many elements, with `each` elements per thread. A million
/// blocks are enough for any device, because kernels loop over the grid.
pub(crate) fn blocks_for(elements: usize, block: usize, each: usize) -> usize {
    elements.div_ceil(block * each).min(1 << 20)
}

/// A kernel source with the element type and the compute type of its rows.
pub(crate) fn typed(call: &CudaCall<'_>, text: &'static str, dtype: DType) -> Source {
    call.source(text).with("A", name(dtype.accumulator())).with("T", name(dtype))
}

/// The value of a flag in a kernel source.
pub(crate) fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}
