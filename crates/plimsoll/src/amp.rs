//! Mixed precision's second half: [`GradScaler`] keeps small gradients from vanishing in `float16`. The first half is
//! [`crate::autocast`].

use std::collections::BTreeMap;

use plimsoll_tensor::caller::Entry;
use plimsoll_tensor::{Device, Error, Result, Tensor, unscale_};
use serde::{Deserialize, Serialize};

use crate::nn::check_whole;
use crate::optim::Optimizer;

/// Scales losses up by a large factor and gradients down by the same factor, so that small gradients are not rounded to zero in
/// `float16`. A step whose gradients are not finite is skipped, and the scale shrinks; after enough good steps it grows. Like
/// `torch.amp.GradScaler`; `bfloat16` does not need it.
///
/// ```
/// use plimsoll::amp::GradScaler;
/// use plimsoll::autocast::autocast;
/// use plimsoll::nn::{Linear, Module, Scope, Sequential};
/// use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
/// use plimsoll::{DType, Device, Tensor};
/// let device = Device::cpu();
/// let model = Sequential::new(&Scope::new(&device, 1)).add("fc", |s| Linear::new(s, 4, 1))?;
/// let mut sgd = Sgd::new(model.parameters(), SgdOptions::default());
/// let mut scaler = GradScaler::default();
/// let x = Tensor::ones(&[8, 4], &device)?;
/// for _ in 0..3 {
///     sgd.zero_grad();
///     let loss = autocast(DType::F16, || model.forward(&x)?.mse_loss(&Tensor::ones(&[8, 1], &device)?.half()?))?;
///     scaler.scale(&loss)?.backward()?;
///     assert!(scaler.step(&mut sgd)?);
///     scaler.update();
/// }
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GradScaler {
    state: GradScalerState,
    /// The state of each optimizer in this step; the key is its first parameter.
    seen: BTreeMap<usize, StepState>,
}

/// The state of a [`GradScaler`], under PyTorch's names.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GradScalerState {
    /// The factor that losses are multiplied by.
    pub scale: f64,
    /// The factor by which the scale grows after `growth_interval` good steps.
    pub growth_factor: f64,
    /// The factor by which the scale shrinks after a step whose gradients were not finite.
    pub backoff_factor: f64,
    /// Good steps in a row after which the scale grows.
    pub growth_interval: u64,
    /// Good steps in a row so far.
    #[serde(rename = "_growth_tracker")]
    pub growth_tracker: u64,
}

#[derive(Clone, Copy, Debug)]
struct StepState {
    finite: bool,
    stepped: bool,
}

impl Default for GradScaler {
    /// PyTorch's defaults: a scale of 65,536, doubled after 2,000 good steps, halved after a bad one.
    fn default() -> GradScaler {
        GradScaler::new(GradScalerState {
            scale: 65_536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            growth_tracker: 0,
        })
    }
}

impl GradScaler {
    /// Makes a scaler with this state: a new one, or another scaler's [`GradScaler::state_dict`].
    pub fn new(state: GradScalerState) -> GradScaler {
        GradScaler { state, seen: BTreeMap::new() }
    }

    /// Returns the scaled loss: call `backward` on it.
    ///
    /// # Errors
    /// If memory runs out.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        let _entry = Entry::here();
        loss.mul_scalar(self.state.scale)
    }

    /// Divides the gradients of an optimizer's parameters by the scale, in place and once a step. Needed only to clip them before
    /// [`GradScaler::step`].
    ///
    /// # Errors
    /// If it is called twice for the same optimizer before [`GradScaler::update`], for rows or other parts of
    /// parameters that several ranks have, or for an optimizer that [steps in the backward
    /// pass](Optimizer::steps_in_backward).
    #[track_caller]
    pub fn unscale_(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        let _entry = Entry::here();
        let parameters = optimizer.parameters();
        let key = key(&parameters);
        if self.seen.contains_key(&key) {
            let message = "these gradients are already unscaled: call `update` between steps".to_owned();
            return Err(Error::Argument { op: "unscale_", message });
        }
        if parameters.iter().any(Tensor::is_shard) {
            let message = "each rank would find infinite values only in its own rows, so ranks would skip different steps: train a \
                           sharded model in bfloat16, which needs no scaling";
            return Err(Error::argument("unscale_", message));
        }
        if optimizer.steps_in_backward() {
            let message = "the backward pass has already stepped with scaled gradients: use an optimizer that steps after it";
            return Err(Error::argument("unscale_", message));
        }
        check_whole("unscale_", parameters.iter())?;
        let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
        let mut finite = true;
        let mut rest: Vec<&Tensor> = gradients.iter().collect();
        while let Some(first) = rest.first() {
            let (dtype, device): (_, Device) = (first.dtype(), first.device().clone());
            let alike = |gradient: &&Tensor| gradient.dtype() == dtype && *gradient.device() == device;
            let (group, others): (Vec<&Tensor>, Vec<&Tensor>) = rest.into_iter().partition(alike);
            rest = others;
            let found = unscale_(&group, 1.0 / self.state.scale)?;
            // On a simulated device there are no values, so gradients count as finite.
            finite &= !device.has_values() || found.item::<f32>()? == 0.0;
        }
        self.seen.insert(key, StepState { finite, stepped: false });
        Ok(())
    }

    /// Unscales the gradients unless that is already done, and steps if they are finite. Returns whether it stepped.
    ///
    /// # Errors
    /// The optimizer's errors, or if it steps twice before [`GradScaler::update`].
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<bool> {
        let _entry = Entry::here();
        let key = key(&optimizer.parameters());
        if !self.seen.contains_key(&key) {
            self.unscale_(optimizer)?;
        }
        let Some(seen) = self.seen.get_mut(&key) else { return Ok(false) };
        if seen.stepped {
            let message = "this optimizer has stepped: call `update` between steps".to_owned();
            return Err(Error::Argument { op: "step", message });
        }
        seen.stepped = true;
        if seen.finite {
            optimizer.step()?;
        }
        Ok(self.seen.get(&key).is_some_and(|seen| seen.finite))
    }

    /// Ends a step: the scale shrinks if a gradient was not finite, and grows after enough good steps.
    pub fn update(&mut self) {
        if self.seen.is_empty() {
            return;
        }
        let state = &mut self.state;
        if self.seen.values().all(|seen| seen.finite) {
            state.growth_tracker += 1;
            if state.growth_tracker >= state.growth_interval {
                let grown = state.scale * state.growth_factor;
                // PyTorch's scale is a 32-bit float that must stay finite.
                if grown <= f64::from(f32::MAX) {
                    state.scale = grown;
                }
                state.growth_tracker = 0;
            }
        } else {
            state.scale *= state.backoff_factor;
            state.growth_tracker = 0;
        }
        self.seen.clear();
    }

    /// The current scale.
    pub fn get_scale(&self) -> f64 {
        self.state.scale
    }

    /// The state to save, under PyTorch's names.
    pub fn state_dict(&self) -> GradScalerState {
        self.state
    }

    /// Continues from another scaler's state.
    pub fn load_state_dict(&mut self, state: GradScalerState) {
        *self = GradScaler::new(state);
    }
}

fn key(parameters: &[Tensor]) -> usize {
    parameters.first().map_or(0, Tensor::id)
}

#[cfg(test)]
mod tests {
    use plimsoll_tensor::DType;

    use super::*;
    use crate::optim::{Sgd, SgdOptions};

    fn with_gradient(values: &[f32]) -> (Tensor, Sgd) {
        let device = Device::cpu();
        let w = Tensor::zeros(&[values.len()], &device).unwrap().requires_grad_(true).unwrap();
        w.set_grad(Some(Tensor::from_slice(values, &[values.len()], &device).unwrap())).unwrap();
        let sgd = Sgd::new(vec![w.clone()], SgdOptions { lr: 1.0, ..SgdOptions::default() });
        (w, sgd)
    }

    /// A scale of 8 that grows after two good steps.
    fn scaler() -> GradScaler {
        GradScaler::new(GradScalerState {
            scale: 8.0,
            growth_interval: 2,
            ..GradScaler::default().state_dict()
        })
    }

    #[test]
    fn a_step_with_an_infinite_gradient_is_left_out_and_the_scale_halves() {
        let mut scaler = scaler();
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let (w, mut sgd) = with_gradient(&[8.0, bad]);
            let before = scaler.get_scale();
            assert!(!scaler.step(&mut sgd).unwrap());
            assert_eq!(w.to_vec::<f32>().unwrap(), [0.0; 2]);
            scaler.update();
            assert_eq!(scaler.get_scale(), before / 2.0);
        }
    }

    #[test]
    fn good_steps_move_by_the_unscaled_gradient_and_the_scale_grows() {
        let mut scaler = scaler();
        for step in 1..=2 {
            let (w, mut sgd) = with_gradient(&[8.0, -16.0]);
            assert!(scaler.step(&mut sgd).unwrap());
            assert_eq!(w.to_vec::<f32>().unwrap(), [-1.0, 2.0]);
            scaler.update();
            assert_eq!(scaler.get_scale(), if step == 2 { 16.0 } else { 8.0 });
        }
    }

    #[test]
    fn gradients_are_unscaled_once() {
        let mut scaler = scaler();
        let (w, mut sgd) = with_gradient(&[8.0]);
        scaler.unscale_(&sgd).unwrap();
        assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [1.0]);
        assert!(scaler.unscale_(&sgd).is_err());
        assert!(scaler.step(&mut sgd).unwrap());
        assert!(scaler.step(&mut sgd).is_err());
        let json = serde_json::to_value(scaler.state_dict()).unwrap();
        assert_eq!(json["_growth_tracker"], 0);
        assert_eq!(w.dtype(), DType::F32);
    }
}
