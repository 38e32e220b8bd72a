//! The ranks among which each layer of a model is divided: [`TensorParallel`]. The layers are in `parallel_linear.rs`
//! and `vocab_parallel.rs`.
//!
//! Between the products, each rank has a part of the tokens (sequence parallelism): activations are divided along the
//! second-to-last dimension. A product whose weight is divided by its outputs begins by gathering all tokens; one whose
//! weight is divided by its inputs ends with a reduce-scatter. Parameters that are not divided, such as those of a
//! normalization, are used on a part of the tokens, so their gradients are summed over the ranks.

use std::iter;
use std::ops::Range;

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{DType, Error, ProcessGroup, ReduceOp, Result, Tensor, is_grad_enabled, no_grad};

const NAME: &str = "tensor_parallel";

/// This rank, as one of those that share the layers of a model.
#[derive(Clone, Debug)]
pub(crate) struct TensorParallel {
    group: ProcessGroup,
}

/// Which part of a parameter a rank has. All ranks have equal ranges of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// One range.
    Whole(usize),
    /// A range in each of several equal blocks, such as queries, keys and values in one matrix.
    Blocks(usize, usize),
    /// One range, which is shorter on the last rank if the number of ranks does not divide the dimension.
    Uneven(usize),
}

impl Cut {
    fn dim(self) -> usize {
        match self {
            Cut::Whole(dim) | Cut::Blocks(dim, _) | Cut::Uneven(dim) => dim,
        }
    }
}

impl TensorParallel {
    /// `None` if there is only one rank.
    pub(crate) fn new(group: &ProcessGroup) -> Option<TensorParallel> {
        (group.size() > 1).then(|| TensorParallel { group: group.clone() })
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// How many of `count` items a rank has.
    ///
    /// # Errors
    /// If the number of ranks does not divide them.
    pub(crate) fn share(&self, what: &str, count: usize) -> Result<usize> {
        let ranks = self.group.size();
        if count.is_multiple_of(ranks) {
            return Ok(count / ranks);
        }
        let message = format!(
            "{count} {what} do not divide among {ranks} tensor parallel ranks: use a number that does"
        );
        Err(Error::argument(NAME, message))
    }

    /// This rank's range of a dimension; if the number of ranks does not divide it, the last rank has fewer.
    pub(crate) fn uneven(&self, count: usize) -> Range<usize> {
        uneven(count, self.group.rank(), self.group.size())
    }

    /// This rank's part of the parameter `path`, whose full shape is given.
    ///
    /// # Errors
    /// If the number of ranks does not divide the dimension.
    pub(crate) fn part(&self, path: &str, whole_shape: &[usize], cut: Cut) -> Result<Part> {
        let (ranks, len) = (self.group.size(), whole_shape[cut.dim()]);
        // The last rank has the fewest.
        if matches!(cut, Cut::Uneven(_)) && len.div_ceil(ranks) * (ranks - 1) >= len {
            let message = format!(
                "`{path}` has only {len} rows: the last of {ranks} tensor parallel ranks would have none; use fewer ranks"
            );
            return Err(Error::argument(NAME, message));
        }
        let what = || format!("rows or columns of `{path}`");
        match cut {
            Cut::Uneven(_) => {}
            Cut::Whole(_) => {
                self.share(&what(), len)?;
            }
            Cut::Blocks(_, blocks) => {
                self.share(&what(), len / blocks)?;
            }
        }
        Ok(Part { group: self.group.clone(), cut, whole_shape: whole_shape.to_vec() })
    }

    /// The tokens of all ranks, before a product whose weight is divided by its outputs.
    ///
    /// # Errors
    /// If memory runs out, or a rank is lost.
    pub(crate) fn gather(&self, x: &Tensor) -> Result<Tensor> {
        self.group.all_gather_tensor(x, token_dim(x)?)
    }

    /// This rank's tokens, summed over all ranks, after a product whose weight is divided by its inputs.
    ///
    /// # Errors
    /// If the number of ranks does not divide the tokens, memory runs out, or a rank is lost.
    pub(crate) fn scatter(&self, x: &Tensor) -> Result<Tensor> {
        let dim = token_dim(x)?;
        self.share("tokens of a sequence", x.shape()[dim])?;
        self.group.reduce_scatter(x, dim)
    }

    /// This rank's part, along the first dimension, of a tensor that all ranks have, such as the positions of tokens.
    ///
    /// # Errors
    /// If the number of ranks does not divide the dimension.
    pub(crate) fn own_rows(&self, x: &Tensor) -> Result<Tensor> {
        let part = self.share("tokens of a sequence", x.shape()[0])?;
        x.narrow(0, self.group.rank() * part, part)
    }

    /// The logits of all classes for tokens `[batch, length]`, on all ranks. `hidden` computes the last hidden states of this rank's
    /// tokens; `weight` has this rank's rows of the output layer, which has `count` rows in all. Any length works:
    /// tokens are added at the end, where a causal model does not see them.
    ///
    /// # Errors
    /// If a derivative may be needed, memory runs out, or a rank is lost; also the errors of `hidden`.
    pub(crate) fn logits(
        &self,
        op: &'static str,
        (tokens, hidden): (&Tensor, impl FnOnce(&Tensor) -> Result<Tensor>),
        (weight, count): (&Tensor, usize),
    ) -> Result<Tensor> {
        if is_grad_enabled() {
            let message =
                "the logits of a tensor parallel model have no derivative: use `loss` to train, or `no_grad`";
            return Err(Error::argument(op, message));
        }
        let &[batch, length] = tokens.shape() else { return hidden(tokens) };
        let missing = length.next_multiple_of(self.group.size()) - length;
        let hidden = if missing == 0 {
            hidden(tokens)?
        } else {
            let more = Tensor::full(&[batch, missing], 0.0, DType::I64, tokens.device())?;
            hidden(&Tensor::cat(&[tokens, &more], 1)?)?
        };
        let own = self.gather(&hidden)?.narrow(-2, 0, length)?.linear(weight, None)?;
        // The last rank may have fewer classes. Its padding is cut off.
        let own = match uneven(count, 0, self.group.size()).len() - weight.shape()[0] {
            0 => own,
            missing => {
                let more = Tensor::full(&[batch, length, missing], 0.0, own.dtype(), own.device())?;
                Tensor::cat(&[&own, &more], -1)?
            }
        };
        self.group.all_gather_tensor(&own, 2)?.narrow(-1, 0, count)
    }

    /// Sums the gradients of a parameter that each rank has in full, but uses only on its own tokens.
    ///
    /// # Errors
    /// If a tensor needs no gradient.
    pub(crate) fn add_gradients(&self, parameter: &Tensor) -> Result<()> {
        let group = self.group.clone();
        let hook = move |grad: &Tensor| {
            no_grad(|| {
                let sum = grad.copy()?;
                group.all_reduce(&sum, ReduceOp::Sum)?;
                Ok(Some(sum))
            })
        };
        parameter.register_hook(hook).map(drop)
    }
}

/// One rank's part of a parameter that tensor-parallel ranks share.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    group: ProcessGroup,
    cut: Cut,
    whole_shape: Vec<usize>,
}

impl Part {
    /// The ranks that have the other parts.
    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The shape of the whole parameter.
    pub(crate) fn whole_shape(&self) -> &[usize] {
        &self.whole_shape
    }

    /// The shape of this part.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let mut shape = self.whole_shape.clone();
        shape[self.cut.dim()] = self.ranges_of(self.group.rank()).iter().map(ExactSizeIterator::len).sum();
        shape
    }

    /// The ranges of the full parameter's rows that this part has elements of, in the order of its own rows.
    pub(crate) fn rows(&self) -> Vec<Range<usize>> {
        match self.cut.dim() {
            0 => self.ranges_of(self.group.rank()),
            _ => iter::once(0..self.whole_shape[0]).collect(),
        }
    }

    /// Whether the part consists of consecutive, complete rows.
    pub(crate) fn is_rows(&self) -> bool {
        self.cut.dim() == 0 && self.rows().len() == 1
    }

    /// The ranges that a rank has of the divided dimension.
    fn ranges_of(&self, rank: usize) -> Vec<Range<usize>> {
        let (ranks, len) = (self.group.size(), self.whole_shape[self.cut.dim()]);
        let blocks = match self.cut {
            Cut::Uneven(_) => return vec![uneven(len, rank, ranks)],
            Cut::Whole(_) => 1,
            Cut::Blocks(_, blocks) => blocks,
        };
        let (block, part) = (len / blocks, len / blocks / ranks);
        let start = |at: usize| at * block + rank * part;
        (0..blocks).map(|at| start(at)..start(at) + part).collect()
    }

    /// This part of a whole tensor, copied.
    ///
    /// # Errors
    /// If memory runs out.
    pub(crate) fn of(&self, whole: &Tensor) -> Result<Tensor> {
        let dim = self.cut.dim() as isize;
        no_grad(|| {
            let ranges = self.ranges_of(self.group.rank());
            let parts = ranges.iter().map(|range| whole.detach().narrow(dim, range.start, range.len()));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            match &parts[..] {
                [one] => one.copy(),
                several => Tensor::cat(&several.iter().collect::<Vec<_>>(), dim),
            }
        })
    }

    /// The whole tensor, put together from the parts of all ranks; `own` is this rank's part. All ranks must call it.
    ///
    /// # Errors
    /// If memory runs out, or a rank is lost.
    pub(crate) fn gather(&self, own: &Tensor) -> Result<Tensor> {
        let (ranks, dim) = (self.group.size(), self.cut.dim());
        no_grad(|| {
            let own = own.detach();
            let parts = {
                let mut shape = self.whole_shape.clone();
                // Rank 0 has the most.
                shape[dim] = self.ranges_of(0).iter().map(ExactSizeIterator::len).sum();
                shape.insert(0, ranks);
                Tensor::empty(&shape, own.dtype(), own.device())?
            };
            let place = parts.select(0, self.group.rank() as isize)?;
            place.narrow(dim as isize, 0, own.shape()[dim])?.copy_(&own)?;
            self.group.all_gather_into_tensor(&parts, &place)?;
            let whole = Tensor::empty(&self.whole_shape, own.dtype(), own.device())?;
            for rank in 0..ranks {
                let (part, mut start) = (parts.select(0, rank as isize)?, 0);
                for range in self.ranges_of(rank) {
                    let from = part.narrow(dim as isize, start, range.len())?;
                    whole.narrow(dim as isize, range.start, range.len())?.copy_(&from)?;
                    start += range.len();
                }
            }
            Ok(whole)
        })
    }
}

/// The range of `count` items that a rank has, if the last rank may have fewer.
fn uneven(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let most = count.div_ceil(ranks);
    (rank * most).min(count)..((rank + 1) * most).min(count)
}

/// The tokens of all ranks, for several products. Without a region, `x` itself.
///
/// # Errors
/// If memory runs out, or a rank is lost.
pub(crate) fn gathered(region: Option<&TensorParallel>, label: LabelId, x: Tensor) -> Result<Tensor> {
    let Some(region) = region else { return Ok(x) };
    let _owner = Span::layer(label);
    region.gather(&x)
}

/// The second-to-last dimension.
fn token_dim(x: &Tensor) -> Result<usize> {
    x.shape().len().checked_sub(2).ok_or_else(|| {
        Error::shape(NAME, format!("{:?}: needs a dimension of tokens before the last one", x.shape()))
    })
}
