//! RetinaNet's head: one box and its classes for each position of a small image; focal loss, smooth L1 loss, anchors matched by
//! overlap.

use plimsoll::Result;
use plimsoll::nn::{Conv2d, ReLU};
use plimsoll::prelude::*;

use super::{fill, tensor};

fn sigmoid_focal_loss(logits: &Tensor, targets: &Tensor, alpha: f64, gamma: f64) -> Result<Tensor> {
    let p = logits.sigmoid()?;
    let ce = logits.binary_cross_entropy_with_logits(targets, None, None, Reduction::None)?;
    let others = (1.0 - targets)?;
    let p_t = ((&p * targets)? + ((1.0 - &p)? * &others)?)?;
    let balance = ((alpha * targets)? + ((1.0 - alpha) * &others)?)?;
    (&balance * &ce)? * (1.0 - &p_t)?.pow_scalar(gamma)?
}

fn part(x: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    x.narrow(-1, from, to - from)
}

fn box_iou(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let area = |x: &Tensor| -> Result<Tensor> {
        let sides = (part(x, 2, 4)? - part(x, 0, 2)?)?;
        sides.select(1, 0)? * sides.select(1, 1)?
    };
    let low = part(a, 0, 2)?.unsqueeze(1)?.maximum(part(b, 0, 2)?)?;
    let high = part(a, 2, 4)?.unsqueeze(1)?.minimum(part(b, 2, 4)?)?;
    let wide = (&high - &low)?.clamp_min(0.0)?;
    let inter = (wide.select(2, 0)? * wide.select(2, 1)?)?;
    &inter / ((area(a)?.unsqueeze(1)? + area(b)?)? - &inter)?
}

module! {
    struct Detector(s, classes: usize) {
        stem: Sequential = Sequential::new(s)
            .push(|s| Ok(Conv2d::new(s, 3, 8, 3)?.stride(2).padding(1)))?
            .push(ReLU::new)?
            .push(|s| Ok(Conv2d::new(s, 8, 8, 3)?.stride(2).padding(1)))?
            .push(ReLU::new)?,
        cls: Conv2d = Conv2d::new(s, 8, classes, 3)?.padding(1),
        r#box: Conv2d = Conv2d::new(s, 8, 4, 3)?.padding(1),
    }

    fn run(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let x = self.stem.forward(x)?;
        let rows = |y: Tensor| {
            let (batch, width) = (y.shape()[0] as isize, y.shape()[1] as isize);
            y.permute(&[0, 2, 3, 1])?.reshape(&[batch, -1, width])
        };
        Ok([rows(self.cls.forward(&x)?)?, rows(self.r#box.forward(&x)?)?])
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let model = Detector::new(&Scope::new(&device, 1), 3)?;
    fill(&model)?;
    let options = |lr: f64| SgdOptions { lr, momentum: 0.9, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(model.stem.parameters(), options(0.02));
    let heads = [model.cls.parameters(), model.r#box.parameters()].concat();
    optimizer.add_param_group(heads, options(0.05))?;
    let side = Tensor::arange(4, &device)?;
    let [y, x] = &Tensor::meshgrid(&[&side, &side])?[..] else { unreachable!() };
    let centres = Tensor::stack(&[x, y], -1)?.reshape(&[-1, 2])?.to_dtype(DType::F32)?;
    let centres = ((&centres * 4.0)? + 2.0)?;
    let anchors = Tensor::cat(&[&(&centres - 3.0)?, &(&centres + 3.0)?], 1)?;
    let mut losses = Vec::new();
    for step in 0..6 {
        let images = tensor(step, &[2, 3, 16, 16], &device)?;
        let boxes = [1.0f32, 1.0, 8.0, 7.0, 8.0, 9.0, 15.0, 15.0, 4.0, 2.0, 12.0, 12.0, 0.0, 10.0, 5.0, 16.0];
        let boxes = (Tensor::from_slice(&boxes, &[2, 2, 4], &device)? + 0.1 * step as f64)?;
        let labels = Tensor::from_slice(&[0i64, 2, 1, 0], &[2, 2], &device)?;
        let [logits, offsets] = model.run(&images)?;
        let mut of_images = Vec::new();
        for i in 0..2 {
            let of = |x: &Tensor| x.select(0, i);
            let (logit, offset, r#box, label) = (of(&logits)?, of(&offsets)?, of(&boxes)?, of(&labels)?);
            let (best, matched) = box_iou(&anchors, &r#box)?.max_dim(1)?;
            let positive = best.ge_scalar(0.35)?;
            let ignored = best.ge_scalar(0.25)?.logical_and(best.lt_scalar(0.35)?)?;
            let target = logit.zeros_like()?.detach();
            let hot = label.index(&[Some(&matched.index(&[Some(&positive)])?)])?.one_hot(Some(3))?;
            target.index_put_(&[Some(&positive)], hot.to_dtype(target.dtype())?, false)?;
            let counted = ignored.logical_not()?;
            let (seen, wanted) = (logit.index(&[Some(&counted)])?, target.index(&[Some(&counted)])?);
            let cls = sigmoid_focal_loss(&seen, &wanted, 0.25, 2.0)?.sum()?;
            let sides = (part(&anchors, 2, 4)? - part(&anchors, 0, 2)?)?;
            let near = r#box.index(&[Some(&matched)])?;
            let (low, high) = (part(&near, 0, 2)?, part(&near, 2, 4)?);
            let shift = ((&low - part(&anchors, 0, 2)?)? / &sides)?;
            let size = ((&high - &low)? / &sides)?.log()?;
            let wanted = Tensor::cat(&[&shift, &size], 1)?;
            let picked = |x: &Tensor| x.index(&[Some(&positive)]);
            let reg = picked(&offset)?.smooth_l1_loss(picked(&wanted)?, 1.0 / 9.0, Reduction::Sum)?;
            let count = positive.sum()?.clamp_min(1.0)?;
            of_images.push(((&cls + &reg)? / &count)?);
        }
        let loss = Tensor::stack(&of_images.iter().collect::<Vec<_>>(), 0)?.mean()?;
        optimizer.zero_grad();
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
