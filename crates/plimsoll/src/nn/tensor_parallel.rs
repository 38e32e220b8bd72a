//! The ranks that share each layer of a model: [`TensorParallel`]. The layers are in `parallel_linear.rs` and `vocab_parallel.rs`.
//!
//! Between the products, each rank has a part of the tokens (sequence parallel): activations are cut along the dimension before the
//! last one. A product whose weight is cut by its outputs begins with a gather of all tokens; one whose weight is cut by its inputs
//! ends with a reduce-scatter. What is not cut, such as normalization, is used on a part of the tokens, so its gradients are added
//! over the ranks.

use std::ops::Range;

use plimsoll_tensor::label::{LabelId, Span};
use plimsoll_tensor::{Error, ProcessGroup, ReduceOp, Result, Tensor, no_grad};

const NAME: &str = "tensor_parallel";

/// This rank among those that share the layers of a model.
#[derive(Clone, Debug)]
pub(crate) struct TensorParallel {
    group: ProcessGroup,
}

/// Which part of a parameter a rank has: equal ranges of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// One range.
    Whole(usize),
    /// A range of each of several equal blocks, such as of queries, keys and values that are one matrix.
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
    /// `None` if there is one rank.
    pub(crate) fn new(group: &ProcessGroup) -> Option<TensorParallel> {
        (group.size() > 1).then(|| TensorParallel { group: group.clone() })
    }

    pub(crate) fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// How many of `count` things a rank has.
    ///
    /// # Errors
    /// The number of ranks does not divide them.
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

    /// This rank's range of a dimension that the ranks need not divide: the last rank may have fewer.
    pub(crate) fn uneven(&self, count: usize) -> Range<usize> {
        let most = count.div_ceil(self.group.size());
        (self.group.rank() * most).min(count)..((self.group.rank() + 1) * most).min(count)
    }

    /// The ranges of a dimension of `len` that this rank has.
    fn ranges(&self, path: &str, cut: Cut, len: usize) -> Result<Vec<Range<usize>>> {
        let blocks = match cut {
            Cut::Uneven(_) => {
                let range = self.uneven(len);
                let ranks = self.group.size();
                // The last rank has the fewest.
                if len.div_ceil(ranks) * (ranks - 1) >= len {
                    let message = format!(
                        "`{path}` has only {len} rows: the last of {ranks} tensor parallel ranks would have none; use fewer ranks"
                    );
                    return Err(Error::argument(NAME, message));
                }
                return Ok(vec![range]);
            }
            Cut::Whole(_) => 1,
            Cut::Blocks(_, blocks) => blocks,
        };
        let block = len / blocks;
        let part = self.share(&format!("rows or columns of `{path}`"), block)?;
        let start = |at: usize| at * block + self.group.rank() * part;
        Ok((0..blocks).map(|at| start(at)..start(at) + part).collect())
    }

    /// This rank's part of a whole parameter, copied.
    ///
    /// # Errors
    /// The number of ranks does not divide the dimension; out of memory.
    pub(crate) fn part(&self, path: &str, whole: &Tensor, cut: Cut) -> Result<Tensor> {
        let dim = cut.dim();
        let ranges = self.ranges(path, cut, whole.shape()[dim])?;
        no_grad(|| {
            let parts = ranges.iter().map(|range| whole.narrow(dim as isize, range.start, range.len()));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            match &parts[..] {
                [one] => one.copy(),
                several => Tensor::cat(&several.iter().collect::<Vec<_>>(), dim as isize),
            }
        })
    }

    /// The shape of this rank's part.
    ///
    /// # Errors
    /// The number of ranks does not divide the dimension.
    pub(crate) fn shape_of_part(&self, path: &str, shape: &[usize], cut: Cut) -> Result<Vec<usize>> {
        let mut part = shape.to_vec();
        part[cut.dim()] = self.ranges(path, cut, shape[cut.dim()])?.iter().map(ExactSizeIterator::len).sum();
        Ok(part)
    }

    /// The tokens of all ranks, before a product whose weight is cut by its outputs.
    ///
    /// # Errors
    /// Out of memory; a rank is lost.
    pub(crate) fn gather(&self, x: &Tensor) -> Result<Tensor> {
        self.group.all_gather_tensor(x, token_dim(x)?)
    }

    /// The sums over all ranks of this rank's tokens, after a product whose weight is cut by its inputs.
    ///
    /// # Errors
    /// The number of ranks does not divide the tokens; out of memory; a rank is lost.
    pub(crate) fn scatter(&self, x: &Tensor) -> Result<Tensor> {
        let dim = token_dim(x)?;
        self.share("tokens of a sequence", x.shape()[dim])?;
        self.group.reduce_scatter(x, dim)
    }

    /// This rank's part of a tensor that all ranks have, along its first dimension, such as of the positions of tokens.
    ///
    /// # Errors
    /// The number of ranks does not divide the dimension.
    pub(crate) fn own_rows(&self, x: &Tensor) -> Result<Tensor> {
        let part = self.share("tokens of a sequence", x.shape()[0])?;
        x.narrow(0, self.group.rank() * part, part)
    }

    /// The error of a model whose logits are asked for.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn no_logits(&self, op: &'static str) -> Result<Tensor> {
        let message =
            "each rank of a tensor parallel model has the logits of some of the classes: use `loss`";
        Err(Error::argument(op, message))
    }

    /// Adds the gradients of a parameter that each rank has as a whole, but uses on its own tokens.
    ///
    /// # Errors
    /// A tensor that needs no gradient.
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

/// The tokens of all ranks, for several products. Without a region, `x` itself.
///
/// # Errors
/// Out of memory; a rank is lost.
pub(crate) fn gathered(region: Option<&TensorParallel>, label: LabelId, x: Tensor) -> Result<Tensor> {
    let Some(region) = region else { return Ok(x) };
    let _owner = Span::layer(label);
    region.gather(&x)
}

/// The dimension before the last one.
fn token_dim(x: &Tensor) -> Result<usize> {
    x.shape().len().checked_sub(2).ok_or_else(|| {
        Error::shape(NAME, format!("{:?}: needs a dimension of tokens before the last one", x.shape()))
    })
}
