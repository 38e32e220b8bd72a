//! Checkpoints: training resumes bit for bit, and a killed process or a full disk leaves a valid file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::data::{DataLoader, Digits};
use plimsoll::nn::{Conv2d, Flatten, Linear, MaxPool2d, Module, ReLU, Scope, Sequential};
use plimsoll::optim::lr_scheduler::{CosineAnnealingLr, Scheduler};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::serialize::{AsyncSave, Checkpoint, SerializeError};
use plimsoll::testing::LateConfig;
use plimsoll::{CpuConfig, Device, Tensor, pinned};

use crate::world::cnn;

/// A folder that is deleted when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-checkpoint-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const BATCHES: u64 = 4;

/// Training on synthetic digits with noise from the device's random generator.
struct Training {
    device: Device,
    model: Sequential,
    optimizer: AdamW,
    scheduler: Scheduler<CosineAnnealingLr>,
    loader: DataLoader,
    epoch: u64,
    batch: u64,
}

impl Training {
    fn new(seed: u64) -> Training {
        let device = Device::cpu_with(CpuConfig::default());
        device.manual_seed(seed);
        let model = Sequential::new(&Scope::new(&device, seed))
            .add("conv", |s| Conv2d::new(s, 1, 2, 5))
            .and_then(|m| m.add("relu", ReLU::new))
            .and_then(|m| m.add("pool", |s| MaxPool2d::new(s, 4)))
            .and_then(|m| m.add("flatten", Flatten::new))
            .and_then(|m| m.add("fc", |s| Linear::new(s, 2 * 6 * 6, 10)))
            .unwrap();
        let mut optimizer =
            AdamW::new(model.parameters(), AdamWOptions { lr: 0.01, ..AdamWOptions::default() });
        let curve = CosineAnnealingLr { t_max: 7, eta_min: 1e-4 };
        let scheduler = Scheduler::new(curve, &mut optimizer).unwrap();
        let data = Arc::new(Digits::new(3, 16 * BATCHES as usize));
        let loader = DataLoader::new(data, 16).unwrap().shuffle(5);
        Training { device, model, optimizer, scheduler, loader, epoch: 0, batch: 0 }
    }

    fn step(&mut self) {
        let batch = self.loader.epoch(self.epoch).nth(self.batch as usize).unwrap().unwrap();
        let tensors = batch.to_device(&self.device).unwrap();
        let noise = Tensor::randn(tensors[0].shape(), &self.device).unwrap().mul_scalar(0.1).unwrap();
        let images = (&tensors[0] + &noise).unwrap();
        let loss = self.model.forward(&images).unwrap().cross_entropy(&tensors[1]).unwrap();
        self.optimizer.zero_grad();
        loss.backward().unwrap();
        self.optimizer.step().unwrap();
        self.scheduler.step(&mut self.optimizer).unwrap();
        self.batch += 1;
        if self.batch == BATCHES {
            (self.epoch, self.batch) = (self.epoch + 1, 0);
        }
    }

    fn save(&self, path: &Path) -> Result<(), SerializeError> {
        Checkpoint::default()
            .model(&self.model)
            .optimizer(&self.optimizer)
            .generator("device", &self.device)
            .value("scheduler", self.scheduler.state_dict())
            .value("epoch", self.epoch)
            .value("batch", self.batch)
            .save(path)
    }

    fn load(&mut self, path: &Path) -> Result<(), SerializeError> {
        let saved = Checkpoint::open(path)?;
        saved.load_model(&self.model)?;
        saved.load_optimizer(&mut self.optimizer)?;
        saved.load_generator("device", &self.device)?;
        self.scheduler.load_state_dict(saved.get("scheduler").unwrap())?;
        self.epoch = saved.get("epoch").unwrap().as_u64().unwrap();
        self.batch = saved.get("batch").unwrap().as_u64().unwrap();
        Ok(())
    }

    fn bits(&self) -> Vec<Vec<u8>> {
        self.model.parameters().iter().map(|parameter| parameter.to_bytes().unwrap()).collect()
    }
}

#[test]
fn a_resumed_training_is_the_whole_one_bit_for_bit() {
    let folder = Folder::new("resume");
    let path = folder.0.join("last.ckpt");
    let mut whole = Training::new(1);
    // In the middle of an epoch.
    (0..BATCHES + 2).for_each(|_| whole.step());
    whole.save(&path).unwrap();
    let mut resumed = Training::new(2);
    assert_ne!(resumed.bits(), whole.bits());
    resumed.load(&path).unwrap();
    assert_eq!(resumed.bits(), whole.bits());
    for _ in 0..BATCHES + 3 {
        whole.step();
        resumed.step();
    }
    assert_eq!(resumed.bits(), whole.bits());
    assert_eq!(resumed.optimizer.lrs(), whole.optimizer.lrs());
    assert_eq!((resumed.epoch, resumed.batch), (whole.epoch, whole.batch));
}

#[test]
fn a_checkpoint_of_another_model_is_refused_with_all_that_differs() {
    let folder = Folder::new("other");
    let path = folder.0.join("last.ckpt");
    let training = Training::new(1);
    training.save(&path).unwrap();
    let other = cnn(&Device::cpu());
    let before = other.parameters()[0].to_bytes().unwrap();
    let Err(SerializeError::Keys(keys)) = Checkpoint::open(&path).unwrap().load_model(&other) else {
        panic!("it was not refused")
    };
    assert_eq!(keys.missing, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
    assert_eq!(keys.unexpected, ["fc.weight", "fc.bias"]);
    assert_eq!(keys.misshaped.len(), 2);
    assert_eq!(other.parameters()[0].to_bytes().unwrap(), before);
    plimsoll::serialize::save(&other.state_dict(), &path).unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("not a checkpoint: it has tensors only"), "{error}");
}

const CHILD: &str = "PLIMSOLL_CHECKPOINT_CHILD";

/// Runs one of this file's ignored tests in a separate process.
fn child(test: &str, path: &Path, before: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let program: Vec<&str> = before.iter().copied().chain([exe.to_str().unwrap()]).collect();
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    command.args(["--exact", &format!("checkpoint::{test}"), "--ignored", "--nocapture"]);
    command.env(CHILD, path).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
#[ignore = "the child of another test: saves until it is killed"]
fn child_that_saves_for_ever() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut training = Training::new(1);
    loop {
        training.step();
        training.save(Path::new(&path)).unwrap();
    }
}

#[test]
fn whenever_the_process_is_killed_the_last_good_checkpoint_loads() {
    let folder = Folder::new("kill");
    let path = folder.0.join("last.ckpt");
    Training::new(1).save(&path).unwrap();
    let mut furthest = 0;
    for round in 0..12u64 {
        let mut process = child("child_that_saves_for_ever", &path, &[]).spawn().unwrap();
        // The process is killed at times from before its first save to the middle of a later one.
        std::thread::sleep(Duration::from_millis(40 + 37 * round));
        process.kill().unwrap();
        process.wait().unwrap();
        let mut training = Training::new(2);
        training.load(&path).unwrap();
        let step = training.epoch * BATCHES + training.batch;
        furthest = furthest.max(step);
        // The file has the state after that step, not a mixture of two steps.
        let mut again = Training::new(1);
        (0..step).for_each(|_| again.step());
        assert_eq!(training.bits(), again.bits(), "after step {step}");
    }
    assert!(furthest > 0, "no child came to save");
}

#[test]
#[ignore = "the child of another test: saves once, where there is no room"]
fn child_without_room() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut training = Training::new(1);
    training.step();
    let error = training.save(Path::new(&path)).unwrap_err().to_string();
    assert!(
        error.contains("was not saved: ") && error.contains("what was saved there before is unchanged"),
        "{error}"
    );
}

#[test]
fn without_room_on_the_disk_the_old_checkpoint_stays() {
    let folder = Folder::new("full");
    let path = folder.0.join("last.ckpt");
    let mut training = Training::new(1);
    training.step();
    training.save(&path).unwrap();
    let before = fs::read(&path).unwrap();
    // The limit on file size is a few kilobytes, so each write fails as on a full disk.
    let limited = ["sh", "-c", "trap '' XFSZ; ulimit -f 4; exec \"$@\"", "sh"];
    assert!(before.len() > 4096, "{} bytes", before.len());
    assert!(child("child_without_room", &path, &limited).status().unwrap().success());
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "the partial file is removed");
    let missing = Training::new(1).save(&folder.0.join("none/last.ckpt")).unwrap_err().to_string();
    assert!(missing.contains("none/last.ckpt was not saved: No such file"), "{missing}");
}

/// Takes one step.
fn step(model: &Linear, sgd: &mut Sgd) -> Checkpoint {
    sgd.zero_grad();
    let x = Tensor::ones(&[1, 64], model.weight().device()).unwrap();
    model.forward(&x).unwrap().sum().unwrap().backward().unwrap();
    sgd.step().unwrap();
    Checkpoint::default().model(model).optimizer(sgd)
}

#[test]
fn an_asynchronous_save_has_the_values_of_the_moment_of_the_call() {
    let folder = Folder::new("async");
    let [now, later] = ["now", "later"].map(|name| folder.0.join(name));
    // A late device computes after the host has gone on, like a GPU.
    for device in [Device::cpu(), Device::late(LateConfig::default())] {
        let build = || {
            let model = Linear::new(&Scope::new(&device, 1), 64, 32).unwrap();
            let options = SgdOptions { lr: 0.5, momentum: 0.9, ..SgdOptions::default() };
            let sgd = Sgd::new(model.parameters(), options);
            (model, sgd)
        };
        let (model, mut sgd) = build();
        step(&model, &mut sgd).save(&now).unwrap();
        let (model, mut sgd) = build();
        let (mut saving, pinned) =
            (AsyncSave::default(), || pinned::host_memory_stats()["active_requests.allocated"]);
        let before = pinned();
        step(&model, &mut sgd).save_async(&later, &mut saving).unwrap();
        assert!(pinned() >= before + 4, "two parameters and their momentum");
        (0..3).for_each(|_| drop(step(&model, &mut sgd)));
        assert_eq!(saving.wait().unwrap(), Some(later.clone()));
        assert!(fs::read(&now).unwrap() == fs::read(&later).unwrap(), "{device}");
    }
}

#[test]
fn an_asynchronous_save_that_fails_is_reported_and_leaves_the_last_one() {
    let folder = Folder::new("async-error");
    let model = Linear::new(&Scope::new(&Device::cpu(), 1), 4, 2).unwrap();
    let (good, bad) = (folder.0.join("good"), folder.0.join("missing/bad"));
    let save = |epoch: u64, path: &Path, saving: &mut AsyncSave| {
        Checkpoint::default().model(&model).value("epoch", epoch).save_async(path, saving)
    };
    let mut saving = AsyncSave::default();
    save(1, &good, &mut saving).unwrap();
    save(2, &bad, &mut saving).unwrap();
    let error = save(3, &good, &mut saving).unwrap_err();
    assert!(matches!(error, SerializeError::NotSaved { .. }), "{error}");
    assert!(saving.wait().unwrap().is_none());
    assert_eq!(Checkpoint::open(&good).unwrap().get("epoch"), Some(&1.into()));
    // The last one of several waits for those before it.
    for epoch in 4..20 {
        save(epoch, &good, &mut saving).unwrap();
    }
    drop(saving);
    assert_eq!(Checkpoint::open(&good).unwrap().get("epoch"), Some(&19.into()));
}
