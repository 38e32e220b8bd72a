//! A small U-Net that predicts the noise in images, with group normalization, attention, and a moving average of the weights.

use plimsoll::nn::{Conv1d, Conv2d, GroupNorm, Linear};
use plimsoll::prelude::*;
use plimsoll::{InterpolateMode, ResizeTo, Result};

use super::{fill, tensor};

module! {
    struct ResBlock(s, inputs: usize, outputs: usize, width: usize) {
        norm1: GroupNorm = GroupNorm::new(s, 4, inputs)?,
        conv1: Conv2d = Conv2d::new(s, inputs, outputs, 3)?.padding(1),
        time: Linear = Linear::new(s, width, 2 * outputs)?,
        norm2: GroupNorm = GroupNorm::new(s, 4, outputs)?,
        conv2: Conv2d = Conv2d::new(s, outputs, outputs, 3)?.padding(1),
        skip: Option<Conv2d> = (inputs != outputs).then(|| Conv2d::new(s, inputs, outputs, 1)).transpose()?,
    }

    fn forward(&self, x: &Tensor, t: &Tensor) -> Result<Tensor> {
        let h = self.conv1.forward(&self.norm1.forward(x)?.silu()?)?;
        let time = self.time.forward(&t.silu()?)?.unsqueeze(-1)?.unsqueeze(-1)?;
        let parts = time.chunk(2, 1)?;
        let [scale, shift] = &parts[..] else { unreachable!("two chunks") };
        let h = ((self.norm2.forward(&h)? * (1.0 + scale)?)? + shift)?;
        let skip = self.skip.as_ref().map_or(Ok(x.clone()), |skip| skip.forward(x))?;
        self.conv2.forward(&h.silu()?)? + &skip
    }
}

module! {
    struct AttentionBlock(s, channels: usize, heads: usize) {
        heads: usize,
        norm: GroupNorm = GroupNorm::new(s, 4, channels)?,
        qkv: Conv1d = Conv1d::new(s, channels, 3 * channels, 1)?,
        out: Conv1d = Conv1d::new(s, channels, channels, 1)?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[n, c, h, w] = x.shape() else { unreachable!("images") };
        let qkv = self.qkv.forward(&self.norm.forward(x)?.reshape(&[n, c, h * w])?)?;
        let qkv = qkv.reshape(&[n, 3, self.heads, c / self.heads, h * w])?.unbind(1)?;
        let [q, k, v] = &qkv[..] else { unreachable!("three of them") };
        let scale = ((c / self.heads) as f64).powf(-0.5);
        let weights = (Tensor::einsum("nhct,nhcs->nhts", &[q, k])? * scale)?;
        let out = Tensor::einsum("nhts,nhcs->nhct", &[&weights.softmax(-1)?, v])?.reshape(&[n, c, h * w])?;
        x + self.out.forward(&out)?.reshape(&[n, c, h, w])?
    }
}

module! {
    struct UNet(s, channels: usize, width: usize) {
        width: usize,
        time1: Linear = Linear::new(s, width, width)?,
        time2: Linear = Linear::new(s, width, width)?,
        first: Conv2d = Conv2d::new(s, 3, channels, 3)?.padding(1),
        down: ResBlock = ResBlock::new(s, channels, channels, width)?,
        pool: Conv2d = Conv2d::new(s, channels, channels, 3)?.stride(2).padding(1),
        mid1: ResBlock = ResBlock::new(s, channels, 2 * channels, width)?,
        attention: AttentionBlock = AttentionBlock::new(s, 2 * channels, 2)?,
        mid2: ResBlock = ResBlock::new(s, 2 * channels, channels, width)?,
        up: ResBlock = ResBlock::new(s, 2 * channels, channels, width)?,
        norm: GroupNorm = GroupNorm::new(s, 4, channels)?,
        last: Conv2d = Conv2d::new(s, channels, 3, 3)?.padding(1),
    }

    fn embed(&self, t: &Tensor) -> Result<Tensor> {
        let half = self.width / 2;
        let steps = Tensor::arange(half, t.device())?.to_dtype(DType::F32)?;
        let frequencies = (&steps * (-10_000f64.ln() / half as f64))?.exp()?;
        let angles = (t.unsqueeze(1)?.to_dtype(DType::F32)? * frequencies.unsqueeze(0)?)?;
        Tensor::cat(&[&angles.sin()?, &angles.cos()?], -1)
    }

    fn forward(&self, x: &Tensor, t: &Tensor) -> Result<Tensor> {
        let t = self.time2.forward(&self.time1.forward(&self.embed(t)?)?.silu()?)?;
        let x = self.first.forward(x)?;
        let skip = self.down.forward(&x, &t)?;
        let x = self.mid1.forward(&self.pool.forward(&skip)?, &t)?;
        let x = self.mid2.forward(&self.attention.forward(&x)?, &t)?;
        let x = x.interpolate(ResizeTo::Scale(&[2.0]), InterpolateMode::Nearest)?;
        let x = self.up.forward(&Tensor::cat(&[&x, &skip], 1)?, &t)?;
        self.last.forward(&self.norm.forward(&x)?.silu()?)
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let model = UNet::new(&Scope::new(&device, 1), 8, 16)?;
    fill(&model)?;
    let average = model.parameters().iter().map(|p| p.detach().copy()).collect::<Result<Vec<_>>>()?;
    let options = AdamWOptions { lr: 2e-3, weight_decay: 0.01, ..AdamWOptions::default() };
    let mut optimizer = AdamW::new(model.parameters(), options);
    let betas = Tensor::linspace(1e-3, 0.2, 10, &device)?;
    let alphas = (1.0 - &betas)?.cumprod(0)?;
    let mut losses = Vec::new();
    for step in 0..6 {
        let (x, target) = (tensor(step, &[2, 3, 8, 8], &device)?, tensor(step + 50, &[2, 3, 8, 8], &device)?);
        let t = Tensor::from_slice(&[step as i64 % 10, (3 * step as i64 + 4) % 10], &[2], &device)?;
        let a = alphas.index_select(0, &t)?.view(&[-1, 1, 1, 1])?;
        let noisy = ((a.sqrt()? * &x)? + ((1.0 - &a)?.sqrt()? * &target)?)?;
        let loss = model.forward(&noisy, &t)?.mse_loss(&target)?;
        optimizer.zero_grad();
        loss.backward()?;
        clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
        optimizer.step()?;
        no_grad(|| {
            average.iter().zip(model.parameters()).try_for_each(|(mean, p)| mean.lerp_scalar_(&p, 0.1))
        })?;
        losses.push(loss.item()?);
    }
    let squares = average.iter().map(|mean| mean.square()?.sum()?.item::<f32>());
    losses.push(squares.sum::<Result<f32>>()?);
    Ok(losses)
}
