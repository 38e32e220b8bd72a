//! A bidirectional GRU encodes a sentence; a GRU cell with attention decodes one, in some steps from its own previous output
//! instead of the target.

use plimsoll::nn::{Embedding, GRU, GRUCell, Linear, RecurrentOptions};
use plimsoll::optim::clip_grad_value_;
use plimsoll::optim::lr_scheduler::LambdaLr;
use plimsoll::prelude::*;
use plimsoll::{CrossEntropyOptions, Result};

use super::fill;

module! {
    struct Translator(s, vocab: usize, width: usize, hidden: usize, options: RecurrentOptions) {
        embed: Embedding = Embedding::new(s, vocab, width)?.padding_idx(0),
        encoder: GRU = GRU::new(s, width, hidden, options)?,
        start: Linear = Linear::new(s, 2 * hidden, hidden)?,
        key: Linear = Linear::without_bias(s, 2 * hidden, hidden)?,
        query: Linear = Linear::new(s, hidden, hidden)?,
        energy: Linear = Linear::without_bias(s, hidden, 1)?,
        cell: GRUCell = GRUCell::new(s, width + 2 * hidden, hidden, true)?,
        out: Linear = Linear::new(s, 3 * hidden + width, vocab)?,
    }

    fn forward(&self, source: &Tensor, target: &Tensor, teacher: &[bool]) -> Result<Tensor> {
        let (read, last) = self.encoder.forward(&self.embed.forward(source)?, None)?;
        let last = Tensor::cat(&[&last.select(0, 0)?, &last.select(0, 1)?], 1)?;
        let mut h = self.start.forward(&last)?.tanh()?;
        let (keys, padding) = (self.key.forward(&read)?, source.eq_scalar(0)?);
        let (mut word, mut logits) = (target.select(1, 0)?, Vec::new());
        for (t, &taught) in teacher.iter().enumerate().skip(1) {
            let e = self.embed.forward(&word)?;
            let query = self.query.forward(&h)?.unsqueeze(1)?;
            let energy = self.energy.forward(&(&keys + &query)?.tanh()?)?.squeeze(-1)?;
            let weights = energy.masked_fill(&padding, f64::NEG_INFINITY)?.softmax(-1)?;
            let context = weights.unsqueeze(1)?.bmm(&read)?.squeeze(1)?;
            h = self.cell.forward(&Tensor::cat(&[&e, &context], -1)?, &h)?;
            let logit = self.out.forward(&Tensor::cat(&[&h, &context, &e], -1)?)?;
            word = if taught { target.select(1, t as isize)? } else { logit.argmax(-1)? };
            logits.push(logit);
        }
        Tensor::stack(&logits.iter().collect::<Vec<_>>(), 1)
    }
}

pub(crate) fn losses() -> Result<Vec<f32>> {
    let device = crate::on_device::device();
    let options = RecurrentOptions { batch_first: true, bidirectional: true, ..RecurrentOptions::default() };
    let model = Translator::new(&Scope::new(&device, 1), 14, 8, 10, options)?;
    fill(&model)?;
    let mut optimizer = AdamW::new(model.parameters(), AdamWOptions { lr: 5e-3, ..AdamWOptions::default() });
    let warm_up = LambdaLr(|step: u64| ((step + 1) as f64 / 3.0).min(1.0));
    let mut scheduler = Scheduler::new(warm_up, &mut optimizer)?;
    let mut losses = Vec::new();
    for step in 0..6 {
        let sentence = |length: usize, at: &dyn Fn(usize, usize) -> Option<usize>| {
            let word = |k: usize| at(k / length, k % length).map_or(0, |x| (x + step) as i64 % 13 + 1);
            Tensor::from_slice(&(0..3 * length).map(word).collect::<Vec<_>>(), &[3, length], &device)
        };
        let source = sentence(7, &|b, i| (i < 7 - 2 * b).then_some(3 * i * i + b))?;
        let target = sentence(6, &|b, i| (i < 6 - b).then_some(i * i + 2 * b))?;
        let teacher: Vec<bool> = (0..6).map(|t| (t + step) % 3 != 0).collect();
        optimizer.zero_grad();
        let logits = model.forward(&source, &target, &teacher)?;
        let criterion = CrossEntropyOptions { ignore_index: 0, ..CrossEntropyOptions::default() };
        let words = target.slice(1, 1.., 1)?.reshape(&[-1])?;
        let loss = logits.reshape(&[-1, 14])?.cross_entropy_with(&words, criterion)?;
        loss.backward()?;
        clip_grad_value_(&model.parameters(), 0.2)?;
        optimizer.step()?;
        scheduler.step(&mut optimizer)?;
        losses.push(loss.item()?);
    }
    Ok(losses)
}
