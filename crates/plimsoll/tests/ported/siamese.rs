//! A Siamese network: pairs of images are close to each other if they have the same class.

use plimsoll::nn::{BatchNorm2d, Conv2d, Linear};
use plimsoll::optim::lr_scheduler::StepLr;
use plimsoll::prelude::*;
use plimsoll::{MaxPool2dOptions, Result};

use super::{fill, tensor};

module! {
    struct Siamese(s) {
        conv1: Conv2d = Conv2d::new(s, 1, 6, 5)?,
        conv2: Conv2d = Conv2d::new(s, 6, 8, 3)?.padding(1),
        norm: BatchNorm2d = BatchNorm2d::new(s, 8)?,
        fc1: Linear = Linear::new(s, 8 * 4 * 4, 24)?,
        fc2: Linear = Linear::new(s, 24, 8)?,
    }

    fn embed(&self, x: &Tensor) -> Result<Tensor> {
        let two = MaxPool2dOptions::square(2);
        let x = self.conv1.forward(x)?.relu()?.max_pool2d(two)?;
        let x = self.norm.forward(&self.conv2.forward(&x)?)?.relu()?.max_pool2d(two)?;
        let x = x.view(&[x.shape()[0] as isize, -1])?;
        self.fc2.forward(&self.fc1.forward(&x)?.tanh()?)?.normalize(1)
    }

    fn forward(&self, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((self.embed(a)?, self.embed(b)?))
    }
}

fn contrastive(a: &Tensor, b: &Tensor, same: &Tensor, margin: f64) -> Result<Tensor> {
    let distance = a.pairwise_distance(b, 2.0)?;
    let near = (same * distance.pow_scalar(2)?)?;
    let far = ((1.0 - same)? * (margin - &distance)?.clamp_min(0.0)?.pow_scalar(2)?)?;
    (&near + &far)?.mean()
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let model = Siamese::new(&Scope::new(&device, 1))?;
    fill(&model)?;
    let options =
        SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-4, nesterov: true, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(model.parameters(), options);
    let mut scheduler = Scheduler::new(StepLr { step_size: 3, gamma: 0.5 }, &mut optimizer)?;
    let mut losses = Vec::new();
    for step in 0..8 {
        let (a, b) = (tensor(step, &[6, 1, 20, 20], &device)?, tensor(step + 100, &[6, 1, 20, 20], &device)?);
        let same: Vec<f32> = (0..6).map(|i| ((i + step) % 2) as f32).collect();
        let same = Tensor::from_slice(&same, &[6], &device)?;
        let b = same.view(&[6, 1, 1, 1])?.gt_scalar(0)?.where_cond((&a + (&b * 0.1)?)?, &b)?;
        optimizer.zero_grad();
        let (a, b) = model.forward(&a, &b)?;
        let loss = contrastive(&a, &b, &same, 0.5)?;
        loss.backward()?;
        optimizer.step()?;
        scheduler.step(&mut optimizer)?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
