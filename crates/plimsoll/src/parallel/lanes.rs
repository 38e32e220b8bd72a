//! Bit-identical results on any number of ranks: [`Reproducible`].
//!
//! A batch is divided into lanes. Pass j of rank r is lane j · N + r, where N is the number of ranks. So one pass of
//! all ranks covers N neighbouring lanes, whose sum is one node of a balanced tree over all lanes, for any N. The sums
//! of successive passes are then added as they arrive, two of the same height at a time, which completes the tree.

use plimsoll_tensor::label::{Category, Span, intern};
use plimsoll_tensor::{DType, Device, Error, ProcessGroup, ReduceOp, Result, RngState, Tensor, no_grad};

use crate::nn::Module;

const NAME: &str = "Reproducible";

/// Requests gradients that are bit-identical on any number of ranks that divides `lanes`, including a single rank.
///
/// A batch is divided into lanes of equal size. Each lane is a separate pass, with its own random numbers; a rank runs
/// `lanes / N` of them. Gradients are summed in a balanced tree over the lanes, in 32 bits or more. Given the same data
/// for each lane, and GPUs of one model, training on 1, 2, 4 or 8 ranks then ends with bit-identical parameters.
///
/// Backward passes that do not complete a batch leave the parameters without gradients. The last one sets the means over all
/// lanes. Gradients must be `None` before the first pass of a batch: call [`Optimizer::zero_grad`](crate::optim::Optimizer::zero_grad).
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// use plimsoll::parallel::{DdpOptions, DistributedDataParallel, Reproducible};
/// use plimsoll::{Device, ProcessGroup, Result, Tensor};
/// let train = |group: &ProcessGroup| -> Result<Vec<f32>> {
///     let (device, lanes) = (Device::cpu_with(Default::default()), Reproducible { lanes: 4 });
///     device.manual_seed(1); // the same on all ranks
///     let model = Linear::new(&Scope::new(&device, 1), 4, 2)?;
///     let _ddp = DistributedDataParallel::new(&model, group, DdpOptions { reproducible: Some(lanes), ..DdpOptions::default() })?;
///     let mut sgd = Sgd::new(model.parameters(), SgdOptions { lr: 0.1, ..SgdOptions::default() });
///     for _step in 0..3 {
///         sgd.zero_grad();
///         lanes.run(group, &device, |_lane| {
///             let x = Tensor::randn(&[2, 4], &device)?; // this lane's part of the batch
///             model.forward(&x)?.square()?.mean()?.backward()
///         })?;
///         sgd.step()?;
///     }
///     model.parameters()[0].to_vec()
/// };
/// let on = |ranks: usize| -> Result<Vec<Vec<f32>>> {
///     let ranks = ProcessGroup::threads(ranks);
///     std::thread::scope(|scope| {
///         let each: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| train(rank))).collect();
///         each.into_iter().map(|rank| rank.join().unwrap()).collect()
///     })
/// };
/// assert_eq!(on(1)?[0], on(4)?[3]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// Passes are smaller, and gradients are exchanged once for each pass. For each level of the tree that it adds up, a
/// rank needs 4 bytes for each element of its part of the gradients. Running statistics of batch normalization depend
/// on the order of passes, so models that keep them are rejected, and so is
/// [`DdpOptions::find_unused_parameters`](super::DdpOptions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reproducible {
    /// The number of lanes: a power of two, and a multiple of the number of ranks.
    pub lanes: usize,
}

impl Reproducible {
    /// The lanes of this rank, in the order of its passes.
    ///
    /// ```
    /// use plimsoll::ProcessGroup;
    /// use plimsoll::parallel::Reproducible;
    /// let ranks = ProcessGroup::threads(2);
    /// assert_eq!(Reproducible { lanes: 8 }.lanes_of(&ranks[1])?, [1, 3, 5, 7]);
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the number of lanes is not a power of two, or not a multiple of the number of ranks.
    pub fn lanes_of(self, group: &ProcessGroup) -> Result<Vec<usize>> {
        self.check(group.size())?;
        Ok((group.rank()..self.lanes).step_by(group.size()).collect())
    }

    /// Runs `f` once for each lane of this rank, with that lane's random numbers. All ranks must have seeded `device`
    /// with the same value. Afterwards, the device's generator has advanced as far as the lanes' generators, which must
    /// all draw equally often.
    ///
    /// # Errors
    /// The same errors as [`Reproducible::lanes_of`]; also the first error of `f`.
    pub fn run<T>(
        self,
        group: &ProcessGroup,
        device: &Device,
        mut f: impl FnMut(usize) -> Result<T>,
    ) -> Result<Vec<T>> {
        let (lanes, start) = (self.lanes_of(group)?, device.rng_state());
        let outcome = lanes
            .into_iter()
            .map(|lane| {
                device.set_rng_state(RngState { seed: rank_seed(start.seed, lane), ..start });
                f(lane)
            })
            .collect();
        device.set_rng_state(RngState { seed: start.seed, ..device.rng_state() });
        outcome
    }

    /// # Errors
    /// As [`Reproducible::lanes_of`].
    fn check(self, ranks: usize) -> Result<()> {
        if self.lanes.is_power_of_two() && self.lanes.is_multiple_of(ranks) {
            return Ok(());
        }
        let message = format!(
            "{} lanes on {ranks} ranks: their number must be a power of two and a multiple of the number of ranks",
            self.lanes
        );
        Err(Error::argument(NAME, message))
    }

    /// # Errors
    /// The same errors as [`Reproducible::lanes_of`]; also if the model's batch normalization keeps running statistics.
    pub(super) fn check_model(self, module: &dyn Module, group: &ProcessGroup) -> Result<()> {
        self.check(group.size())?;
        let statistics = module.named_buffers().into_iter().find(|(name, _)| name.ends_with("running_mean"));
        let Some((name, _)) = statistics else { return Ok(()) };
        let message = format!(
            "{name}: running statistics of batch normalization depend on the order of passes: use another normalization, such as \
             `GroupNorm`"
        );
        Err(Error::argument(NAME, message))
    }
}

/// The seed of a rank's random numbers, such as its dropout masks: `seed` itself on rank 0, a different seed on each
/// other rank. [`Reproducible::run`] gives it to lanes.
///
/// ```
/// use plimsoll::parallel::rank_seed;
/// assert_eq!(rank_seed(7, 0), 7);
/// assert_ne!(rank_seed(7, 1), rank_seed(7, 2));
/// ```
pub fn rank_seed(seed: u64, rank: usize) -> u64 {
    seed.wrapping_add((rank as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Which pass of a batch comes next.
#[derive(Debug)]
pub(super) struct Passes {
    lanes: usize,
    /// The number of passes on each rank.
    of_batch: usize,
    done: usize,
}

impl Passes {
    pub(super) fn new(reproducible: Reproducible, group: &ProcessGroup) -> Passes {
        Passes { lanes: reproducible.lanes, of_batch: reproducible.lanes / group.size(), done: 0 }
    }

    /// Whether the running pass completes the batch.
    pub(super) fn is_last(&self) -> bool {
        self.done + 1 == self.of_batch
    }

    /// Counts the running pass. `is_complete` is false if it failed; the next pass then begins a new batch.
    pub(super) fn end(&mut self, is_complete: bool) {
        self.done = if is_complete { (self.done + 1) % self.of_batch } else { 0 };
    }
}

/// The sum over the lanes so far of this rank's part of a flat buffer.
#[derive(Default)]
pub(super) struct LaneSums {
    /// Complete trees by height, at most one of each.
    trees: Vec<Option<Tensor>>,
}

impl LaneSums {
    /// Discards what a failed batch left behind.
    pub(super) fn clear(&mut self) {
        self.trees.clear();
    }

    /// Adds the gradients of one pass over all ranks. `whole` has a part for each rank of `group`; the ranks of
    /// `replicate`, if given, have gradients of the same parts.
    pub(super) fn add(
        &mut self,
        whole: &Tensor,
        group: &ProcessGroup,
        replicate: Option<&ProcessGroup>,
        label: &str,
    ) -> Result<()> {
        no_grad(|| {
            let mut sum = {
                let _owner = Span::of(Category::Gradient, intern(&format!("{label} lanes")));
                sum_of_parts(whole, group, replicate)?
            };
            for tree in &mut self.trees {
                let Some(earlier) = tree.take() else {
                    *tree = Some(sum);
                    return Ok(());
                };
                earlier.add_(&sum)?;
                sum = earlier;
            }
            self.trees.push(Some(sum));
            Ok(())
        })
    }

    /// Writes the mean over all lanes to `part`, and discards the sum.
    pub(super) fn mean_into(&mut self, part: &Tensor, passes: &Passes) -> Result<()> {
        let Some(sum) = self.trees.drain(..).flatten().next() else { return Ok(()) };
        no_grad(|| {
            sum.mul_scalar_(1.0 / passes.lanes as f64)?;
            part.copy_(&sum)
        })
    }
}

/// This rank's part of the sum of all ranks' gradients, in 32 bits or more. There may be one dimension or two: the sum
/// over `group` is a node of the tree over all ranks, if the size of `group` is a power of two.
pub(super) fn sum_of_parts(
    whole: &Tensor,
    group: &ProcessGroup,
    replicate: Option<&ProcessGroup>,
) -> Result<Tensor> {
    let sum = Tensor::empty(&[whole.numel() / group.size()], sum_dtype(whole.dtype()), whole.device())?;
    group.reduce_scatter_tensor(&sum, whole, ReduceOp::Sum)?;
    if let Some(replicate) = replicate {
        replicate.all_reduce(&sum, ReduceOp::Sum)?;
    }
    Ok(sum)
}

/// The type in which gradients of the given type are summed.
fn sum_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_added_as_a_balanced_tree_on_any_number_of_ranks() {
        // In 32 bits, the order matters: 2^24 + 1 loses the 1 unless another 1 is added to it first.
        let values = [16_777_216.0f32, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let tree = ((values[0] + values[1]) + (values[2] + values[3]))
            + ((values[4] + values[5]) + (values[6] + values[7]));
        let one_after_another = values.iter().sum::<f32>();
        assert_ne!(tree, one_after_another);
        let lanes = Reproducible { lanes: 8 };
        for ranks in [1, 2, 4, 8] {
            let sums = |group: &ProcessGroup| -> Result<Vec<f32>> {
                let device = Device::cpu_with(plimsoll_tensor::CpuConfig::default());
                let (mut sums, mut passes) = (LaneSums::default(), Passes::new(lanes, group));
                let part = Tensor::full(&[1], 0.0, DType::F32, &device)?;
                for lane in lanes.lanes_of(group)? {
                    let whole = Tensor::full(&[group.size()], f64::from(values[lane]), DType::F32, &device)?;
                    sums.add(&whole, group, None, "test")?;
                    if passes.is_last() {
                        sums.mean_into(&part, &passes)?;
                    }
                    passes.end(true);
                }
                part.to_vec()
            };
            let groups = ProcessGroup::threads(ranks);
            std::thread::scope(|scope| {
                let each: Vec<_> = groups.iter().map(|group| scope.spawn(|| sums(group).unwrap())).collect();
                for rank in each {
                    assert_eq!(rank.join().unwrap(), [tree / 8.0], "{ranks} ranks");
                }
            });
        }
    }

    #[test]
    fn lanes_must_fit_the_ranks() {
        let ranks = ProcessGroup::threads(3);
        let message = Reproducible { lanes: 8 }.lanes_of(&ranks[0]).unwrap_err().to_string();
        assert!(message.contains("8 lanes on 3 ranks"), "{message}");
        assert!(Reproducible { lanes: 6 }.lanes_of(&ranks[0]).is_err());
    }
}
