//! The loop: [`Fit`].

use std::time::{Duration, Instant};

use plimsoll_tensor::{DType, Device, Result, Tensor, no_grad};
use serde_json::Value;

use super::error::TrainError;
use super::fitted::{EpochMetrics, Fitted, Progress};
use super::metrics::Means;
use super::parts::backward_in_parts;
use super::saves::{Saves, State};
use super::{Options, Trainer};
use crate::CapturedStep;
use crate::data::DataLoader;
use crate::memory::Report;
use crate::nn::{Modes, Module};
use crate::optim::lr_scheduler::{Better, Curve, Scheduler};
use crate::optim::{Optimizer, clip_grad_norm_};

/// The time between two calls to `on_progress`.
const PAUSE: Duration = Duration::from_secs(1);
/// The name of the training loss.
const LOSS: &str = "loss";

/// A training that runs.
pub(super) struct Fit<'a> {
    model: &'a dyn Module,
    optimizer: &'a mut dyn Optimizer,
    options: Options<'a>,
    device: Device,
    parameters: Vec<Tensor>,
    captured: Option<CapturedStep>,
    /// The schedulers that advance after each step, and after each epoch.
    each_step: Option<Scheduler<Box<dyn Curve + 'a>>>,
    each_epoch: Option<Scheduler<Box<dyn Curve + 'a>>>,
    saves: Option<Saves>,
    state: State,
    /// Samples of this process, for the rate.
    samples: usize,
    start: Instant,
    shown: Instant,
}

impl<'a> Fit<'a> {
    /// Checks the options, and resumes from a checkpoint if there is one.
    pub(super) fn new(
        trainer: Trainer<'a>,
        batches: &DataLoader,
    ) -> std::result::Result<Fit<'a>, TrainError> {
        let Trainer { model, optimizer, mut options } = trainer;
        let parameters = optimizer.parameters();
        let refused = |message: &str| Err(TrainError::Options(message.to_owned()));
        let Some(first) = parameters.first() else {
            return refused("the optimizer has no parameters to train");
        };
        if parameters.iter().any(Tensor::is_shard) {
            return refused(
                "`Trainer` does not support models that several ranks share: write the loop yourself",
            );
        }
        if batches.is_empty() {
            return refused("there are no batches to train on");
        }
        if optimizer.steps_in_backward() && (options.parts > 1 || options.max_norm.is_some()) {
            return refused(
                "`accumulate` and `clip_grad_norm` need all gradients after the backward pass, but this optimizer steps in it",
            );
        }
        let device = first.device().clone();
        if options.save_every == Some(0) || options.patience == Some(0) {
            return refused("`save_every` and `early_stopping` need at least 1");
        }
        if options.validation.as_ref().is_some_and(|(batches, _)| batches.is_empty()) {
            return refused("there are no batches to validate on");
        }
        let validates = options.validation.is_some();
        if let Some((name, _)) = options.monitor.as_ref().filter(|(name, _)| name != LOSS && !validates) {
            return Err(TrainError::Options(format!(
                "there is no metric {name:?} to monitor: call `validate`"
            )));
        }
        if options.folder.is_none() && (options.resumes || options.save_every.is_some()) {
            return refused("`resume` and `save_every` need a folder: call `save_to`");
        }
        if options.folder.is_some() && !device.has_values() {
            return refused(
                "this device computes no values, so there is nothing to save: leave `save_to` out",
            );
        }
        let opened =
            options.folder.as_deref().map(|folder| Saves::open(folder, options.resumes)).transpose()?;
        let (saves, saved) = opened.map_or((None, None), |(saves, saved)| (Some(saves), saved));
        let curves = [&options.each_step, &options.each_epoch];
        if let Some(saved) = &saved
            && curves
                .iter()
                .zip(&saved.state.schedulers)
                .any(|(curve, state)| curve.is_some() == state.is_null())
        {
            return refused("the checkpoint was saved with other schedulers: give the same ones to resume");
        }
        // From here on, the device, the optimizer and the model change.
        if let Some(limit) = options.memory_limit {
            device.set_memory_limit(limit);
        }
        device.reset_peak_memory_stats();
        let mut each_step =
            options.each_step.take().map(|curve| Scheduler::new(curve, optimizer)).transpose()?;
        let mut each_epoch =
            options.each_epoch.take().map(|curve| Scheduler::new(curve, optimizer)).transpose()?;
        if let Some(saved) = &saved {
            saved.load(model, optimizer, &device)?;
            let schedulers = [&mut each_step, &mut each_epoch].into_iter().zip(&saved.state.schedulers);
            for (scheduler, state) in schedulers {
                scheduler.as_mut().map_or(Ok(()), |scheduler| scheduler.load_state_dict(state))?;
            }
        }
        let now = Instant::now();
        Ok(Fit {
            captured: options.captures.then(|| CapturedStep::new(&device)),
            model,
            optimizer,
            options,
            device,
            parameters,
            each_step,
            each_epoch,
            saves,
            state: saved.map(|saved| saved.state).unwrap_or_default(),
            samples: 0,
            start: now,
            shown: now,
        })
    }

    pub(super) fn run(
        mut self,
        batches: &DataLoader,
        mut loss: impl FnMut(&[Tensor]) -> Result<Tensor>,
    ) -> std::result::Result<Fitted, TrainError> {
        self.optimizer.zero_grad();
        while (self.state.epochs.len() as u64) < self.options.epochs && !self.is_over() {
            let start = Instant::now();
            let mut metrics = self.train(batches, &mut loss)?;
            metrics.extend(self.validate()?);
            self.end_of_epoch(metrics, start)?;
        }
        let stopped_early = (self.state.epochs.len() as u64) < self.options.epochs;
        let State { steps, epochs, .. } = self.state;
        Ok(Fitted {
            epochs,
            steps,
            stopped_early,
            elapsed: self.start.elapsed(),
            memory: Report::of(&self.device),
        })
    }

    /// Trains for the rest of an epoch. Returns its mean loss, if the device has values.
    fn train(
        &mut self,
        batches: &DataLoader,
        loss: &mut impl FnMut(&[Tensor]) -> Result<Tensor>,
    ) -> std::result::Result<Vec<(String, f64)>, TrainError> {
        let mut epoch = match &self.state.loader {
            Some(state) => batches.resume(state)?,
            None => batches.epoch(self.state.epochs.len() as u64),
        };
        let mut losses = Means::default();
        while let Some(batch) = epoch.next() {
            let batch = batch?;
            let tensors = batch.to_device(&self.device)?;
            let samples = batch.samples;
            batches.recycle(batch);
            self.device.mark_step(self.state.steps);
            let loss = self.step(&tensors, loss)?;
            losses.add(&[(LOSS, loss.clone())], samples)?;
            self.state.steps += 1;
            self.samples += samples;
            let state = epoch.state();
            self.show(&loss, state.batch, batches.len() as u64)?;
            let is_due = self.options.save_every.is_some_and(|every| self.state.steps.is_multiple_of(every));
            self.state.loader = Some(state);
            if is_due {
                // The sums have the same bits, whether the training resumes from here or not.
                self.count(&losses)?;
                losses = Means::default();
                self.save()?;
            }
        }
        if !self.device.has_values() {
            return Ok(Vec::new());
        }
        self.count(&losses)?;
        Ok(vec![(LOSS.to_owned(), self.state.loss_sum / self.state.samples)])
    }

    /// Adds losses to those of this epoch.
    fn count(&mut self, losses: &Means) -> Result<()> {
        let (sum, samples) = losses.sum(LOSS)?;
        self.state.loss_sum += sum;
        self.state.samples += samples;
        Ok(())
    }

    /// Takes one step. Returns its loss.
    fn step(
        &mut self,
        batch: &[Tensor],
        loss: &mut impl FnMut(&[Tensor]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let Fit { options, parameters, optimizer, captured, .. } = self;
        let (parts, max_norm) = (options.parts, options.max_norm);
        let mut step = |batch: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| {
            let loss = backward_in_parts(batch, parts, &mut *loss)?;
            if let Some(max_norm) = max_norm {
                clip_grad_norm_(parameters, max_norm, 2.0)?;
            }
            optimizers[0].step()?;
            optimizers[0].zero_grad();
            Ok(vec![loss])
        };
        let optimizers: &mut [&mut dyn Optimizer] = &mut [&mut **optimizer];
        let mut outputs = match captured {
            Some(captured) => captured.run(&batch.iter().collect::<Vec<_>>(), optimizers, step)?,
            None => step(batch, optimizers)?,
        };
        if let Some(scheduler) = &mut self.each_step {
            scheduler.step(self.optimizer)?;
        }
        Ok(outputs.swap_remove(0))
    }

    /// Calls `on_progress` if it is time to.
    fn show(&mut self, loss: &Tensor, step: u64, steps: u64) -> Result<()> {
        let Some(on_progress) = &mut self.options.on_progress else { return Ok(()) };
        if self.shown.elapsed() < PAUSE {
            return Ok(());
        }
        self.shown = Instant::now();
        on_progress(&Progress {
            epoch: self.state.epochs.len() as u64 + 1,
            epochs: self.options.epochs,
            step,
            steps,
            loss: self.device.has_values().then(|| loss.detach().to_dtype(DType::F64)?.item()).transpose()?,
            samples_per_second: self.samples as f64 / self.start.elapsed().as_secs_f64(),
            allocated_bytes: self.device.memory_allocated(),
            peak_reserved_bytes: self.device.max_memory_reserved(),
        });
        Ok(())
    }

    /// The metrics of the validation, if there is one and the device has values.
    fn validate(&mut self) -> std::result::Result<Vec<(String, f64)>, TrainError> {
        let Some((batches, evaluate)) = &mut self.options.validation else { return Ok(Vec::new()) };
        let _evaluating = Modes::set(self.model, false);
        let mut means = Means::default();
        for batch in batches.epoch(0) {
            let batch = batch?;
            let tensors = batch.to_device(&self.device)?;
            means.add(&no_grad(|| evaluate(&tensors))?, batch.samples)?;
            batches.recycle(batch);
        }
        if !self.device.has_values() {
            return Ok(Vec::new());
        }
        Ok(means.means()?.into_iter().map(|(name, value)| (format!("val_{name}"), value)).collect())
    }

    /// Whether the best epoch is too long ago.
    fn is_over(&self) -> bool {
        let last = self.state.epochs.iter().rev();
        let since_best = last.take_while(|epoch| !epoch.is_best).count() as u64;
        self.device.has_values() && self.options.patience.is_some_and(|patience| since_best >= patience)
    }

    /// Records an epoch, and saves.
    fn end_of_epoch(
        &mut self,
        metrics: Vec<(String, f64)>,
        start: Instant,
    ) -> std::result::Result<(), TrainError> {
        let epoch = self.state.epochs.len() as u64 + 1;
        let mut ended = EpochMetrics { epoch, metrics, is_best: false, elapsed: start.elapsed() };
        let is_best = self.is_best(&ended);
        ended.is_best = *is_best.as_ref().unwrap_or(&false);
        if let Some(scheduler) = &mut self.each_epoch {
            scheduler.step(self.optimizer)?;
        }
        self.state.epochs.push(ended.clone());
        (self.state.loader, self.state.loss_sum, self.state.samples) = (None, 0.0, 0.0);
        if let Some(saves) = self.saves.as_ref().filter(|_| ended.is_best) {
            saves.save_best(self.model)?;
        }
        self.save()?;
        if let Some(on_epoch) = &mut self.options.on_epoch {
            on_epoch(&ended);
        }
        // A missing metric is an error, but only after the epoch was saved.
        is_best.map(drop)
    }

    /// Whether an epoch is better than all before it.
    fn is_best(&self, ended: &EpochMetrics) -> std::result::Result<bool, TrainError> {
        if !self.device.has_values() {
            return Ok(false);
        }
        let default = if ended.metric("val_loss").is_some() { "val_loss" } else { LOSS };
        let (name, better) = match &self.options.monitor {
            Some((name, better)) => (name.as_str(), *better),
            None => (default, Better::Min),
        };
        let Some(value) = ended.metric(name) else {
            let names: Vec<&str> = ended.metrics.iter().map(|(name, _)| name.as_str()).collect();
            let names = names.join(", ");
            return Err(TrainError::Options(format!(
                "there is no metric {name:?} to monitor: there are {names}"
            )));
        };
        let is_better = |than: f64| match better {
            Better::Min => value < than,
            Better::Max => value > than,
        };
        let before = || self.state.epochs.iter().filter_map(|epoch| epoch.metric(name));
        Ok(!value.is_nan() && before().all(|than| than.is_nan() || is_better(than)))
    }

    fn save(&mut self) -> std::result::Result<(), TrainError> {
        let Some(saves) = &self.saves else { return Ok(()) };
        let state =
            |scheduler: &Option<Scheduler<_>>| scheduler.as_ref().map_or(Value::Null, Scheduler::state_dict);
        self.state.schedulers = [state(&self.each_step), state(&self.each_epoch)];
        Ok(saves.save(self.model, self.optimizer, &self.device, &self.state)?)
    }
}
