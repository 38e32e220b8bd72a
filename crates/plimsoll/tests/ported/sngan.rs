//! A GAN with the hinge loss: the discriminator's layers have spectral normalization, the generator's first layer has weight
//! normalization, and the generator has a moving average of its weights.

use plimsoll::Result;
use plimsoll::nn::{
    BatchNorm2d, Conv2d, ConvTranspose2d, ConvTransposeConfig, Linear, SpectralNorm, WeightNorm,
};
use plimsoll::prelude::*;

use super::{fill, tensor};

module! {
    struct Judge(s) {
        conv1: SpectralNorm<Conv2d> = SpectralNorm::new(s, Conv2d::new(s, 1, 6, 4)?.stride(2).padding(1))?,
        conv2: SpectralNorm<Conv2d> = SpectralNorm::new(s, Conv2d::new(s, 6, 8, 4)?.stride(2).padding(1))?,
        out: SpectralNorm<Linear> = SpectralNorm::new(s, Linear::new(s, 8 * 2 * 2, 1)?)?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.conv1.forward(x)?.leaky_relu(0.1)?;
        let x = self.conv2.forward(&x)?.leaky_relu(0.1)?;
        self.out.forward(&x.flatten(1, -1)?)?.squeeze(1)
    }
}

module! {
    struct Painter(s, up: ConvTransposeConfig<2>) {
        fc: WeightNorm<Linear> = WeightNorm::new(s, Linear::new(s, 5, 8 * 2 * 2)?)?,
        up1: ConvTranspose2d = ConvTranspose2d::with(s, 8, 6, up)?,
        norm: BatchNorm2d = BatchNorm2d::new(s, 6)?,
        up2: SpectralNorm<ConvTranspose2d> = SpectralNorm::new(s, ConvTranspose2d::with(s, 6, 1, up)?)?,
    }

    fn forward(&self, z: &Tensor) -> Result<Tensor> {
        let x = self.fc.forward(z)?.view(&[-1, 8, 2, 2])?;
        self.up2.forward(&self.norm.forward(&self.up1.forward(&x)?)?.relu()?)?.tanh()
    }
}

fn start(model: &impl Module) -> Result<()> {
    fill(model)?;
    for (name, buffer) in model.named_buffers() {
        if name.ends_with("_u") || name.ends_with("_v") {
            let values = tensor(name.len(), buffer.shape(), buffer.device())?.normalize(0)?;
            no_grad(|| buffer.copy_(&values))?;
        }
    }
    Ok(())
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let scope = Scope::new(&device, 1);
    let judge = Judge::new(&scope.at("judge"))?;
    let up = ConvTransposeConfig::new(4).stride(2).padding(1);
    let painter = Painter::new(&scope.at("painter"), up)?;
    start(&judge)?;
    start(&painter)?;
    let average: Vec<Tensor> =
        painter.parameters().iter().map(|p| p.detach().copy()).collect::<Result<_>>()?;
    let options = |lr: f64| AdamOptions { lr, betas: (0.0, 0.9), ..AdamOptions::default() };
    let mut j_optimizer = Adam::new(judge.parameters(), options(4e-3));
    let mut p_optimizer = Adam::new(painter.parameters(), options(1e-3));
    let mut losses = Vec::new();
    for step in 0..5 {
        let real = tensor(step, &[4, 1, 8, 8], &device)?;
        let fake = painter.forward(&tensor(step + 50, &[4, 5], &device)?)?.detach();
        j_optimizer.zero_grad();
        let of_real = (1 - judge.forward(&real)?)?.relu()?.mean()?;
        let of_fake = (1 + judge.forward(&fake)?)?.relu()?.mean()?;
        let loss = (&of_real + &of_fake)?;
        loss.backward()?;
        j_optimizer.step()?;
        losses.push(loss.item()?);
        p_optimizer.zero_grad();
        let drawn = painter.forward(&tensor(step + 90, &[4, 5], &device)?)?;
        let loss = judge.forward(&drawn)?.mean()?.neg()?;
        loss.backward()?;
        p_optimizer.step()?;
        losses.push(loss.item()?);
        no_grad(|| {
            average.iter().zip(painter.parameters()).try_for_each(|(mean, p)| mean.lerp_scalar_(&p, 0.1))
        })?;
    }
    let squares: Vec<f32> =
        average.iter().map(|mean| mean.pow_scalar(2)?.sum()?.item()).collect::<Result<_>>()?;
    losses.push(squares.iter().sum());
    Ok(losses)
}
