//! The usual training loop: the same bits as a loop by hand, resumed or not, and what it refuses.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::data::{DataLoader, Digits, Split};
use plimsoll::nn::{Dropout, Flatten, Linear, Module, ReLU, Scope, Sequential};
use plimsoll::optim::lr_scheduler::{Better, CosineAnnealingLr, ExponentialLr, Scheduler};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer, clip_grad_norm_};
use plimsoll::serialize::{self, Strict};
use plimsoll::testing::LateConfig;
use plimsoll::{CpuConfig, DType, Device, Error, Result, SimConfig, Tensor, TrainError, Trainer};

fn model(device: &Device) -> Sequential {
    let build = Sequential::new(&Scope::new(device, 3)).add("flatten", Flatten::new);
    let build = build.and_then(|it| it.add("fc1", |s| Linear::new(s, 784, 32)));
    let build = build
        .and_then(|it| it.add("relu", ReLU::new))
        .and_then(|it| it.add("drop", |s| Dropout::new(s, 0.2)));
    build.and_then(|it| it.add("fc2", |s| Linear::new(s, 32, 10))).expect("the layers are small")
}

fn loaders() -> (DataLoader, DataLoader) {
    let split = Split::at(Arc::new(Digits::new(1, 130)), 100).expect("100 of 130");
    let loader = |data| DataLoader::new(data, 30).expect("batches of 30");
    (loader(split.train).shuffle(5), loader(split.test))
}

fn adamw(model: &Sequential) -> AdamW {
    AdamW::new(model.parameters(), AdamWOptions { lr: 3e-3, ..AdamWOptions::default() })
}

fn loss(model: &Sequential, batch: &[Tensor]) -> Result<Tensor> {
    model.forward(&batch[0])?.cross_entropy(&batch[1])
}

/// The loss and the accuracy of a batch.
fn metrics(model: &Sequential, batch: &[Tensor]) -> Result<Vec<(&'static str, Tensor)>> {
    let logits = model.forward(&batch[0])?;
    let accuracy = logits.argmax(1)?.eq(&batch[1])?.to_dtype(DType::F32)?.mean()?;
    Ok(vec![("loss", logits.cross_entropy(&batch[1])?), ("accuracy", accuracy)])
}

fn bits(model: &Sequential) -> Vec<u32> {
    let bits =
        |tensor: &Tensor| tensor.to_vec::<f32>().expect("values").into_iter().map(f32::to_bits).collect();
    model.parameters().iter().flat_map(|parameter| -> Vec<u32> { bits(parameter) }).collect()
}

/// A folder for a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("plimsoll-trainer-{name}-{}", std::process::id())))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn it_trains_as_a_loop_by_hand_does() -> std::result::Result<(), TrainError> {
    let (train, test) = loaders();
    let by_hand = {
        let device = Device::cpu_with(CpuConfig::default());
        let (model, mut curve_losses) = (model(&device), Vec::new());
        let mut adamw = adamw(&model);
        let mut steps = Scheduler::new(CosineAnnealingLr { t_max: 12, eta_min: 0.0 }, &mut adamw)?;
        for epoch in 0..3 {
            let (mut sum, mut samples) = (0.0, 0.0);
            for batch in train.epoch(epoch) {
                let batch = batch?.to_device(&device)?;
                let loss = loss(&model, &batch)?;
                adamw.zero_grad();
                loss.backward()?;
                clip_grad_norm_(&model.parameters(), 0.5, 2.0)?;
                adamw.step()?;
                steps.step(&mut adamw)?;
                let rows = batch[0].shape()[0] as f64;
                sum += f64::from(loss.item::<f32>()?) * rows;
                samples += rows;
            }
            curve_losses.push(sum / samples);
        }
        (bits(&model), curve_losses)
    };
    let device = Device::cpu_with(CpuConfig::default());
    let model = model(&device);
    let mut adamw = adamw(&model);
    let mut lines = Vec::new();
    let fitted = Trainer::new(&model, &mut adamw)
        .epochs(3)
        .clip_grad_norm(0.5)
        .schedule_each_step(CosineAnnealingLr { t_max: 12, eta_min: 0.0 })
        .validate(&test, |batch| metrics(&model, batch))
        .on_epoch(|epoch| lines.push(epoch.to_string()))
        .fit(&train, |batch| loss(&model, batch))?;
    assert_eq!(bits(&model), by_hand.0);
    let losses: Vec<f64> = fitted.epochs.iter().filter_map(|epoch| epoch.metric("loss")).collect();
    assert_eq!(losses, by_hand.1);
    assert_eq!((fitted.steps, fitted.stopped_early, lines.len()), (12, false, 3));
    // A mean over the samples of all batches, the last of which is smaller, in evaluation mode.
    model.eval();
    let batches = test.epoch(0).map(|batch| -> std::result::Result<f64, TrainError> {
        let batch = batch?.to_device(&device)?;
        let right = model.forward(&batch[0])?.argmax(1)?.eq(&batch[1])?.to_dtype(DType::F32)?.sum()?;
        Ok(f64::from(right.item::<f32>()?))
    });
    let right: f64 = batches.sum::<std::result::Result<f64, TrainError>>()?;
    let accuracy = fitted.epochs[2].metric("val_accuracy").expect("validated");
    assert!((accuracy - right / 30.0).abs() < 1e-6, "{accuracy} {right}");
    let text = fitted.to_string();
    assert!(text.starts_with("trained 3 epochs, 12 steps, in "), "{text}");
    assert!(text.contains("val_accuracy") && text.contains("fc1.weight (parameter)"), "{text}");
    let whole: u64 = fitted.memory.by_category.iter().map(|share| share.bytes).sum();
    assert_eq!(whole, fitted.memory.peak_allocated_bytes);
    Ok(())
}

#[test]
fn an_interrupted_training_resumes_with_the_same_bits() -> std::result::Result<(), TrainError> {
    let (train, test) = loaders();
    // Ends with an error after `until` losses.
    let run = |folder: &Path, until: u64| {
        let device = Device::cpu_with(CpuConfig::default());
        device.manual_seed(9);
        let model = model(&device);
        let (mut adamw, count) = (adamw(&model), Cell::new(0));
        let fitted = Trainer::new(&model, &mut adamw)
            .epochs(3)
            .schedule_each_epoch(ExponentialLr { gamma: 0.5 })
            .validate(&test, |batch| metrics(&model, batch))
            .save_to(folder)
            .save_every(3)
            .resume()
            .fit(&train, |batch| {
                count.set(count.get() + 1);
                if count.get() > until {
                    return Err(Error::Argument { op: "test", message: "interrupted".to_owned() });
                }
                loss(&model, batch)
            });
        (fitted, bits(&model), adamw.lrs())
    };
    let (whole, parts) = (Folder::new("whole"), Folder::new("parts"));
    let (fitted, expected, lrs) = run(whole.path(), u64::MAX);
    let expected_epochs = fitted?.epochs;
    // 4 batches in an epoch: interrupted after 2, 7 and 9 steps, which are saved up to 0, 6, and 9.
    for until in [2, 7, 3] {
        let error = run(parts.path(), until).0.expect_err("interrupted").to_string();
        assert!(error.contains("interrupted"), "{error}");
    }
    let (fitted, resumed, resumed_lrs) = run(parts.path(), u64::MAX);
    let fitted = fitted?;
    assert_eq!((resumed, resumed_lrs), (expected, lrs));
    assert_eq!(fitted.steps, 12);
    let metrics = |epochs: &[plimsoll::EpochMetrics]| {
        epochs.iter().map(|epoch| epoch.metrics.clone()).collect::<Vec<_>>()
    };
    assert_eq!(metrics(&fitted.epochs), metrics(&expected_epochs));
    // All epochs are done.
    let (again, after, _) = run(parts.path(), 0);
    assert_eq!((again?.steps, after), (12, run(whole.path(), 0).1));
    Ok(())
}

/// Trains with scores that are given by epoch.
fn with_scores(
    folder: &Path,
    scores: &[f64],
    patience: u64,
) -> std::result::Result<plimsoll::Fitted, TrainError> {
    let (train, test) = loaders();
    let device = Device::cpu_with(CpuConfig::default());
    let (model, epoch) = (model(&device), Cell::new(0));
    let mut adamw = adamw(&model);
    Trainer::new(&model, &mut adamw)
        .epochs(scores.len() as u64)
        .validate(&test, |_| {
            Ok(vec![("score", Tensor::full(&[], scores[epoch.get()], DType::F64, &device)?)])
        })
        .monitor("val_score", Better::Max)
        .early_stopping(patience)
        .save_to(folder)
        .on_epoch(|ended| {
            epoch.set(epoch.get() + 1);
            assert_eq!(ended.epoch, epoch.get() as u64);
        })
        .fit(&train, |batch| loss(&model, batch))
}

#[test]
fn it_stops_when_nothing_gets_better_and_keeps_the_best() -> std::result::Result<(), TrainError> {
    let folder = Folder::new("best");
    let fitted = with_scores(folder.path(), &[0.1, 0.7, f64::NAN, 0.7, 0.6, 0.9], 3)?;
    assert_eq!((fitted.epochs.len(), fitted.stopped_early), (5, true));
    assert_eq!(fitted.best().map(|best| best.epoch), Some(2));
    assert!(fitted.to_string().starts_with("stopped early after 5 epochs, 20 steps"), "{fitted}");
    // The best model is the one after two epochs.
    let two = Folder::new("two");
    with_scores(two.path(), &[0.1, 0.7], 3)?;
    let weights = |path: PathBuf| -> std::result::Result<Vec<u32>, TrainError> {
        let model = model(&Device::cpu());
        model.load_state_dict(serialize::open(path)?.as_ref(), Strict::Yes)?;
        Ok(bits(&model))
    };
    let best = weights(folder.path().join("best.safetensors"))?;
    assert_eq!(best, weights(two.path().join("best.safetensors"))?);
    // With other scores, every epoch is better.
    let rising = Folder::new("rising");
    assert!(!with_scores(rising.path(), &[f64::NAN, 0.1, 0.2, 0.3], 2)?.stopped_early);
    Ok(())
}

#[test]
fn a_captured_step_and_parts_of_a_batch_train_the_same() -> std::result::Result<(), TrainError> {
    let (train, _) = loaders();
    let run = |device: &Device,
               captures: bool,
               parts: usize|
     -> std::result::Result<(Vec<u32>, f64, u64), TrainError> {
        device.manual_seed(4);
        let model = model(device);
        model.get_submodule("drop")?.eval();
        let mut adamw = adamw(&model);
        let mut trainer = Trainer::new(&model, &mut adamw).epochs(3).accumulate(parts);
        if captures {
            trainer = trainer.capture();
        }
        let fitted = trainer.fit(&train, |batch| loss(&model, batch))?;
        let last = fitted.epochs[2].metric("loss").unwrap_or(f64::NAN);
        Ok((bits(&model), last, fitted.memory.peak_allocated_bytes))
    };
    let usual = run(&Device::late(LateConfig::default()), false, 1)?;
    assert_eq!(run(&Device::late(LateConfig::default()), true, 1)?.0, usual.0);
    let host = run(&Device::cpu_with(CpuConfig::default()), false, 1)?;
    let parts = run(&Device::cpu_with(CpuConfig::default()), false, 4)?;
    assert!((parts.1 - host.1).abs() < 1e-4 && parts.0 != host.0, "{} {}", parts.1, host.1);
    assert_eq!((host.0, host.1), (usual.0, usual.1));
    Ok(())
}

#[test]
fn a_simulated_device_trains_without_values() -> std::result::Result<(), TrainError> {
    let (train, test) = loaders();
    let run = |device: &Device| {
        let model = model(device);
        let mut adamw = adamw(&model);
        let trainer = Trainer::new(&model, &mut adamw).epochs(2).memory_limit(64 << 20);
        let trainer = trainer.validate(&test, |batch| metrics(&model, batch));
        trainer.early_stopping(1).fit(&train, |batch| loss(&model, batch))
    };
    let (simulated, host) =
        (run(&Device::sim(SimConfig::new(1 << 30)))?, run(&Device::cpu_with(CpuConfig::default()))?);
    assert_eq!((simulated.steps, simulated.epochs[1].metrics.len(), host.epochs[1].metrics.len()), (8, 0, 3));
    assert_eq!(simulated.memory.peak_allocated_bytes, host.memory.peak_allocated_bytes);
    assert_eq!(simulated.memory.limit_bytes, Some(64 << 20));
    Ok(())
}

#[test]
fn what_it_cannot_do_is_said_before_it_trains() -> std::result::Result<(), TrainError> {
    let (train, test) = loaders();
    let device = Device::cpu_with(CpuConfig::default());
    let folder = Folder::new("refused");
    let message =
        |result: std::result::Result<plimsoll::Fitted, TrainError>| result.expect_err("refused").to_string();
    let model = model(&device);
    let mut adamw = adamw(&model);
    let before = bits(&model);
    let mut none = AdamW::new(vec![], AdamWOptions::default());
    let text = message(Trainer::new(&model, &mut none).fit(&train, |batch| loss(&model, batch)));
    assert_eq!(text, "the optimizer has no parameters to train");
    let text = message(Trainer::new(&model, &mut adamw).resume().fit(&train, |batch| loss(&model, batch)));
    assert_eq!(text, "`resume` and `save_every` need a folder: call `save_to`");
    assert_eq!(bits(&model), before);
    let text =
        message(Trainer::new(&model, &mut adamw).early_stopping(0).fit(&train, |batch| loss(&model, batch)));
    assert_eq!(text, "`save_every` and `early_stopping` need at least 1");
    let trainer = Trainer::new(&model, &mut adamw).monitor("val_loss", Better::Min);
    let text = message(trainer.fit(&train, |batch| loss(&model, batch)));
    assert_eq!(text, "there is no metric \"val_loss\" to monitor: call `validate`");
    assert_eq!(bits(&model), before);
    // The metric does not exist, which shows after an epoch.
    let trainer = Trainer::new(&model, &mut adamw).validate(&test, |batch| metrics(&model, batch));
    let text = message(trainer.monitor("accuracy", Better::Max).fit(&train, |batch| loss(&model, batch)));
    assert_eq!(text, "there is no metric \"accuracy\" to monitor: there are loss, val_loss, val_accuracy");
    // The folder has a training.
    Trainer::new(&model, &mut adamw).save_to(folder.path()).fit(&train, |batch| loss(&model, batch))?;
    let saved = std::fs::read(folder.path().join("checkpoint.safetensors")).expect("saved");
    let text = message(
        Trainer::new(&model, &mut adamw).save_to(folder.path()).fit(&train, |batch| loss(&model, batch)),
    );
    assert!(text.ends_with("already has checkpoint.safetensors: call `resume` to continue that training, or save to another folder"), "{text}");
    assert_eq!(std::fs::read(folder.path().join("checkpoint.safetensors")).expect("saved"), saved);
    // A limit that cannot be met is an error of memory.
    let device = Device::cpu_with(CpuConfig::default());
    let big = Sequential::new(&Scope::new(&device, 3)).add("flatten", Flatten::new)?;
    let big = big.add("fc", |s| Linear::new(s, 784, 8192))?;
    let mut of_big = AdamW::new(big.parameters(), AdamWOptions::default());
    let trainer = Trainer::new(&big, &mut of_big).memory_limit(64 << 20);
    let result = trainer.fit(&train, |batch| loss(&big, batch));
    assert!(matches!(result, Err(TrainError::Tensor(Error::OutOfMemory(_)))), "{result:?}");
    Ok(())
}

#[test]
fn a_resumed_training_has_the_same_schedulers_and_may_have_more_patience()
-> std::result::Result<(), TrainError> {
    let folder = Folder::new("other");
    let scores = [0.5, 0.4, 0.3, 0.2];
    assert!(with_scores(folder.path(), &scores, 2)?.stopped_early);
    let (train, test) = loaders();
    let device = Device::cpu_with(CpuConfig::default());
    let model = model(&device);
    let mut adamw = adamw(&model);
    let trainer = Trainer::new(&model, &mut adamw).schedule_each_epoch(ExponentialLr { gamma: 0.5 });
    let trainer = trainer.save_to(folder.path()).resume().epochs(6);
    let error = trainer.fit(&train, |batch| loss(&model, batch)).expect_err("refused").to_string();
    assert_eq!(error, "the checkpoint was saved with other schedulers: give the same ones to resume");
    // It stopped after three epochs; without early stopping it goes on.
    let trainer = Trainer::new(&model, &mut adamw).save_to(folder.path()).resume().epochs(4);
    let trainer = trainer.validate(&test, |_| Ok(vec![("score", Tensor::zeros(&[], &device)?)]));
    let fitted = trainer.monitor("val_score", Better::Max).fit(&train, |batch| loss(&model, batch))?;
    assert_eq!((fitted.epochs.len(), fitted.stopped_early), (4, false));
    // The last epoch was no better, but all of them ran.
    let last = Folder::new("last");
    assert!(!with_scores(last.path(), &[0.5, 0.4], 1)?.stopped_early);
    Ok(())
}

#[test]
fn metrics_are_means_over_the_samples_that_have_them_and_modes_stay() -> std::result::Result<(), TrainError> {
    let (train, test) = loaders();
    let device = Device::cpu_with(CpuConfig::default());
    let model = model(&device);
    let frozen = model.get_submodule("drop")?;
    frozen.eval();
    let (mut adamw, batches) = (adamw(&model), Cell::new(0));
    let trainer = Trainer::new(&model, &mut adamw).validate(&train, |batch| {
        batches.set(batches.get() + 1);
        let one = Tensor::full(&[], f64::from(batches.get()), DType::F32, &device)?;
        // 30, 30, 30 and 10 samples: the second and the last batch have `some`.
        let some = (batches.get() % 2 == 0).then(|| ("some", one.clone()));
        assert_eq!(batch[0].shape()[0], if batches.get() == 4 { 10 } else { 30 });
        Ok([("all", one.clone())].into_iter().chain(some).collect())
    });
    let fitted = trainer.fit(&train, |batch| loss(&model, batch))?;
    assert_eq!(fitted.epochs[0].metric("val_all"), Some((30.0 * 6.0 + 40.0) / 100.0));
    assert_eq!(fitted.epochs[0].metric("val_some"), Some((60.0 + 40.0) / 40.0));
    // Dropout stays off: two forward passes are equal.
    let x = Tensor::ones(&[1, 1, 28, 28], &device)?;
    let pass = || model.forward(&x).and_then(|logits| logits.to_vec::<f32>());
    assert_eq!(pass()?, pass()?);
    let twice = Trainer::new(&model, &mut adamw).validate(&test, |_| {
        let one = Tensor::ones(&[], &device)?;
        Ok(vec![("a", one.clone()), ("a", one)])
    });
    let error = twice.fit(&train, |batch| loss(&model, batch)).expect_err("refused").to_string();
    assert!(error.contains("a batch has two metrics called `a`"), "{error}");
    Ok(())
}
