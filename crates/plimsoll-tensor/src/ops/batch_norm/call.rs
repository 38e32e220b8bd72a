//! The methods, and the running statistics, which change in place.

use smallvec::{SmallVec, smallvec};

use super::BatchNorm;
use crate::autograd::no_grad;
use crate::cpu::kernels::number::{Float, by_float};
use crate::error::{Error, Result};
use crate::kernel::{CpuCall, Kernel};
use crate::layout::Layout;
use crate::operator::{Meta, Operator, Output, Outputs};
use crate::road::call;
use crate::tensor::Tensor;

/// How a batch is normalized. The default is PyTorch's: evaluation, a momentum of 0.1, `eps` of 1e-5.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions {
    /// Whether the batch's own statistics are used, and the running ones updated; else the running ones are used.
    pub training: bool,
    /// The share of the batch in the updated statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions {
    fn default() -> Self {
        BatchNormOptions { training: false, momentum: 0.1, eps: 1e-5 }
    }
}

/// `running mean, running variance, mean, variance`: the first two move towards the others.
#[derive(Clone, Copy, Debug)]
struct Update {
    momentum: f64,
    /// Elements of a channel over one fewer: running variances are unbiased.
    correction: f64,
}

impl Kernel for Update {
    fn name(&self) -> &'static str {
        "batch_norm_update"
    }

    fn cpu(&self, call: CpuCall<'_>) -> Result<()> {
        let ([mean, variance], [to_mean, to_variance]) = call.split();
        by_float!(mean.dtype(), T => {
            let share = T::of(self.momentum);
            let blend = |to: &mut [T], from: &[T], factor: f64| {
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = (T::of(1.0) - share) * *to + share * (from * T::of(factor));
                }
            };
            blend(to_mean.elements(), mean.elements(), 1.0);
            blend(to_variance.elements(), variance.elements(), self.correction);
        });
        Ok(())
    }
}

impl Operator for Update {
    fn infer(&self, ins: &[Meta<'_>]) -> Result<Outputs> {
        Ok(smallvec![Output::in_place(0, &ins[0]), Output::in_place(1, &ins[1])])
    }

    fn takes(&self, _: usize, layout: &Layout) -> bool {
        layout.is_contiguous()
    }
}

impl Tensor {
    /// Each channel of `[batch, channels, …]` brought to mean 0 and deviation 1, times `weight` plus `bias`. In training by
    /// the batch's statistics, which the running ones (mean and variance) follow in place; else by the running ones. Without
    /// running ones always by the batch's. As `torch.nn.functional.batch_norm`.
    ///
    /// # Errors
    /// Sizes that do not fit together; a bias without a weight; evaluation without running statistics is no error, but a
    /// batch of one value per channel has no statistics; out of memory.
    pub fn batch_norm(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        self.normalized(running, [weight, bias], options, false)
    }

    /// [`Tensor::batch_norm`], then ReLU, without the tensor between the two.
    ///
    /// # Errors
    /// As [`Tensor::batch_norm`].
    pub fn batch_norm_relu(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        options: BatchNormOptions,
    ) -> Result<Tensor> {
        self.normalized(running, [weight, bias], options, true)
    }

    fn normalized(
        &self,
        running: Option<(&Tensor, &Tensor)>,
        [weight, bias]: [Option<&Tensor>; 2],
        options: BatchNormOptions,
        relu: bool,
    ) -> Result<Tensor> {
        let BatchNormOptions { training, momentum, eps } = options;
        let op = BatchNorm { batch: training || running.is_none(), relu, eps };
        if weight.is_none() && bias.is_some() {
            return Err(Error::argument(op.name(), "a bias without a weight: give a weight of ones"));
        }
        let mut ins: SmallVec<[&Tensor; 5]> = smallvec![self];
        if let (false, Some((mean, variance))) = (op.batch, running) {
            ins.extend([mean, variance]);
        }
        ins.extend(weight);
        ins.extend(bias);
        let mut outs = call(op, &ins)?;
        if let (true, Some((mean, variance))) = (training, running) {
            let channels = outs[1].numel();
            if [mean, variance].iter().any(|tensor| tensor.shape() != [channels]) {
                let message = format!(
                    "running statistics {:?} and {:?}: needs [{channels}]",
                    mean.shape(),
                    variance.shape()
                );
                return Err(Error::shape(op.name(), message));
            }
            let n = self.numel().checked_div(channels).unwrap_or(0) as f64;
            let update = Update { momentum, correction: n / (n - 1.0) };
            let [of_batch, of_variance] = [outs[1].detach(), outs[3].detach()];
            no_grad(|| call(update, &[mean, variance, &of_batch, &of_variance]))?;
        }
        Ok(outs.remove(0))
    }
}
