//! An LSTM that predicts the next character of sequences of several lengths.

use plimsoll::nn::{Embedding, LSTM, LayerNorm, Linear, PackedSequence, RecurrentOptions};
use plimsoll::prelude::*;
use plimsoll::{CrossEntropyOptions, Result};

use super::fill;

module! {
    struct CharLstm(s, vocab: usize, width: usize, hidden: usize, options: RecurrentOptions) {
        embed: Embedding = Embedding::new(s, vocab, width)?.padding_idx(0),
        lstm: LSTM = LSTM::new(s, width, hidden, options)?,
        norm: LayerNorm = LayerNorm::new(s, hidden)?,
        head: Linear = Linear::new(s, hidden, vocab)?,
    }

    fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Tensor)> {
        let packed = PackedSequence::pack_padded(&self.embed.forward(x)?, lengths, true)?;
        let (out, (h, _)) = self.lstm.forward_packed(&packed, None)?;
        let (out, _) = out.pad(true, 0.0, None)?;
        Ok((self.head.forward(&self.norm.forward(&out)?)?, h.select(0, -1)?))
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let options = RecurrentOptions { num_layers: 2, batch_first: true, ..RecurrentOptions::default() };
    let model = CharLstm::new(&Scope::new(&device, 1), 13, 10, 12, options)?;
    fill(&model)?;
    let criterion =
        CrossEntropyOptions { ignore_index: 0, label_smoothing: 0.1, ..CrossEntropyOptions::default() };
    let mut optimizer = Adam::new(model.parameters(), AdamOptions { lr: 0.02, ..AdamOptions::default() });
    let mut losses = Vec::new();
    for step in 0..8 {
        let lengths = [5, 9, 2, 7];
        let character = |b: usize, i: usize| if i < lengths[b] { 1 + (i * i + 3 * b + step) % 12 } else { 0 };
        let x: Vec<i64> = (0..40).map(|at| character(at / 10, at % 10) as i64).collect();
        let x = Tensor::from_slice(&x, &[4, 10], &device)?;
        let (inputs, targets) = (x.narrow(1, 0, 9)?, x.narrow(1, 1, 9)?);
        optimizer.zero_grad();
        let (logits, last) = model.forward(&inputs, &lengths)?;
        let loss = logits.transpose(1, 2)?.cross_entropy_with(&targets, criterion)?;
        let loss = (&loss + (1e-2 * last.pow_scalar(2)?.mean()?)?)?;
        loss.backward()?;
        clip_grad_norm_(&model.parameters(), 0.5, 2.0)?;
        optimizer.step()?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
