//! The batch-normalization methods, and the running statistics, which are updated in place.

use smallvec::{SmallVec, smallvec};

use super::{BatchNorm, Then, recompute};
use crate::autograd::{is_recomputing, no_grad};
use crate::cpu::kernels::number::{Float, by_float};
use crate::cuda::{self, CudaCall};
use crate::dispatch::{Tensors, call};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::ops::shape::memory_format::MemoryFormat;
use crate::tensor::Tensor;
use crate::view::Out;

/// Options of a batch normalization. The defaults are PyTorch's: evaluation, a momentum of 0.1, `eps` of 1e-5.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions {
    /// Whether to use the batch's own statistics and update the running ones; otherwise the running ones are used.
    pub training: bool,
    /// The weight of the batch in the updated statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions { training: false, momentum: 0.1, eps: 1e-5 }
    }
}

/// All arguments of a batch normalization: [`Tensor::batch_norm_with`]. The defaults are PyTorch's, without any tensor.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormArgs<'a> {
    /// The running mean and variance.
    pub running: Option<(&'a Tensor, &'a Tensor)>,
    /// The number of batches in the running statistics, `int64 []`; training adds one.
    pub num_batches_tracked: Option<&'a Tensor>,
    /// The factor of each channel.
    pub weight: Option<&'a Tensor>,
    /// Added to each channel; only with a weight.
    pub bias: Option<&'a Tensor>,
    /// Added to the result, before ReLU; only with ReLU.
    pub residual: Option<&'a Tensor>,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Whether to drop the output instead of saving it for the backward pass. An operation that reads it saves a recipe to
    /// recompute it from the input and the statistics, which are saved anyway, and the residual.
    pub recompute: bool,
    /// Whether to use the batch's own statistics and update the running ones.
    pub training: bool,
    /// The weight of the batch in the updated statistics. If `None`, they are the mean over all batches, which needs
    /// `num_batches_tracked`.
    pub momentum: Option<f64>,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormArgs<'_> {
    fn default() -> Self {
        let BatchNormOptions { training, momentum, eps } = BatchNormOptions::default();
        BatchNormArgs {
            running: None,
            num_batches_tracked: None,
            weight: None,
            bias: None,
            residual: None,
            relu: false,
            recompute: false,
            training,
            momentum: Some(momentum),
            eps,
        }
    }
}

/// `running mean, running variance[, batches], mean, variance`: moves the running statistics towards the batch's, and adds one
/// to the number of batches.
#[derive(Clone, Copy, Debug)]
struct Update {
    momentum: Option<f64>,
    /// Whether batches are counted.
    counts: bool,
    /// `n / (n - 1)` for the `n` elements of a channel: running variances are unbiased.
    correction: f64,
}

impl Kernel for Update {
    fn name(&self) -> &'static str {
        "batch_norm_update"
    }

    fn cuda(&self, call: &mut CudaCall<'_>) -> Result<()> {
        cuda::normalization::batch_norm::update(call, self.momentum, self.correction)
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let [mean, variance] = call.ins.as_slice() else { unreachable!("inferred") };
        let mut outs = call.outs.into_iter();
        let (to_mean, to_variance) = (outs.next(), outs.next());
        let mut batches = 0;
        if let Some(count) = outs.next() {
            let count = &mut count.elements::<i64>()[0];
            *count = count.wrapping_add(1);
            batches = *count;
        }
        let share = self.momentum.unwrap_or_else(|| 1.0 / batches.max(1) as f64);
        by_float!(mean.dtype(), T => {
            let share = T::of(share);
            let blend = |to: Option<Out<'_>>, from: &[T], factor: f64| {
                let to = to.unwrap_or_else(|| unreachable!("inferred")).elements::<T>();
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = (T::of(1.0) - share) * *to + share * (from * T::of(factor));
                }
            };
            blend(to_mean, mean.elements(), 1.0);
            blend(to_variance, variance.elements(), self.correction);
        });
        Ok(())
    }
}

impl Operator for Update {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        let changed = 2 + usize::from(self.counts);
        Ok(ins.iter().take(changed).enumerate().map(|(i, meta)| Output::in_place(i, meta)).collect())
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

/// Checks that the running statistics match the input's channels.
#[track_caller]
fn check_running(name: &'static str, x: &Tensor, args: &BatchNormArgs<'_>) -> Result<()> {
    let channels = x.shape().get(1).copied().unwrap_or(0);
    if let Some((mean, variance)) = args.running
        && [mean, variance].iter().any(|tensor| tensor.shape() != [channels])
    {
        let message = format!(
            "running statistics {:?} and {:?} for input {:?}: needs [{channels}]",
            mean.shape(),
            variance.shape(),
            x.shape()
        );
        return Err(Error::shape(name, message));
    }
    let types = [x.dtype(), x.dtype().accumulator()];
    let running = args.running.into_iter().flat_map(|(mean, variance)| [mean, variance]);
    if let Some(other) = running.into_iter().find(|tensor| !types.contains(&tensor.dtype())) {
        return Err(Error::DType { op: name, expected: types[1].name(), got: other.dtype() });
    }
    match args.num_batches_tracked {
        Some(count) if count.dtype() != DType::I64 || count.numel() != 1 => {
            let message =
                format!("num_batches_tracked {:?} of {}: needs [] of int64", count.shape(), count.dtype());
            Err(Error::argument(name, message))
        }
        None if args.momentum.is_none() && args.training && args.running.is_some() => {
            Err(Error::argument(name, "no momentum: give num_batches_tracked, or a momentum"))
        }
        _ => Ok(()),
    }
}

impl Tensor {
    /// Normalizes each channel of `[batch, channels, …]` to mean 0 and standard deviation 1, then multiplies by `weight` and
    /// adds `bias`. Training uses the batch's statistics, and updates the running mean and variance in place; evaluation uses
    /// the running ones. Without running statistics, the batch's are always used. Like `torch.nn.functional.batch_norm`.
    ///
    /// # Errors
    /// If the sizes are incompatible, there is a bias but no weight, a batch has one value per channel and therefore no
    /// statistics, or memory runs out. Evaluation without running statistics is not an error.
    #[track_caller]
    pub fn batch_norm<'a>(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.into(), bias.into());
        let BatchNormOptions { training, momentum, eps } = options;
        let momentum = Some(momentum);
        self.batch_norm_with(BatchNormArgs {
            running,
            weight,
            bias,
            training,
            momentum,
            eps,
            ..BatchNormArgs::default()
        })
    }

    /// [`Tensor::batch_norm`] followed by ReLU, without a tensor between the two.
    ///
    /// # Errors
    /// The same errors as [`Tensor::batch_norm`].
    #[track_caller]
    pub fn batch_norm_relu<'a>(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        weight: impl Into<Option<&'a Tensor>>,
        bias: impl Into<Option<&'a Tensor>>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        let (weight, bias) = (weight.into(), bias.into());
        let BatchNormOptions { training, momentum, eps } = options;
        let momentum = Some(momentum);
        let args =
            BatchNormArgs { running, weight, bias, training, momentum, eps, ..BatchNormArgs::default() };
        self.batch_norm_with(BatchNormArgs { relu: true, ..args })
    }

    /// [`Tensor::batch_norm`] with more options: ReLU after it, a residual that is added before the ReLU without an
    /// intermediate tensor, and a count of batches.
    ///
    /// ```
    /// use plimsoll_tensor::{BatchNormArgs, Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::randn(&[8, 3, 4, 4], &device)?;
    /// let args = BatchNormArgs { residual: Some(&x), relu: true, training: true, ..BatchNormArgs::default() };
    /// let y = x.batch_norm_with(args)?;
    /// assert!(y.to_vec::<f32>()?.iter().all(|&y| y >= 0.0));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Tensor::batch_norm`]; also if the residual has a different shape or dtype, or is passed
    /// without ReLU, or if there is neither a momentum nor a count of batches.
    #[track_caller]
    pub fn batch_norm_with(&self, args: BatchNormArgs<'_>) -> Result<Tensor> {
        let BatchNormArgs { running, weight, bias, residual, training, eps, .. } = args;
        let then = match (residual, args.relu) {
            (None, false) => Then::Nothing,
            (None, true) => Then::Relu,
            (Some(_), _) => Then::AddRelu,
        };
        // An empty batch has no statistics: the running ones stay unchanged.
        let training = training && (self.numel() > 0 || running.is_none());
        let op = BatchNorm { batch: training || running.is_none(), then, recompute: args.recompute, eps };
        if residual.is_some() && !args.relu {
            return Err(Error::argument(op.name(), "a residual without ReLU: add it to the result"));
        }
        if weight.is_none() && bias.is_some() {
            return Err(Error::argument(op.name(), "a bias without a weight: give a weight of ones"));
        }
        check_running(op.name(), self, &args)?;
        let format = MemoryFormat::for_input(&self.data().layout);
        let residual = residual.map(|residual| match residual.shape() == self.shape() {
            true => residual.to_memory_format(format),
            false => Ok(residual.clone()),
        });
        let residual = residual.transpose()?;
        let mut ins: SmallVec<[&Tensor; 6]> = smallvec![self];
        if let (false, Some((mean, variance))) = (op.batch, running) {
            ins.extend([mean, variance]);
        }
        ins.extend(weight);
        ins.extend(bias);
        ins.extend(&residual);
        let mut outs = call(op, &ins)?;
        match args.num_batches_tracked {
            // A checkpointed layer that is computed again has counted this batch.
            _ if is_recomputing() => {}
            _ if training => self.follow(&args, &outs)?,
            Some(count) if args.training => no_grad(|| count.add_scalar_(1))?,
            _ => {}
        }
        if args.recompute {
            recompute::recompute(&outs, self, then, [weight, bias, residual.as_ref()])?;
        }
        Ok(outs.remove(0))
    }

    /// Moves the running statistics towards the batch's.
    #[track_caller]
    fn follow(&self, args: &BatchNormArgs<'_>, outs: &Tensors) -> Result<()> {
        let Some((mean, variance)) = args.running else { return Ok(()) };
        let n = self.numel().checked_div(outs[1].numel()).unwrap_or(0) as f64;
        let count = args.num_batches_tracked;
        let update = Update { momentum: args.momentum, counts: count.is_some(), correction: n / (n - 1.0) };
        let [of_batch, of_variance] = [outs[1].detach(), outs[3].detach()];
        let mut ins: SmallVec<[&Tensor; 5]> = smallvec![mean, variance];
        ins.extend(count);
        ins.extend([&of_batch, &of_variance]);
        no_grad(|| call(update, &ins)).map(drop)
    }
}
