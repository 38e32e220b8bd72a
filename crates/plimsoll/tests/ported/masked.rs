//! A masked autoencoder: it sees a quarter of the patches and reconstructs the others.

use plimsoll::nn::{Conv2d, Conv2dConfig, LayerNorm, Linear};
use plimsoll::optim::lr_scheduler::OneCycleLr;
use plimsoll::prelude::*;
use plimsoll::{AttentionOptions, Result, WindowOptions};

use super::{fill, tensor};

module! {
    struct Masked(s, width: usize) {
        embed: Conv2d = Conv2d::with(s, 2, width, Conv2dConfig::new(2).stride(2))?,
        position: Parameter = s.own_parameter(&[1, 16, width], Init::Zeros)?,
        mask_token: Parameter = s.own_parameter(&[1, 1, width], Init::Zeros)?,
        norm: LayerNorm = LayerNorm::new(s, width)?,
        qkv: Linear = Linear::new(s, width, 3 * width)?,
        proj: Linear = Linear::new(s, width, width)?,
        head: Linear = Linear::new(s, width, 8)?,
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let &[b, t, c] = x.shape() else { unreachable!() };
        let qkv = self.qkv.forward(&self.norm.forward(x)?)?.reshape(&[b, t, 3, 2, c / 2])?;
        let [q, k, v] = &qkv.permute(&[2, 0, 3, 1, 4])?.unbind(0)?[..] else { unreachable!() };
        let seen = q.scaled_dot_product_attention(k, v, AttentionOptions::default())?;
        x + self.proj.forward(&seen.transpose(1, 2)?.reshape(&[b, t, c])?)?
    }

    fn forward(&self, images: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let x = (self.embed.forward(images)?.flatten(2, -1)?.transpose(1, 2)? + &self.position)?;
        let &[b, t, c] = x.shape() else { unreachable!() };
        let order = noise.argsort(1, false)?;
        let restore = order.argsort(1, false)?;
        let x = x.gather(1, order.narrow(1, 0, 4)?.unsqueeze(-1)?.repeat(&[1, 1, c])?)?;
        let x = self.attend(&x)?;
        let x = Tensor::cat(&[&x, &self.mask_token.repeat(&[b, t - 4, 1])?], 1)?;
        let x = (x.gather(1, restore.unsqueeze(-1)?.repeat(&[1, 1, c])?)? + &self.position)?;
        let mask = Tensor::ones(&[b, t], images.device())?;
        mask.narrow(1, 0, 4)?.fill_(0.0)?;
        let mask = mask.gather(1, &restore)?;
        let patches = WindowOptions { stride: [2, 2], ..WindowOptions::new([2, 2]) };
        let target = images.im2col(patches)?.transpose(1, 2)?;
        let deviation = (target.var_keepdim(&[-1], 1.0)? + 1e-6)?.sqrt()?;
        let target = ((&target - target.mean_keepdim(&[-1])?)? / &deviation)?;
        let loss = (self.head.forward(&self.attend(&x)?)? - &target)?.pow_scalar(2)?.mean_dims(&[-1])?;
        (&loss * &mask)?.sum()? / mask.sum()?
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let model = Masked::new(&Scope::new(&device, 1), 12)?;
    fill(&model)?;
    let (decayed, rest): (Vec<Tensor>, Vec<Tensor>) =
        model.parameters().into_iter().partition(|p| p.rank() == 2);
    let options = |weight_decay: f64| AdamWOptions {
        lr: 1e-3,
        betas: (0.9, 0.95),
        weight_decay,
        ..AdamWOptions::default()
    };
    let mut optimizer = AdamW::new(decayed, options(0.05));
    optimizer.add_param_group(rest, options(0.0))?;
    let mut scheduler = Scheduler::new(OneCycleLr::new(vec![2e-2, 1e-2], 6), &mut optimizer)?;
    let mut losses = Vec::new();
    for step in 0..6 {
        optimizer.zero_grad();
        let (images, noise) = (tensor(step, &[2, 2, 8, 8], &device)?, tensor(step + 40, &[2, 16], &device)?);
        let loss = model.forward(&images, &noise)?;
        loss.backward()?;
        optimizer.step()?;
        scheduler.step(&mut optimizer)?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
