//! A vocabulary that is divided among ranks: [`VocabParallelEmbedding`], and the cross entropy of its output layer.

use std::ops::Range;

use plimsoll_tensor::label::{Category, LabelId, Span, intern};
use plimsoll_tensor::{
    Autocast, CrossEntropyOptions, DType, Error, Function, FunctionBackward, Grads, ProcessGroup, Result,
    Save, Tensor, Tensors, apply, is_grad_enabled,
};

use super::tensor_parallel::{Cut, TensorParallel};
use super::{Init, Module, Parameter, Scope};
use crate::members;

const NAME: &str = "vocab_parallel_cross_entropy";
/// The number of logits to compute at a time, which bounds the temporary memory.
const CHUNK: usize = 8 << 20;
/// Targets with this class do not count.
const IGNORED: i64 = -100;

/// An [`Embedding`](super::Embedding) whose rows are divided among the ranks of [`Scope::tensor_parallel`]; if they
/// cannot be divided equally, the last rank has fewer. Each rank looks up all tokens `int64 […, tokens]`, and gets the
/// rows for its own tokens, `[…, tokens / ranks, size]`. Without `tensor_parallel` it is a plain `Embedding`. Like
/// Megatron's, with sequence parallelism.
///
/// ```
/// use plimsoll::nn::{Module, Scope, VocabParallelEmbedding};
/// use plimsoll::{Device, ProcessGroup, Tensor};
/// let scope = Scope::new(&Device::sim(plimsoll::SimConfig::new(1 << 30)), 1);
/// let scope = scope.tensor_parallel(&ProcessGroup::simulated(0, 2));
/// let embedding = VocabParallelEmbedding::new(&scope, 101, 8)?;
/// assert_eq!(embedding.weight().shape(), [51, 8]);
/// let tokens = Tensor::from_slice(&[3i64, 99, 4, 5], &[1, 4], scope.device())?;
/// assert_eq!(embedding.forward(&tokens)?.shape(), [1, 2, 8]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct VocabParallelEmbedding {
    label: LabelId,
    weight: Parameter,
    region: Option<TensorParallel>,
    count: usize,
}

impl VocabParallelEmbedding {
    /// A layer with `count` rows over all ranks, each of `size` numbers drawn from the standard normal distribution.
    /// Together, the ranks' initial values are those of an `Embedding` at this place.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, count: usize, size: usize) -> Result<VocabParallelEmbedding> {
        VocabParallelEmbedding::with_init(scope, count, size, Init::Normal(1.0))
    }

    /// The same layer with different initial values.
    ///
    /// # Errors
    /// The same errors as [`VocabParallelEmbedding::new`].
    pub fn with_init(scope: &Scope, count: usize, size: usize, init: Init) -> Result<VocabParallelEmbedding> {
        let weight = scope.part("weight", &[count, size], Cut::Uneven(0), init)?;
        Ok(VocabParallelEmbedding { label: scope.label(), weight, region: scope.region(), count })
    }

    /// This rank's rows, `[rows, size]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }
}

impl Module for VocabParallelEmbedding {
    members!(weight);

    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let _owner = Span::layer(self.label);
        let Some(region) = &self.region else { return tokens.embedding(&self.weight, None) };
        let own = Own::of(region.group(), region.uneven(self.count), self.count);
        let (index, others) = own.index(tokens)?;
        let rows = index.embedding(&self.weight, None)?.masked_fill(&others.unsqueeze(-1)?, 0.0)?;
        region.scatter(&rows)
    }
}

/// The classes of a rank.
#[derive(Clone, Debug)]
struct Own {
    classes: Range<usize>,
    /// Whether this rank looks up classes below or above the vocabulary, and so reports them as an error.
    is_first: bool,
    is_last: bool,
}

impl Own {
    fn of(group: &ProcessGroup, classes: Range<usize>, count: usize) -> Own {
        Own { is_first: group.rank() == 0, is_last: classes.end == count, classes }
    }

    /// The index of each class among this rank's classes, 0 for classes of other ranks; and which ones belong to other
    /// ranks.
    fn index(&self, classes: &Tensor) -> Result<(Tensor, Tensor)> {
        let below = || classes.lt_scalar(self.classes.start as i64);
        let above = || classes.ge_scalar(self.classes.end as i64);
        let others = match (self.is_first, self.is_last) {
            (false, false) => below()?.logical_or(&above()?)?,
            (true, _) => above()?,
            (false, true) => below()?,
        };
        let index = classes.sub_scalar(self.classes.start as i64)?.masked_fill(&others, 0.0)?;
        Ok((index, others))
    }
}

/// The mean cross entropy of the projection `x · weightᵀ` against classes. `x` has this rank's tokens, `weight` has
/// this rank's share of `count` classes; `target` has all tokens. All ranks get the same loss. Without tensor
/// parallelism, the same as [`Tensor::linear_cross_entropy`].
pub(crate) fn cross_entropy(
    region: Option<&TensorParallel>,
    x: &Tensor,
    weight: &Tensor,
    count: usize,
    target: &Tensor,
) -> Result<Tensor> {
    let Some(region) = region else {
        return x.linear_cross_entropy(weight, None, target, CrossEntropyOptions::default());
    };
    let x = region.gather(x)?.flatten(0, -2)?;
    let target = target.reshape(&[-1])?;
    if target.numel() != x.shape()[0] {
        let message = format!("{} targets for {} tokens", target.numel(), x.shape()[0]);
        return Err(Error::shape(NAME, message));
    }
    let own = Own::of(region.group(), region.uneven(count), count);
    let function = VocabParallelCrossEntropy { group: region.group().clone(), own };
    let outs = apply(function, &[&x, weight, &target])?;
    Ok(outs[0].clone())
}

/// `x, weight, target -> loss`. For each row, the ranks exchange the log-sum-exp of their logits and the logit of the
/// target. The derivative recomputes the logits. They are never materialized in full.
struct VocabParallelCrossEntropy {
    group: ProcessGroup,
    own: Own,
}

impl VocabParallelCrossEntropy {
    /// The ranges of rows that are computed at a time.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let at_once = (CHUNK / self.own.classes.len().max(1)).clamp(1, rows.max(1));
        (0..rows).step_by(at_once).map(move |start| (start, at_once.min(rows - start)))
    }
}

fn logits(x: &Tensor, weight: &Tensor, (start, count): (usize, usize)) -> Result<Tensor> {
    x.narrow(0, start, count)?.linear(weight, None)?.to_dtype(wide(x.dtype()))
}

/// The type in which losses are computed.
fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

impl Function for VocabParallelCrossEntropy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn autocast(&self) -> Autocast {
        Autocast::Lower
    }

    fn forward(&self, ins: &[&Tensor], save: &mut Save) -> Result<Tensors> {
        let &[x, weight, target] = ins else { unreachable!("three inputs") };
        let (rows, ranks, dtype) = (x.shape()[0], self.group.size(), wide(x.dtype()));
        let _owner = Span::of(Category::Workspace, intern(NAME));
        let ignored = target.eq_scalar(IGNORED)?;
        let (index, others) =
            self.own.index(&target.masked_fill(&ignored, self.own.classes.start as f64)?)?;
        let stats = Tensor::empty(&[2, rows], dtype, x.device())?;
        for chunk in self.chunks(rows) {
            let logits = logits(x, weight, chunk)?;
            let of = |all: &Tensor| all.narrow(0, chunk.0, chunk.1);
            let hit =
                logits.gather(1, &of(&index)?.unsqueeze(1)?)?.squeeze(1)?.masked_fill(&of(&others)?, 0.0)?;
            stats.select(0, 0)?.narrow(0, chunk.0, chunk.1)?.copy_(&logits.logsumexp(&[1])?)?;
            stats.select(0, 1)?.narrow(0, chunk.0, chunk.1)?.copy_(&hit)?;
        }
        let all = Tensor::empty(&[ranks, 2, rows], dtype, x.device())?;
        self.group.all_gather_into_tensor(&all, &stats)?;
        let sums = all.select(1, 0)?.logsumexp(&[0])?;
        let hits = all.select(1, 1)?.contiguous()?.ordered_sum(1.0)?;
        let losses = sums.sub(&hits)?.masked_fill(&ignored, 0.0)?;
        let factor = ignored.logical_not()?.to_dtype(dtype)?.sum()?.reciprocal()?;
        let loss = losses.sum()?.mul(&factor)?;
        for tensor in [x, weight, &index, &others, &ignored, &sums, &factor] {
            save.tensor(tensor)?;
        }
        Ok(vec![loss].into())
    }

    fn backward(&self, at: &FunctionBackward<'_>) -> Result<Grads> {
        let Some(grad) = at.grad(0) else { return Ok(vec![None; 3].into()) };
        if is_grad_enabled() {
            return Err(Error::autograd(NAME, "it has no second derivative among tensor parallel ranks"));
        }
        let [x, weight, index, others, ignored, sums, factor] = [0, 1, 2, 3, 4, 5, 6].map(|i| at.saved(i));
        let (x, weight, index, others) = (x?, weight?, index?, others?);
        let (ignored, sums, factor) = (ignored?, sums?, factor?.mul(grad)?);
        let _owner = Span::of(Category::Gradient, intern(NAME));
        let (rows, dtype) = (x.shape()[0], x.dtype());
        let x_grad = Tensor::empty(x.shape(), dtype, x.device())?;
        let weight_grad = Tensor::full(weight.shape(), 0.0, wide(dtype), x.device())?;
        for chunk in self.chunks(rows) {
            let of = |all: &Tensor| all.narrow(0, chunk.0, chunk.1);
            let share = logits(&x, &weight, chunk)?.sub(&of(&sums)?.unsqueeze(1)?)?.exp()?;
            // Subtracts one at the target, if it is one of this rank's classes.
            let hit = of(&others)?.to_dtype(share.dtype())?.sub_scalar(1.0)?.unsqueeze(1)?;
            share.scatter_add_(1, &of(&index)?.unsqueeze(1)?, &hit)?;
            let share =
                share.mul(&factor)?.masked_fill(&of(&ignored)?.unsqueeze(1)?, 0.0)?.to_dtype(dtype)?;
            of(&x_grad)?.copy_(&share.matmul(&weight)?)?;
            weight_grad.add_(&share.t()?.matmul(&of(&x)?)?.to_dtype(wide(dtype))?)?;
        }
        Ok(vec![Some(x_grad), Some(weight_grad.to_dtype(weight.dtype())?), None].into())
    }
}
