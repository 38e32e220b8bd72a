//! Mixed precision in `float16`: gradients of two batches are accumulated, unscaled and clipped; the scaler's initial scale is
//! too large.

use plimsoll::amp::{GradScaler, GradScalerState};
use plimsoll::autocast::autocast;
use plimsoll::nn::{Conv2d, GroupNorm, Linear};
use plimsoll::prelude::*;
use plimsoll::{CrossEntropyOptions, MaxPool2dOptions, Result};

use super::{fill, tensor};

module! {
    struct Net(s) {
        conv: Conv2d = Conv2d::new(s, 1, 6, 3)?.padding(1),
        norm: GroupNorm = GroupNorm::new(s, 2, 6)?,
        fc1: Linear = Linear::new(s, 6 * 4 * 4, 16)?,
        fc2: Linear = Linear::new(s, 16, 5)?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.conv.forward(x)?)?.gelu()?;
        let x = x.max_pool2d(MaxPool2dOptions::square(2))?.flatten(1, -1)?;
        self.fc2.forward(&self.fc1.forward(&x)?.silu()?)
    }
}

pub(crate) fn losses_and_scales() -> Result<Vec<f64>> {
    let device = crate::on_device::device();
    let model = Net::new(&Scope::new(&device, 1))?;
    fill(&model)?;
    let mut optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 5e-3, ..AdamWOptions::default() });
    let start = GradScaler::default().state_dict();
    let start = GradScalerState { scale: f64::from(1 << 20), growth_interval: 3, ..start };
    let mut scaler = GradScaler::new(start);
    let criterion = CrossEntropyOptions { label_smoothing: 0.1, ..CrossEntropyOptions::default() };
    let mut found = Vec::new();
    for step in 0..12 {
        let mut total = 0.0;
        for micro in 0..2 {
            let x = tensor(10 * step + micro, &[4, 1, 8, 8], &device)?;
            let y: Vec<i64> = (0..4).map(|b| ((b + step + micro) % 5) as i64).collect();
            let y = Tensor::from_slice(&y, &[4], &device)?;
            let loss = autocast(DType::F16, || model.forward(&x)?.cross_entropy_with(&y, criterion)? / 2.0)?;
            scaler.scale(&loss)?.backward()?;
            total += f64::from(loss.item::<f32>()?);
        }
        scaler.unscale_(&optimizer)?;
        clip_grad_norm_(&model.parameters(), 0.5, 2.0)?;
        scaler.step(&mut optimizer)?;
        scaler.update();
        optimizer.zero_grad();
        found.extend([total, scaler.get_scale()]);
    }
    Ok(found)
}
