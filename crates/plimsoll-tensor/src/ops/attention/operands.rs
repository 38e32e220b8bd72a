//! The operator's parameters, and the layout of its operands: queries, keys and values as separate tensors, or packed into one
//! by a projection.

use smallvec::SmallVec;

use crate::cpu::kernels::attention::{AttentionShape, Heads, Mask, Scores};
use crate::cpu::kernels::philox::Dropout;
use crate::cuda::attention::AttentionParams;
use crate::cuda::{self, Placed};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::facts::DeviceFacts;
use crate::layout::{Dims, Layout};
use crate::operator::{Meta, Output};
use crate::ops::{want_float, want_same};
use crate::random::RandomStream;
use crate::view::In;

pub(super) const NAME: &str = "scaled_dot_product_attention";

/// `q, k, v[, mask] -> out, log-sum-exp`, or the same with one packed tensor in place of the first three.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attention {
    pub(super) arrangement: Arrangement,
    pub(super) scale: f64,
    pub(super) causal: bool,
    /// The probability of dropping a weight, and the random stream.
    pub(super) dropout: Option<(f64, RandomStream)>,
}

impl Attention {
    /// The same operator with another random stream.
    pub(super) fn with_stream(self, from: RandomStream) -> Attention {
        Attention { dropout: self.dropout.map(|(p, _)| (p, from)), ..self }
    }

    pub(super) fn dropout(&self) -> Option<Dropout> {
        self.dropout.map(|(p, stream)| Dropout::new(p, stream))
    }
}

/// How queries, keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// `[batch, heads, queries, dim]`, `[batch, kv_heads, keys, dim]` and `[batch, kv_heads, keys, value_dim]`.
    Apart,
    /// `[batch, rows, (heads + 2 · kv_heads) · dim]`: each row has its queries, then its keys, then its values.
    Packed { heads: usize, kv_heads: usize },
}

impl Arrangement {
    /// The number of operand tensors.
    pub(super) fn operands(self) -> usize {
        match self {
            Arrangement::Apart => 3,
            Arrangement::Packed { .. } => 1,
        }
    }

    /// The output: rows outside heads, so that joining the heads is a view.
    pub(super) fn out(self, shape: &AttentionShape, dtype: DType) -> Output {
        let &AttentionShape { batch, heads, queries, value_dim, .. } = shape;
        match self {
            Arrangement::Apart => {
                let layout = Layout::contiguous(&[batch, queries, heads, value_dim]).transpose(1, 2);
                Output::laid_out(layout, dtype)
            }
            Arrangement::Packed { .. } => Output::new(&[batch, queries, heads * value_dim], dtype),
        }
    }

    /// Strides of the output, or of a tensor shaped like it, by batch, head and row.
    pub(super) fn out_strides(self, layout: &Layout, shape: &AttentionShape) -> [usize; 3] {
        match (self, layout.strides()) {
            (Arrangement::Apart, &[batch, head, row, _]) => [batch, head, row],
            (Arrangement::Packed { .. }, &[batch, row, _]) => [batch, shape.value_dim, row],
            _ => unreachable!("inferred"),
        }
    }

    /// For queries, keys and values: the index of their tensor, their offset in it, and their strides.
    pub(super) fn places(
        self,
        layouts: &[&Layout],
        shape: &AttentionShape,
    ) -> [(usize, usize, [usize; 3]); 3] {
        match self {
            Arrangement::Apart => [0, 1, 2].map(|i| {
                let strides = layouts[i].strides();
                (i, 0, [strides[0], strides[1], strides[2]])
            }),
            Arrangement::Packed { heads, kv_heads } => {
                let strides = layouts[0].strides();
                [0, heads, heads + kv_heads]
                    .map(|before| (0, before * shape.dim, [strides[0], shape.dim, strides[1]]))
            }
        }
    }

    /// The sizes and operands of a call whose inputs were inferred.
    pub(super) fn heads<'a>(self, ins: &[In<'a>]) -> (AttentionShape, [Heads<'a>; 3]) {
        let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(In::shape).collect();
        let shape = self.shape(&shapes).unwrap_or_else(|_| unreachable!("inferred"));
        let layouts: SmallVec<[&Layout; 4]> = ins.iter().map(In::layout).collect();
        let heads = self.places(&layouts, &shape).map(|(i, begin, strides)| {
            let dtype = ins[i].dtype();
            Heads { bytes: ins[i].bytes().get(begin * dtype.size()..).unwrap_or(&[]), dtype, strides }
        });
        (shape, heads)
    }

    /// The sizes, computed from the shapes of the inputs.
    pub(super) fn shape(self, ins: &[&[usize]]) -> Result<AttentionShape> {
        match (self, ins) {
            (
                Arrangement::Apart,
                &[
                    &[batch, heads, queries, dim],
                    &[k_batch, kv_heads, keys, k_dim],
                    &[v_batch, v_heads, values, value_dim],
                    ..,
                ],
            ) => {
                let fits = (k_batch, v_batch, v_heads, values, k_dim) == (batch, batch, kv_heads, keys, dim);
                if !fits || (kv_heads == 0 && heads > 0) || (kv_heads > 0 && !heads.is_multiple_of(kv_heads))
                {
                    let message = format!(
                        "query {:?}, key {:?} and value {:?}: needs […, heads, queries, dim], […, kv_heads, keys, dim] and \
                         […, kv_heads, keys, value_dim], with heads equal to kv_heads, or a multiple of it under `enable_gqa`",
                        ins[0], ins[1], ins[2]
                    );
                    return Err(Error::shape(NAME, message));
                }
                Ok(AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim })
            }
            (Arrangement::Packed { heads, kv_heads }, &[&[batch, rows, width], ..]) => {
                let parts = heads + 2 * kv_heads;
                if heads == 0
                    || kv_heads == 0
                    || !heads.is_multiple_of(kv_heads)
                    || !width.is_multiple_of(parts)
                {
                    let message = format!(
                        "packed {:?} with {heads} heads and {kv_heads} kv_heads: needs [batch, rows, (heads + 2 · kv_heads) \
                         · dim], with heads a multiple of kv_heads",
                        ins[0]
                    );
                    return Err(Error::shape(NAME, message));
                }
                let dim = width / parts;
                let (queries, keys, value_dim) = (rows, rows, dim);
                Ok(AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim })
            }
            _ => Err(Error::shape(
                NAME,
                format!("inputs {ins:?}: needs a query, a key, a value and perhaps a mask"),
            )),
        }
    }
}

/// Checks the inputs and returns their sizes.
pub(super) fn sizes(arrangement: Arrangement, ins: &[Meta<'_>]) -> Result<AttentionShape> {
    let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(Meta::shape).collect();
    let shape = arrangement.shape(&shapes)?;
    want_float(NAME, ins[0].dtype)?;
    want_same(NAME, &ins[..arrangement.operands()])?;
    if let Some(mask) = ins.get(arrangement.operands()) {
        if mask.dtype != DType::Bool && mask.dtype != ins[0].dtype && mask.dtype != DType::F32 {
            let expected = "a mask of bool, or of the query's type";
            return Err(Error::DType { op: NAME, expected, got: mask.dtype });
        }
        if mask.layout.expand(&shape.of_scores()).is_none() {
            let message = format!(
                "a mask {:?} does not broadcast to the scores {:?} [batch, heads, queries, keys]",
                mask.shape(),
                shape.of_scores()
            );
            return Err(Error::shape(NAME, message));
        }
    }
    Ok(shape)
}

impl Attention {
    /// The addresses at which queries, keys and values begin on a GPU.
    pub(super) fn cuda_heads(
        &self,
        of: &[Placed<'_>],
        shape: &AttentionShape,
    ) -> [cuda::attention::Heads; 3] {
        let layouts: SmallVec<[&Layout; 4]> = of.iter().map(|x| x.layout).collect();
        self.arrangement.places(&layouts, shape).map(|(i, begin, strides)| cuda::attention::Heads {
            address: of[i].address + (begin * of[i].dtype.size()) as u64,
            strides,
        })
    }

    /// Whether the kernels of `cuda/attention/flash.rs` support this call. `rest` are the output and its gradient if they are
    /// inputs. `outs` are written: their layout is fixed by the operator, and they may start at any offset.
    pub(super) fn is_by_tiles(
        &self,
        (layouts, dtype): (&[&Layout], DType),
        rest: &[&Layout],
        outs: &[&Layout],
        facts: DeviceFacts,
    ) -> bool {
        let operands = self.arrangement.operands();
        let shapes: SmallVec<[&[usize]; 4]> = layouts.iter().map(|layout| layout.shape()).collect();
        let Ok(shape) = self.arrangement.shape(&shapes) else { return false };
        let places = self.arrangement.places(layouts, &shape);
        let is_aligned = |layout: &Layout, begin: usize, strides| {
            cuda::attention::flash::is_aligned(layout, begin, strides)
        };
        layouts.len() == operands
            && self.dropout.is_none()
            && cuda::attention::flash::takes(&shape.into(), dtype, self.scale, facts)
            && places.into_iter().all(|(i, begin, strides)| is_aligned(layouts[i], begin, strides))
            && outs.iter().all(|out| is_aligned(out, 0, [0; 3]))
            && rest.iter().all(|x| is_aligned(x, 0, self.arrangement.out_strides(x, &shape)))
    }

    /// The parameters in the form that a GPU's kernels take.
    pub(super) fn params<'a>(
        &self,
        ins: &[Placed<'a>],
        by_tiles: bool,
    ) -> (AttentionParams<'a>, [cuda::attention::Heads; 3]) {
        let shapes: SmallVec<[&[usize]; 4]> = ins.iter().map(Placed::shape).collect();
        let shape = self.arrangement.shape(&shapes).unwrap_or_else(|_| unreachable!("inferred"));
        let mask = ins.get(self.arrangement.operands()).map(|mask| {
            let wide = mask.layout.expand(&shape.of_scores()).unwrap_or_else(|| unreachable!("inferred"));
            (*mask, [0, 1, 2, 3].map(|dim| wide.strides()[dim]))
        });
        let params = AttentionParams {
            shape: shape.into(),
            dtype: ins[0].dtype,
            scale: self.scale,
            causal: self.causal,
            mask,
            dropout: self.dropout,
            by_tiles,
        };
        (params, self.cuda_heads(ins, &shape))
    }
}

impl From<AttentionShape> for cuda::attention::Sizes {
    fn from(shape: AttentionShape) -> cuda::attention::Sizes {
        let AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim } = shape;
        cuda::attention::Sizes { batch, heads, kv_heads, queries, keys, dim, value_dim }
    }
}

impl From<cuda::attention::Sizes> for AttentionShape {
    fn from(sizes: cuda::attention::Sizes) -> AttentionShape {
        let cuda::attention::Sizes { batch, heads, kv_heads, queries, keys, dim, value_dim } = sizes;
        AttentionShape { batch, heads, kv_heads, queries, keys, dim, value_dim }
    }
}

impl Attention {
    /// The scale, masks and dropout that turn products of queries and keys into scores.
    pub(super) fn scores<'a>(&self, shape: &AttentionShape, mask: Option<&In<'a>>) -> Scores<'a> {
        let mask = mask.map_or(Mask::None, |mask| {
            let wide = mask.layout().expand(&shape.of_scores()).unwrap_or_else(|| unreachable!("inferred"));
            let strides = [0, 1, 2, 3].map(|dim| wide.strides()[dim]);
            match mask.dtype() {
                DType::Bool => Mask::Keep(mask.elements(), strides),
                dtype => Mask::Add(mask.bytes(), dtype, strides),
            }
        });
        Scores { scale: self.scale, causal: self.causal, mask, dropout: self.dropout() }
    }
}

/// Whether the elements of each row are adjacent in memory.
pub(super) fn rows_are_dense(layout: &Layout) -> bool {
    match (layout.shape(), layout.strides()) {
        ([.., cols], [.., stride]) => *cols < 2 || *stride == 1,
        _ => false,
    }
}

/// A layout of these sizes in the order of an operand: rows outside heads if the operand has them so.
pub(super) fn laid_like(layout: &Layout) -> Layout {
    let shape: Dims = layout.shape().into();
    match (shape.as_slice(), layout.strides()) {
        (&[batch, heads, rows, dim], &[_, head, row, _]) if head < row => {
            Layout::contiguous(&[batch, rows, heads, dim]).transpose(1, 2)
        }
        _ => Layout::contiguous(&shape),
    }
}

pub(super) fn float_bytes(len: usize) -> u64 {
    (len * DType::F32.size()) as u64
}

/// Floating-point operations of `products` products of queries with keys.
pub(super) fn flops(shape: &AttentionShape, causal: bool, products: u64) -> u64 {
    let pairs = (shape.batch * shape.heads * shape.queries * shape.keys) as u64;
    let width = shape.dim.midpoint(shape.value_dim) as u64;
    2 * products * pairs * width / if causal { 2 } else { 1 }
}
