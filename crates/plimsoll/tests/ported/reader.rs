//! Reads a line of text: an affine transform rectifies the image, convolutions and a bidirectional GRU predict a class for each
//! column, and CTC aligns the classes with the labels.

use plimsoll::nn::{Conv2d, GRU, Linear, RecurrentOptions};
use plimsoll::optim::{RmsProp, RmsPropOptions};
use plimsoll::prelude::*;
use plimsoll::{GridPadding, GridSampleOptions, MaxPool2dOptions, Result};

use super::{fill, tensor};

module! {
    struct Reader(s, two_way: RecurrentOptions) {
        place: Linear = Linear::new(s, 8 * 16, 6)?,
        conv: Conv2d = Conv2d::new(s, 1, 8, 3)?.padding(1),
        gru: GRU = GRU::new(s, 8 * 4, 10, two_way)?,
        fc: Linear = Linear::new(s, 20, 7)?,
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let moved = self.place.forward(&x.flatten(1, -1)?)?.tanh()?.view(&[-1, 2, 3])?;
        let theta = (Tensor::eye(2, 3, x.device())? + (0.2 * &moved)?)?;
        let grid = theta.affine_grid(x.shape(), false)?;
        let options = GridSampleOptions { padding_mode: GridPadding::Border, ..GridSampleOptions::default() };
        let x = self.conv.forward(&x.grid_sample(&grid, options)?)?.relu()?;
        let x = x.max_pool2d(MaxPool2dOptions::new([2, 1]))?;
        let (x, _) = self.gru.forward(&x.permute(&[3, 0, 1, 2])?.flatten(2, -1)?, None)?;
        self.fc.forward(&x)?.log_softmax(2)
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let two_way = RecurrentOptions { bidirectional: true, ..RecurrentOptions::default() };
    let model = Reader::new(&Scope::new(&device, 1), two_way)?;
    fill(&model)?;
    let options = RmsPropOptions { lr: 2e-3, momentum: 0.5, ..RmsPropOptions::default() };
    let mut optimizer = RmsProp::new(model.parameters(), options);
    let targets = Tensor::from_slice(&[1i64, 2, 2, 5, 3, 3, 0, 0, 6, 4, 1, 0], &[3, 4], &device)?;
    let mut losses = Vec::new();
    for step in 0..6 {
        optimizer.zero_grad();
        let log_probs = model.forward(&tensor(step, &[3, 1, 8, 16], &device)?)?;
        let loss = log_probs.ctc_loss(&targets, &[16, 12, 14], &[4, 2, 3], 0, Reduction::Mean, true)?;
        loss.backward()?;
        clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
