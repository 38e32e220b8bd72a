//! A layer whose weight is divided by its largest singular value.

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::checkpoint::is_recomputing;
use plimsoll_tensor::{Result, Tensor, no_grad};

use super::weighted::{Weighted, members_mut_of, members_of};
use super::{Buffer, Init, Members, MembersMut, Mode, Module, Scope};

/// A layer whose weight is divided by its largest singular value. In training, each forward pass improves the estimate of that
/// value by a step of power iteration. Like `torch.nn.utils.parametrizations.spectral_norm`, with the same names in state dicts.
///
/// ```
/// use plimsoll::nn::{Linear, Module, Scope, SpectralNorm};
/// use plimsoll::{Device, Tensor};
/// let device = Device::cpu();
/// let scope = Scope::new(&device, 1);
/// let layer = SpectralNorm::new(&scope, Linear::new(&scope, 4, 2)?)?;
/// let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["bias", "parametrizations.weight.original"]);
/// assert_eq!(layer.forward(&Tensor::ones(&[3, 4], &device)?)?.shape(), [3, 2]);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SpectralNorm<L> {
    layer: L,
    u: Buffer,
    v: Buffer,
    mode: Mode,
    power_iterations: usize,
    eps: f64,
}

impl<L: Weighted> SpectralNorm<L> {
    /// Wraps a layer that was made in the same scope. Starts with fifteen steps of power iteration.
    ///
    /// # Errors
    /// If the path is already in use ([`Scope::parameter`]), or memory runs out.
    pub fn new(scope: &Scope, layer: L) -> Result<SpectralNorm<L>> {
        let matrix = matrix(&layer)?;
        let drawn = |name: &str, size: usize| {
            let path = format!("parametrizations.weight.0.{name}");
            Ok::<_, plimsoll_tensor::Error>(Buffer::new(
                &scope.parameter(&path, &[size], Init::Normal(1.0))?.detach(),
            ))
        };
        let (u, v) = (drawn("_u", matrix.shape()[0])?, drawn("_v", matrix.shape()[1])?);
        let norm = SpectralNorm { layer, u, v, mode: Mode::default(), power_iterations: 1, eps: 1e-12 };
        norm.iterate(15)?;
        Ok(norm)
    }

    /// Returns the layer with this many steps of power iteration in each forward pass.
    pub fn power_iterations(mut self, power_iterations: usize) -> SpectralNorm<L> {
        self.power_iterations = power_iterations;
        self
    }

    /// The wrapped layer, with its weight as trained, before the division.
    pub fn layer(&self) -> &L {
        &self.layer
    }

    /// The weight divided by its largest singular value, as estimated by the last step of power iteration.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn weight(&self) -> Result<Tensor> {
        // Copies: the next forward pass changes both in place.
        let (u, v) = (self.u.copy()?, self.v.copy()?);
        let sigma = u.dot(&matrix(&self.layer)?.mv(&v)?)?;
        self.layer.weight().div(&sigma)
    }

    fn iterate(&self, steps: usize) -> Result<()> {
        let matrix = matrix(&self.layer)?.detach();
        let unit = |x: Tensor| x.div(&x.norm(2.0)?.clamp_min(self.eps)?);
        no_grad(|| {
            for _ in 0..steps {
                self.u.copy_(&unit(matrix.mv(&self.v)?)?)?;
                self.v.copy_(&unit(matrix.t()?.mv(&self.u)?)?)?;
            }
            Ok(())
        })
    }
}

/// The weight as a matrix with a row for each output.
fn matrix(layer: &impl Weighted) -> Result<Tensor> {
    let weight = layer.weight().movedim(&[layer.output_dim()], &[0])?;
    weight.reshape(&[weight.shape()[0] as isize, -1])
}

impl<L: Weighted> Module for SpectralNorm<L> {
    fn members<'a>(&'a self, list: &mut Members<'a>) {
        members_of(&self.layer, list, "parametrizations.weight.original");
        list.add("parametrizations.weight.0._u", &self.u);
        list.add("parametrizations.weight.0._v", &self.v);
        list.add("training", &self.mode);
    }

    fn members_mut<'a>(&'a mut self, list: &mut MembersMut<'a>) {
        members_mut_of(&mut self.layer, list, "parametrizations.weight.original");
        list.add("parametrizations.weight.0._u", &mut self.u);
        list.add("parametrizations.weight.0._v", &mut self.v);
    }

    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        // A checkpointed layer that is computed again must use the same estimate, so it must not run twice before the
        // backward pass.
        if self.mode.is_training() && !is_recomputing() {
            self.iterate(self.power_iterations)?;
        }
        self.layer.forward_with(input, &self.weight()?)
    }
}
