//! A Wasserstein GAN with a gradient penalty, which needs the gradient of a gradient.

use plimsoll::Result;
use plimsoll::autograd::{GradOptions, grad};
use plimsoll::nn::{BatchNorm2d, Conv2d, ConvTranspose2d, ConvTransposeConfig, GroupNorm, Linear};
use plimsoll::prelude::*;

use super::{fill, tensor};

module! {
    struct Critic(s) {
        conv1: Conv2d = Conv2d::new(s, 1, 6, 4)?.stride(2).padding(1),
        conv2: Conv2d = Conv2d::new(s, 6, 8, 4)?.stride(2).padding(1),
        norm: GroupNorm = GroupNorm::new(s, 2, 8)?,
        out: Linear = Linear::new(s, 8 * 2 * 2, 1)?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.conv1.forward(x)?.leaky_relu(0.2)?;
        let x = self.norm.forward(&self.conv2.forward(&x)?)?.leaky_relu(0.2)?;
        self.out.forward(&x.flatten(1, -1)?)?.view(&[-1])
    }
}

module! {
    struct Generator(s, up: ConvTransposeConfig<2>) {
        fc: Linear = Linear::new(s, 5, 8 * 2 * 2)?,
        up1: ConvTranspose2d = ConvTranspose2d::with(s, 8, 6, up)?,
        norm: BatchNorm2d = BatchNorm2d::new(s, 6)?,
        up2: ConvTranspose2d = ConvTranspose2d::with(s, 6, 1, up)?,
    }

    fn forward(&self, z: &Tensor) -> Result<Tensor> {
        let x = self.fc.forward(z)?.view(&[-1, 8, 2, 2])?;
        let x = self.norm.forward(&self.up1.forward(&x)?)?.relu()?;
        self.up2.forward(&x)?.tanh()
    }
}

fn gradient_penalty(critic: &Critic, real: &Tensor, fake: &Tensor, alpha: &Tensor) -> Result<Tensor> {
    let mixed = ((alpha * real)? + ((1.0 - alpha)? * fake)?)?.requires_grad_(true)?;
    let score = critic.forward(&mixed)?;
    let options = GradOptions {
        gradients: vec![Some(score.ones_like()?.detach())],
        create_graph: true,
        retain_graph: true,
        ..GradOptions::default()
    };
    let gradient = grad(&[&score], &[&mixed], options)?.remove(0).unwrap();
    (gradient.flatten(1, -1)?.norm_dims(2.0, &[1])? - 1.0)?.pow_scalar(2)?.mean()
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let scope = Scope::new(&device, 1);
    let critic = Critic::new(&scope.at("critic"))?;
    let up = ConvTransposeConfig::new(4).stride(2).padding(1);
    let generator = Generator::new(&scope.at("generator"), up)?;
    fill(&critic)?;
    fill(&generator)?;
    let options = AdamOptions { lr: 2e-3, betas: (0.0, 0.9), ..AdamOptions::default() };
    let mut c_optimizer = Adam::new(critic.parameters(), options);
    let mut g_optimizer = Adam::new(generator.parameters(), options);
    let mut losses = Vec::new();
    for step in 0..4 {
        for inner in 0..2 {
            let seed = 10 * step + inner;
            let (real, z) = (tensor(seed, &[4, 1, 8, 8], &device)?, tensor(seed + 300, &[4, 5], &device)?);
            let alpha = ((tensor(seed + 600, &[4, 1, 1, 1], &device)? + 1.0)? / 2.0)?;
            let fake = generator.forward(&z)?.detach();
            c_optimizer.zero_grad();
            let penalty = gradient_penalty(&critic, &real, &fake, &alpha)?;
            let gap = (critic.forward(&fake)?.mean()? - critic.forward(&real)?.mean()?)?;
            let loss = (&gap + (10.0 * &penalty)?)?;
            loss.backward()?;
            c_optimizer.step()?;
            losses.push(loss.item()?);
        }
        for parameter in critic.parameters() {
            parameter.requires_grad_(false)?;
        }
        g_optimizer.zero_grad();
        let z = tensor(step + 900, &[4, 5], &device)?;
        let loss = -critic.forward(&generator.forward(&z)?)?.mean()?;
        let loss = loss?;
        loss.backward()?;
        g_optimizer.step()?;
        for parameter in critic.parameters() {
            parameter.requires_grad_(true)?;
        }
        losses.push(loss.item()?);
    }
    Ok(losses)
}
