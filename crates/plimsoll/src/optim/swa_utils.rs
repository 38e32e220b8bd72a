//! Averages of a model's parameters over training: [`AveragedModel`], [`update_bn`]. Like `torch.optim.swa_utils`.

use plimsoll_tensor::{DType, Error, Result, Tensor, no_grad};

use crate::nn::{Modes, Module, cumulative, functional_call};
use crate::state_dict::{IncompatibleKeys, SerializeError, StateDict, Strict, TensorSource, load_into};

/// How an [`AveragedModel`] averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Averaging {
    /// The mean of all updates, as in stochastic weight averaging: PyTorch's default.
    Equal,
    /// The exponential moving average with this decay, such as 0.999: `get_ema_multi_avg_fn(decay)`.
    Ema {
        /// The weight of the old average, from 0 to 1.
        decay: f64,
    },
}

/// The averages of a model's parameters, and copies of its buffers. Like `torch.optim.swa_utils.AveragedModel`.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope};
/// use plimsoll::optim::swa_utils::{AveragedModel, Averaging};
/// use plimsoll::{Device, Tensor, no_grad};
/// let device = Device::cpu();
/// let mut model = Linear::without_bias(&Scope::new(&device, 1), 2, 1)?;
/// let mut average = AveragedModel::new(&model, Averaging::Ema { decay: 0.9 })?;
/// for value in [1.0, 2.0] {
///     no_grad(|| model.weight().fill_(value))?; // in place of an optimizer's step
///     average.update_parameters(&model)?;
/// }
/// let y = average.with(&mut model, |model| model.forward(&Tensor::ones(&[1, 2], &device)?))?;
/// assert!((y.item::<f32>()? - 2.2).abs() < 1e-6);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct AveragedModel {
    averaging: Averaging,
    parameters: Vec<(String, Tensor)>,
    buffers: Vec<(String, Tensor)>,
    /// The names of the model's state dict, each with one of these tensors.
    saved: StateDict,
    n_averaged: u64,
}

impl AveragedModel {
    /// Copies the model's parameters and buffers. The first update copies them again.
    ///
    /// # Errors
    /// A decay outside 0 to 1; out of memory.
    pub fn new(model: &impl Module, averaging: Averaging) -> Result<AveragedModel> {
        if let Averaging::Ema { decay } = averaging
            && !(0.0..=1.0).contains(&decay)
        {
            let message = format!("the decay is {decay}; it must be from 0 to 1");
            return Err(Error::Argument { op: "averaged_model", message });
        }
        let copied = |tensors: Vec<(String, Tensor)>| -> Result<Vec<(String, Tensor)>> {
            no_grad(|| {
                tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.detach().copy()?))).collect()
            })
        };
        let (of_model, buffers_of_model) = (model.named_parameters(), model.named_buffers());
        let (parameters, buffers) = (copied(of_model.clone())?, copied(buffers_of_model.clone())?);
        let of_model = || of_model.iter().chain(&buffers_of_model);
        let copy_of = |tensor: &Tensor| {
            let mut pairs = of_model().zip(parameters.iter().chain(&buffers));
            pairs.find(|((_, own), _)| own.is_same(tensor)).map(|(_, (_, copy))| copy.clone())
        };
        let names = model.state_dict();
        let saved = names.iter().filter_map(|(name, tensor)| Some((name.to_owned(), copy_of(tensor)?)));
        let saved = saved.collect();
        Ok(AveragedModel { averaging, parameters, buffers, saved, n_averaged: 0 })
    }

    /// Adds the model's parameters to the averages, and copies its buffers.
    ///
    /// # Errors
    /// A model with other names or shapes.
    pub fn update_parameters(&mut self, model: &impl Module) -> Result<()> {
        let (parameters, buffers) = (model.named_parameters(), model.named_buffers());
        want_same(&self.parameters, &parameters)?;
        want_same(&self.buffers, &buffers)?;
        let weight = match self.averaging {
            _ if self.n_averaged == 0 => 1.0,
            Averaging::Equal => 1.0 / (self.n_averaged + 1) as f64,
            Averaging::Ema { decay } => 1.0 - decay,
        };
        no_grad(|| {
            for ((_, average), (_, parameter)) in self.parameters.iter().zip(&parameters) {
                match self.n_averaged {
                    0 => average.copy_(parameter)?,
                    _ => average.lerp_scalar_(parameter, weight)?,
                }
            }
            self.buffers.iter().zip(&buffers).try_for_each(|((_, own), (_, buffer))| own.copy_(buffer))
        })?;
        self.n_averaged += 1;
        Ok(())
    }

    /// How many updates are in the averages.
    pub fn n_averaged(&self) -> u64 {
        self.n_averaged
    }

    /// Runs `f` with the model, in which the averages take the place of its parameters and buffers.
    ///
    /// # Errors
    /// The errors of [`functional_call`].
    pub fn with<M: Module, T>(&self, model: &mut M, f: impl FnOnce(&M) -> Result<T>) -> Result<T> {
        let all = self.parameters.iter().chain(&self.buffers).cloned().collect();
        functional_call(model, &all, f)
    }

    /// The averages under PyTorch's names: `n_averaged`, and after `module.` the names of the model's state dict. A tied parameter
    /// has all of its names; buffers that are not persistent are left out.
    ///
    /// # Errors
    /// Out of memory.
    pub fn state_dict(&self) -> Result<StateDict> {
        let mut dict = StateDict::default();
        if let Some((_, first)) = self.parameters.first() {
            dict.insert("n_averaged", Tensor::from_slice(&[self.n_averaged as i64], &[], first.device())?);
        }
        self.saved.iter().for_each(|(name, tensor)| dict.insert(format!("module.{name}"), tensor.clone()));
        Ok(dict)
    }

    /// Loads the averages of [`AveragedModel::state_dict`], or of PyTorch's.
    ///
    /// # Errors
    /// Names or shapes that do not match, in which case nothing has changed; a damaged file; out of memory.
    pub fn load_state_dict(&mut self, source: &dyn TensorSource) -> Result<IncompatibleKeys, SerializeError> {
        let dict = self.state_dict()?;
        let keys = load_into(&dict, "AveragedModel", source, Strict::Yes)?;
        if let Some(n_averaged) = dict.get("n_averaged") {
            let count: i64 = n_averaged.to_dtype(DType::I64)?.item()?;
            self.n_averaged = count.max(0) as u64;
        }
        Ok(keys)
    }
}

/// Recomputes the running statistics of all batch normalizations, as means over these batches: with averaged parameters, those from training
/// are wrong. `forward` runs the model in training mode on a batch, without a graph. Like `torch.optim.swa_utils.update_bn`.
///
/// ```
/// use plimsoll::nn::{BatchNorm1d, Module, Scope};
/// use plimsoll::optim::swa_utils::update_bn;
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let norm = BatchNorm1d::new(&Scope::new(&device, 1), 1)?;
/// let batches = [[1.0f32, 3.0], [5.0, 7.0]].map(|batch| Tensor::from_slice(&batch, &[2, 1], &device));
/// update_bn(&norm, batches, |norm, batch| norm.forward(&batch?))?;
/// let (_, mean) = &norm.named_buffers()[0];
/// assert_eq!(mean.to_vec::<f32>()?, [4.0]); // the mean of 2 and 6
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// With averages: `average.with(&mut model, |model| update_bn(model, batches, forward))`.
///
/// # Errors
/// The errors of `forward`, after which the statistics are those of the batches before; out of memory.
pub fn update_bn<M: Module, B, T>(
    model: &M,
    batches: impl IntoIterator<Item = B>,
    mut forward: impl FnMut(&M, B) -> Result<T>,
) -> Result<()> {
    let modules = model.named_modules();
    let whole = (String::new(), model as &dyn Module);
    let norms = modules.iter().chain([&whole]).filter(|(_, module)| module.kind().starts_with("BatchNorm"));
    let buffers: Vec<(String, Tensor)> = norms.flat_map(|(_, norm)| norm.named_buffers()).collect();
    no_grad(|| {
        for (name, buffer) in &buffers {
            buffer.fill_(if name == "running_var" { 1.0 } else { 0.0 })?;
        }
        if buffers.is_empty() {
            return Ok(());
        }
        let _training = Modes::set(model, true);
        batches.into_iter().try_for_each(|batch| cumulative(|| forward(model, batch)).map(drop))
    })
}

/// # Errors
/// Lists with other names or shapes.
fn want_same(own: &[(String, Tensor)], model: &[(String, Tensor)]) -> Result<()> {
    let differs = |((a, x), (b, y)): (&(String, Tensor), &(String, Tensor))| a != b || x.shape() != y.shape();
    if own.len() == model.len() && !own.iter().zip(model).any(differs) {
        return Ok(());
    }
    let message = "the model's tensors differ from those that the averages were made from";
    Err(Error::argument("averaged_model", message))
}
