//! The training loop. It is the same for every task and every device; the only difference on the simulated device
//! is that it cannot read values.

use std::time::{Duration, Instant};

use plimsoll::data::DataLoader;
use plimsoll::memory::{self, Report};
use plimsoll::optim::Optimizer;
use plimsoll::parallel::rank_seed;
use plimsoll::{
    CapturedStep, Device, ProcessGroup, RngState, Segment, Tensor, TimelineSpan, backward_in_parts, no_grad,
};

use super::job::{Error, Job, Outcome, Place, Together};
use super::lanes::{Lanes, first_sample};
use super::model::Model;
use super::saves::{Progress, Saved, Saves};
use super::stop::{Signal, Stop};
use super::watch::Watch;
use crate::cuda::without_dnn;

// Note [Repeating epochs]
// Every epoch makes the same requests, and on the simulated device nothing else happens. So if an epoch ends
// with the same segments and blocks as an earlier one, all later epochs repeat the same states, and the job
// can stop, no matter how many epochs are left. (Blocks may be at different addresses after each epoch, so
// the earlier epoch need not be the previous one.)

/// The seed of this rank's random numbers. With lanes, all ranks have the job's seed, from which each lane's seed is
/// derived.
fn job_seed(job: &Job, seed: u64, group: &ProcessGroup) -> u64 {
    if job.reproducible.is_some() { seed } else { rank_seed(seed, group.rank()) }
}

/// A job on its device.
struct Run<'a> {
    job: &'a Job,
    device: &'a Device,
    stop: &'a Stop,
    saves: Option<&'a mut Saves>,
    group: ProcessGroup,
    model: Model,
    optimizer: Box<dyn Optimizer>,
    captured: Option<CapturedStep>,
    lanes: Lanes,
    parameter_bytes: u64,
    progress: Progress,
    trained: Trained,
    /// The signal that all ranks know about, if there are several ranks.
    agreed: Option<Signal>,
    /// The maximum seen so far.
    outside_bytes: Option<u64>,
}

/// The number of units trained on in this process, and the time.
#[derive(Default)]
struct Trained {
    steps: u64,
    samples: u64,
    elapsed: Duration,
    /// The last step on a simulated GPU: its estimated time, and what it consists of.
    estimated: Option<Duration>,
    timeline: Vec<TimelineSpan>,
}

impl Job {
    /// Trains and tests on a device. With `saves`, writes checkpoints, and resumes from one if there is one.
    pub(crate) fn run(
        &self,
        device: &Device,
        watch: &mut impl Watch,
        saves: Option<&mut Saves>,
        stop: &Stop,
    ) -> Result<Outcome, Error> {
        Run::new(self, device, saves, stop)?.finish(watch)
    }
}

impl<'a> Run<'a> {
    fn new(
        job: &'a Job,
        device: &'a Device,
        saves: Option<&'a mut Saves>,
        stop: &'a Stop,
    ) -> Result<Run<'a>, Error> {
        let group = job.group_on(device);
        device.manual_seed(job_seed(job, job.seed, &group));
        let model = Model::new(job, device, &group)?;
        let parameter_bytes = device.memory_allocated();
        Ok(Run {
            lanes: Lanes::new(job, &model.data, device.has_values())?,
            optimizer: job.task.optimizer(model.parameters.clone(), job.lr, &job.techniques)?,
            captured: job.capture.then(|| CapturedStep::new(device)),
            parameter_bytes,
            progress: Progress::default(),
            trained: Trained::default(),
            agreed: None,
            outside_bytes: None,
            group,
            model,
            job,
            device,
            stop,
            saves,
        })
    }

    /// Runs until the end, or until a signal.
    fn finish(mut self, watch: &mut impl Watch) -> Result<Outcome, Error> {
        let start = Instant::now();
        self.resume(watch)?;
        let mut seen: Vec<Vec<Segment>> = Vec::new();
        loop {
            self.train(watch)?;
            let over = self.progress.step >= self.steps();
            if over || self.ended().is_some() {
                self.save(watch)?;
            }
            let Some(score) = self.test()? else { break };
            let loss = self.device.has_values().then(|| self.mean_loss()).flatten();
            self.progress.losses.extend(loss);
            self.progress.scores.extend(score);
            watch.epoch(self.place(), loss, score, self.device);
            if over {
                break;
            }
            if !self.device.has_values() {
                let state = self.device.memory_snapshot();
                if seen.contains(&state) {
                    watch.repeats(self.place());
                    self.progress.step = self.steps();
                    break;
                }
                seen.push(state);
            }
            let (step, losses, scores) = (self.progress.step, self.progress.losses, self.progress.scores);
            self.progress =
                Progress { step, epoch: self.progress.epoch + 1, losses, scores, ..Progress::default() };
        }
        self.finish_save(watch)?;
        watch.end(self.device);
        self.outcome(start)
    }

    fn outcome(mut self, start: Instant) -> Result<Outcome, Error> {
        let mut memory = Report::of(self.device);
        memory.outside_bytes = memory.outside_bytes.max(self.outside_bytes);
        let (data_set_bytes, batches_bytes) = match self.device.has_values() {
            true => {
                let buffers = self.lanes.training.iter().map(DataLoader::buffer_bytes).sum();
                (self.job.task.data_set_bytes(), buffers)
            }
            false => (0, 0),
        };
        let elapsed = start.elapsed();
        let seconds = self.trained.elapsed.as_secs_f64();
        let units = self.trained.samples * self.job.task.unit().per_sample;
        let is_measured = self.device.has_values() && units > 0 && seconds > 0.0;
        let together = self.together(&memory)?;
        let sample = match self.device.has_values() && self.ended().is_none() {
            true => self.model.sample(self.job, &self.group, self.device, self.stop)?,
            false => None,
        };
        Ok(Outcome {
            estimated_step: self.trained.estimated,
            timeline: std::mem::take(&mut self.trained.timeline),
            memory,
            parameters: self.parameter_bytes,
            parameter_count: self.model.parameter_count,
            data_set_bytes,
            batches_bytes,
            steps: self.progress.step,
            planned_steps: self.steps(),
            scores: self.progress.scores.clone(),
            tested: self.lanes.testing[0].dataset().len(),
            losses: self.progress.losses.clone(),
            elapsed,
            units_per_second: is_measured.then(|| units as f64 / seconds),
            sample,
            signal: self.ended(),
            together,
        })
    }

    /// The shared results of the ranks. Waits until all ranks have reached the end.
    fn together(&self, memory: &Report) -> Result<Option<Together>, Error> {
        let Some(sharded) = self.model.sharded.as_ref().filter(|_| self.group.size() > 1) else {
            return Ok(None);
        };
        let own = [memory.peak_allocated_bytes.to_le_bytes(), memory.peak_reserved_bytes.to_le_bytes()];
        let all = self.group.all_gather_bytes(own.as_flattened(), "peaks")?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        Ok(Some(Together {
            shard: self.job.shard,
            replicate: self.job.replicate,
            tensor: self.job.tensor,
            buckets: sharded.buckets(),
            units: sharded.units(),
            slot_bytes: sharded.gathered().1,
            sent_bytes_per_step: self.group.traffic().sent_bytes / self.trained.steps.max(1),
            peaks: all.iter().map(|rank| (number(&rank[..8]), number(&rank[8..]))).collect(),
        }))
    }

    /// The signal that ends the run. With several ranks, it is one that all ranks know about, so that all end after the
    /// same step.
    fn ended(&self) -> Option<Signal> {
        if self.model.sharded.is_some() { self.agreed } else { self.stop.signal() }
    }

    /// The sum of the values of all lanes, in their order. Also tells all ranks about a signal that one of them received.
    fn agree(&mut self, own: &[f64]) -> plimsoll::Result<f64> {
        if self.model.sharded.is_none() {
            return Ok(own.iter().sum());
        }
        let mut message: Vec<u8> = vec![self.stop.signal().map_or(0, Signal::number)];
        own.iter().for_each(|value| message.extend(value.to_le_bytes()));
        let all = self.group.all_gather_bytes(&message, "loss and signals")?;
        self.agreed = self.agreed.or(all.iter().find_map(|rank| Signal::of_number(rank[0])));
        let value = |rank: &Vec<u8>, at: usize| {
            let bytes = rank[1 + 8 * at..].first_chunk();
            bytes.map_or(f64::NAN, |bytes| f64::from_le_bytes(*bytes))
        };
        // Ranks that share layers have the same values.
        let each = || all.iter().step_by(self.job.tensor);
        Ok((0..own.len()).flat_map(|at| each().map(move |rank| value(rank, at))).sum())
    }

    fn place(&self) -> Place {
        let per_epoch = self.lanes.training[0].len() as u64;
        Place {
            epoch: self.progress.epoch,
            epochs: self.job.length.epochs(per_epoch),
            step: self.progress.step,
            steps: self.steps(),
        }
    }

    fn steps(&self) -> u64 {
        self.job.length.steps(self.lanes.training[0].len() as u64)
    }

    /// The number of steps in all epochs, even if the run ends earlier.
    fn horizon(&self) -> u64 {
        let per_epoch = self.lanes.training[0].len() as u64;
        self.job.length.epochs(per_epoch).saturating_mul(per_epoch)
    }

    /// Moves to the position of the checkpoint, if there is one to resume from.
    fn resume(&mut self, watch: &mut impl Watch) -> Result<(), Error> {
        let Some(saves) = self.saves.as_deref_mut() else { return Ok(()) };
        let Some(from) = saves.take_checkpoint() else { return Ok(()) };
        let Model { network, sharded, .. } = &self.model;
        let (progress, not_finite) =
            from.load(network.module(), self.optimizer.as_mut(), self.device, sharded.as_ref())?;
        self.progress = progress;
        // The checkpoint has the state of rank 0's generator. The generators of other ranks are at the same position,
        // but with their own seeds.
        let state = self.device.rng_state();
        self.device.set_rng_state(RngState { seed: job_seed(self.job, state.seed, &self.group), ..state });
        if let Some(first) = not_finite.first() {
            let more = not_finite.len() - 1;
            let more = if more > 0 { format!(" and {more} more tensors") } else { String::new() };
            watch.note(&format!(
                "the checkpoint has NaN or infinite values in {first}{more}: resume from an older one"
            ));
        }
        watch.resumed(self.place());
        Ok(())
    }

    /// Saves the run, unless this step is saved already. A failed save does not stop training: [`Saves`] keeps the
    /// error.
    fn save(&mut self, watch: &mut impl Watch) -> Result<(), Error> {
        self.finish_save(watch)?;
        let Some(saves) = self.saves.as_deref_mut() else { return Ok(()) };
        let last = if self.model.saves_together() { saves.tried_step() } else { saves.last_step() };
        if last == Some(self.progress.step) {
            return Ok(());
        }
        let tensors = self.model.tensors(self.optimizer.as_ref())?;
        let saved = Saved { tensors, device: self.device, progress: &self.progress };
        if let Some(why) = saves.save(saved)? {
            watch.note(&why);
        }
        Ok(())
    }

    /// Waits for the save that a thread writes, if there is one. If it failed, [`Saves`] keeps the error.
    fn finish_save(&mut self, watch: &mut impl Watch) -> Result<(), Error> {
        let Some(saves) = self.saves.as_deref_mut() else { return Ok(()) };
        if let Some(why) = saves.finish()? {
            watch.note(&why);
        }
        Ok(())
    }

    /// Trains for the rest of the epoch, or until the job ends.
    fn train(&mut self, watch: &mut impl Watch) -> Result<(), Error> {
        self.model.network.module().train();
        let training = self.lanes.training.clone();
        let begin = |loader: &DataLoader| match &self.progress.loader {
            Some(state) => loader.resume(state),
            None => Ok(loader.epoch(self.progress.epoch)),
        };
        let mut epochs = training.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
        let (start, steps, lanes) = (Instant::now(), self.steps(), self.job.lanes());
        while self.progress.step < steps && self.ended().is_none() {
            // The loaders of all lanes have equally many batches, of equal sizes.
            let batches: Option<Vec<_>> = epochs.iter_mut().map(Iterator::next).collect();
            let Some(batches) = batches else { break };
            let batches = batches.into_iter().collect::<Result<Vec<_>, _>>()?;
            self.device.mark_step(self.progress.step);
            let mut tensors = Vec::new();
            for batch in &batches {
                tensors.extend(batch.to_device(self.device)?);
            }
            let before = self.device.estimated_time();
            let device = self.device;
            let loss = if self.job.timeline {
                let (loss, timeline) = device.record_timeline(|| self.step(&tensors));
                self.trained.timeline = timeline;
                loss?
            } else {
                self.step(&tensors)?
            };
            self.trained.estimated = device.estimated_time().zip(before).map(|(now, before)| now - before);
            drop(tensors);
            let samples = batches[0].samples * lanes;
            let sum =
                f64::from_bits(self.progress.loss_sum_bits) + f64::from(loss.unwrap_or(0.0)) * samples as f64;
            self.progress.loss_sum_bits = sum.to_bits();
            self.progress.samples += samples as u64;
            let is_first = self.trained.samples == 0;
            self.trained.samples += samples as u64;
            self.trained.steps += 1;
            watch.step(self.place(), samples, loss, self.device);
            if let (true, Some(why)) = (is_first, self.device.missing_library()) {
                watch.note(&without_dnn(&why));
            }
            training.iter().zip(batches).for_each(|(loader, batch)| loader.recycle(batch));
            self.progress.loader = Some(epochs[0].state());
            if self.saves.as_ref().is_some_and(|saves| saves.is_due(self.progress.step)) {
                self.save(watch)?;
            }
        }
        self.trained.elapsed += start.elapsed();
        Ok(())
    }

    /// Takes one step on one batch, given as the tensors of each lane, one lane after another. Returns the mean loss of all lanes,
    /// if the device has values.
    fn step(&mut self, batch: &[Tensor]) -> plimsoll::Result<Option<f32>> {
        self.optimizer.set_lr(self.job.lr * self.job.task.schedule(self.progress.step, self.horizon()));
        let per_lane = batch.len() / self.lanes.training.len();
        let Run { job, model, optimizer, captured, group, device, .. } = self;
        let network = &model.network;
        let step =
            |batch: &[Tensor], optimizers: &mut [&mut dyn Optimizer]| -> plimsoll::Result<Vec<Tensor>> {
                let losses = match job.reproducible {
                    None if job.techniques.accumulate > 1 => {
                        optimizers[0].zero_grad();
                        let loss = |part: &[Tensor]| job.techniques.autocast(|| network.loss(part));
                        vec![backward_in_parts(batch, job.techniques.accumulate, loss)?]
                    }
                    None => {
                        let loss = job.techniques.autocast(|| network.loss(batch))?;
                        optimizers[0].zero_grad();
                        loss.backward()?;
                        vec![loss]
                    }
                    Some(reproducible) => {
                        optimizers[0].zero_grad();
                        let mut lanes = batch.chunks(per_lane);
                        reproducible.run(group, device, |_| {
                            let lane = lanes.next().unwrap_or_default();
                            let loss = job.techniques.autocast(|| network.loss(lane))?;
                            loss.backward()?;
                            Ok(loss.detach())
                        })?
                    }
                };
                if let Some(norm) = job.task.clip() {
                    model.clip(norm)?;
                }
                optimizers[0].step()?;
                Ok(losses)
            };
        let optimizers: &mut [&mut dyn Optimizer] = &mut [optimizer.as_mut()];
        let outputs = match captured {
            Some(captured) => captured.run(&batch.iter().collect::<Vec<_>>(), optimizers, step)?,
            None => step(batch, optimizers)?,
        };
        // This is often enough to measure batches in preparation, and rare enough to cost nothing.
        if self.progress.step.is_multiple_of(64) {
            self.look_outside();
        }
        self.progress.step += 1;
        if !self.device.has_values() {
            return Ok(None);
        }
        let own = outputs.iter().map(|loss| loss.item().map(|loss: f32| f64::from(loss)));
        let own = own.collect::<plimsoll::Result<Vec<f64>>>()?;
        Ok(Some((self.agree(&own)? / self.job.lanes() as f64) as f32))
    }

    fn mean_loss(&self) -> Option<f64> {
        let samples = self.progress.samples;
        (samples > 0).then(|| f64::from_bits(self.progress.loss_sum_bits) / samples as f64)
    }

    /// Computes the test metric, summed over samples, if the device has values. Returns `None` if a signal
    /// arrived.
    fn test(&mut self) -> Result<Option<Option<f64>>, Error> {
        if self.ended().is_some() {
            return Ok(None);
        }
        self.model.network.module().eval();
        let mut sums = Vec::new();
        for loader in &self.lanes.testing {
            let (mut sum, mut batches) = (0.0, 0);
            for batch in loader.epoch(self.progress.epoch) {
                if self.ended().is_some() {
                    return Ok(None);
                }
                let batch = batch?;
                let tensors = batch.to_device(self.device)?;
                let score = no_grad(|| self.job.techniques.autocast(|| self.model.network.score(&tensors)))?;
                sum += score.unwrap_or(0.0);
                loader.recycle(batch);
                batches += 1;
            }
            if self.model.gathers && self.device.has_values() {
                self.gather_with_others(loader, batches)?;
            }
            sums.push(sum);
        }
        self.look_outside();
        if !self.device.has_values() {
            return Ok(Some(None));
        }
        Ok(Some(Some(self.agree(&sums)?)))
    }

    /// Runs additional forward passes until this lane has run as many as the lane with the most test batches, because
    /// each pass gathers parameters from all ranks. Their scores do not count.
    fn gather_with_others(&self, loader: &DataLoader, batches: usize) -> Result<(), Error> {
        for _ in batches..self.lanes.most_test_batches {
            let Some(batch) = first_sample(loader).next() else { return Ok(()) };
            let tensors = batch?.to_device(self.device)?;
            no_grad(|| self.job.techniques.autocast(|| self.model.network.score(&tensors)))?;
        }
        Ok(())
    }

    /// Records the process's memory outside the allocator, if it is a new maximum.
    fn look_outside(&mut self) {
        self.outside_bytes = self.outside_bytes.max(memory::outside_bytes(self.device));
    }
}
