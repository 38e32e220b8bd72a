//! Initial values of parameters.

use plimsoll_tensor::op::RandomStream;
use plimsoll_tensor::{Result, Tensor};

/// A rule for initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All this value.
    Constant(f64),
    /// Uniformly distributed from `-bound` up to `bound`.
    Uniform(f64),
    /// Normally distributed with mean 0 and this standard deviation.
    Normal(f64),
}

impl Init {
    /// PyTorch's default for the weight and bias of `Linear` and `Conv2d`: uniform within ±`1/sqrt(fan_in)`, where `fan_in` is
    /// the number of inputs of one output. (`reset_parameters` of both layers: `kaiming_uniform_(a=sqrt(5))` has the bound
    /// `sqrt(6 / ((1 + 5) fan_in))`, the bias the same.)
    pub fn default_for(fan_in: usize) -> Init {
        Init::Uniform(if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() })
    }

    /// `torch.nn.init.xavier_uniform_` of a matrix: uniform within ±`sqrt(6 / (inputs + outputs))`.
    pub fn xavier_uniform(inputs: usize, outputs: usize) -> Init {
        Init::Uniform((6.0 / (inputs + outputs).max(1) as f64).sqrt())
    }

    /// `torch.nn.init.xavier_normal_` of a matrix: normal with a standard deviation of `sqrt(2 / (inputs + outputs))`.
    pub fn xavier_normal(inputs: usize, outputs: usize) -> Init {
        Init::Normal((2.0 / (inputs + outputs).max(1) as f64).sqrt())
    }

    /// `torch.nn.init.kaiming_uniform_` for ReLU: uniform within ±`sqrt(6 / fan)`, where `fan` is the number of inputs of one
    /// output (`fan_in`), or of outputs of one input (`fan_out`).
    pub fn kaiming_uniform(fan: usize) -> Init {
        Init::Uniform((6.0 / fan.max(1) as f64).sqrt())
    }

    /// `torch.nn.init.kaiming_normal_` for ReLU: normal with a standard deviation of `sqrt(2 / fan)`.
    pub fn kaiming_normal(fan: usize) -> Init {
        Init::Normal((2.0 / fan.max(1) as f64).sqrt())
    }

    pub(super) fn fill(self, tensor: &Tensor, from: RandomStream) -> Result<()> {
        match self {
            Init::Zeros => tensor.fill_(0.0),
            Init::Ones => tensor.fill_(1.0),
            Init::Constant(value) => tensor.fill_(value),
            Init::Uniform(bound) => tensor.uniform_(-bound, bound, from),
            Init::Normal(std) => tensor.normal_(0.0, std, from),
        }
    }
}
