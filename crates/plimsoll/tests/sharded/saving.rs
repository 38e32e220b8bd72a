//! Checkpoints of several ranks: each rank saves its rows, any number of ranks can resume, and damaged or incomplete
//! checkpoints are noticed. PyTorch reads the files in the program's tests.

use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll::nn::{BatchNorm1d, Linear, Module, Scope, Sequential};
use plimsoll::optim::{AdamW, AdamWOptions, NAdam, NAdamOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::parallel::{FullyShardedDataParallel, Shard, fully_shard};
use plimsoll::serialize::{
    self, Checkpoint, DistributedCheckpoint, DistributedFiles, SerializeError, Strict, TensorSource,
};
use plimsoll::serialize::{check_shared, checkpoints_in};
use plimsoll::{Device, ProcessGroup, Tensor};

use super::{Case, Net, SHARDED, Training, Way, on_ranks, options, saving_async};

/// A folder that is deleted when the test ends.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-saving-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Training {
    fn sharded(&self) -> &FullyShardedDataParallel {
        match &self.way {
            Way::Sharded(sharded) => sharded,
            Way::Ddp(_) => unreachable!(),
        }
    }

    pub(super) fn save(&self, run: &Path, step: u64) -> PathBuf {
        let saved = self.sharded().checkpoint(&self.model, &self.adamw).unwrap();
        saved.generator("device", &self.device).value("step", step).save(run, step).unwrap()
    }

    pub(super) fn load(&mut self, run: &Path) -> u64 {
        let saved = Checkpoint::open(run).unwrap();
        let Way::Sharded(sharded) = &self.way else { unreachable!() };
        sharded.load_state_dict(&self.model, &saved.model_source(), Strict::Yes).unwrap();
        sharded.load_optimizer(&mut self.adamw, &saved).unwrap();
        saved.get("step").unwrap().as_u64().unwrap()
    }
}

#[test]
fn state_that_is_not_of_the_parameters_shape_is_saved_and_loaded_as_it_is() {
    let folder = Folder::new("nadam");
    let run = |group: &ProcessGroup, shard: Shard, steps: Range<usize>, load: Option<(Shard, bool)>| {
        let mut net = Net::new(&Device::cpu()).unwrap();
        let sharded = fully_shard(&mut net, group, options(shard)).unwrap();
        let mut nadam = NAdam::new(sharded.parameters(), NAdamOptions::default());
        let (file, one_file) = (|by: Shard| folder.0.join(format!("{by:?}")), "whole.safetensors");
        if let Some((by, from_folder)) = load {
            let folder = file(by);
            let path = if from_folder { folder } else { folder.join(one_file) };
            let saved = Checkpoint::open(&path).unwrap();
            sharded.load_state_dict(&net, &saved.model_source(), Strict::Yes).unwrap();
            if from_folder {
                sharded.load_optimizer(&mut nadam, &saved).unwrap();
            } else {
                let state = saved.read_optimizer_state(&Device::cpu()).unwrap();
                sharded.load_optimizer_state_dict(&mut nadam, &state).unwrap();
            }
        }
        let mut losses = Vec::new();
        for _ in steps {
            nadam.zero_grad();
            let loss = net.loss(group, true).unwrap();
            loss.backward().unwrap();
            nadam.step().unwrap();
            losses.push(loss.item::<f32>().unwrap());
        }
        if load.is_none() {
            sharded.checkpoint(&net, &nadam).unwrap().save(file(shard), 2).unwrap();
            let (model, state) =
                (sharded.state_dict(&net).unwrap(), sharded.optimizer_state_dict(&nadam).unwrap());
            if group.rank() == 0 {
                let whole = Checkpoint::default().model_state(&model).optimizer_state(state);
                whole.save(file(shard).join(one_file)).unwrap();
            }
        }
        losses
    };
    let expected = on_ranks(2, |group| run(group, Shard::Nothing, 0..4, None)[2..].to_vec());
    for by in [Shard::Parameters, Shard::OptimizerState] {
        on_ranks(2, |group| run(group, by, 0..2, None));
        for shard in SHARDED.into_iter().chain([Shard::Nothing]) {
            for from_folder in [true, false] {
                let found = on_ranks(2, |group| run(group, shard, 2..4, Some((by, from_folder))));
                assert_eq!(found, expected, "saved by {by:?}, resumed by {shard:?}, {from_folder}");
            }
        }
    }
}

#[test]
fn any_number_of_ranks_resumes_bit_for_bit_however_it_is_sharded() {
    let folder = Folder::new("resume");
    let case = Case { is_bfloat16: true, ..Case::default() };
    let expected = on_ranks(2, |group| {
        let mut training = Training::new(group, None, case, 1).unwrap();
        training.steps(group, 0..4);
        training.values().unwrap()
    });
    for (saved_by, size) in [(Shard::Parameters, 4), (Shard::Gradients, 3), (Shard::Nothing, 2)] {
        // The gradients of 2 ranks, no matter how many ranks save: each has the state after two steps of two ranks.
        let start = folder.0.join("start");
        on_ranks(2, |group| {
            let mut training = Training::new(group, Some(Shard::Parameters), case, 1).unwrap();
            training.steps(group, 0..2);
            training.save(&start, 2);
        });
        let run = folder.0.join(format!("{saved_by:?}"));
        let saved = on_ranks(size, |group| {
            let mut training = Training::new(group, Some(saved_by), case, 9).unwrap();
            training.load(&start);
            training.save(&run, 2)
        });
        assert!(saved.iter().all(|saved| *saved == run.join("step-00000002")), "{saved:?}");
        let count = fs::read_dir(run.join("latest/model")).unwrap().count();
        assert_eq!(count, size);
        for loaded_by in SHARDED.into_iter().chain([Shard::Nothing]) {
            let found = on_ranks(2, |group| {
                let mut training = Training::new(group, Some(loaded_by), case, 7).unwrap();
                assert_eq!(training.load(&run), 2);
                training.steps(group, 2..4);
                training.values().unwrap()
            });
            assert!(found == expected, "saved by {saved_by:?} of {size}, resumed by {loaded_by:?}");
        }
    }
    // One process, without ranks.
    let run = folder.0.join("Parameters");
    let mut one = Training::new(&ProcessGroup::threads(1)[0], None, case, 3).unwrap();
    let saved = Checkpoint::open(&run).unwrap();
    saved.load_model(&one.model).unwrap();
    saved.load_optimizer(&mut one.adamw).unwrap();
    saved.load_generator("device", &one.device).unwrap();
    let before = on_ranks(2, |group| {
        let mut training = Training::new(group, Some(Shard::Parameters), case, 1).unwrap();
        training.steps(group, 0..2);
        let state = training.sharded().optimizer_state_dict(&training.adamw).unwrap();
        (training.values().unwrap(), state)
    });
    assert!(one.values().unwrap() == before[0].0);
    let (found, expected) = (one.adamw.state_dict(), &before[0].1);
    assert_eq!(found.param_groups, expected.param_groups);
    for (number, state) in &expected.state {
        assert_eq!(found.state[number].step, state.step);
        for (key, tensor) in &state.tensors {
            let found = &found.state[number].tensors[key];
            assert!(found.to_bytes().unwrap() == tensor.to_bytes().unwrap(), "{key} of {number}");
        }
    }
}

#[test]
fn consolidated_files_are_those_of_one_process() {
    let folder = Folder::new("consolidate");
    let whole = on_ranks(3, |group| {
        let mut training = Training::new(group, Some(Shard::Parameters), Case::default(), 1).unwrap();
        training.steps(group, 0..1);
        training.save(&folder.0, 1);
        training.sharded().state_dict(&training.model).unwrap()
    });
    serialize::save(&whole[0], folder.0.join("expected.safetensors")).unwrap();
    let files = DistributedFiles::open(&folder.0).unwrap();
    files.verify().unwrap();
    files.consolidate(folder.0.join("found.safetensors")).unwrap();
    let read = |name: &str| fs::read(folder.0.join(name)).unwrap();
    assert!(read("found.safetensors") == read("expected.safetensors"));
    // Every way of naming it opens the same tensors.
    for path in ["", "latest", "latest/model", "step-00000001"] {
        assert_eq!(serialize::open(folder.0.join(path)).unwrap().names(), files.names(), "{path}");
    }
}

#[test]
fn a_rank_reads_only_its_rows() {
    let folder = Folder::new("rows");
    on_ranks(2, |group| {
        // 4 MiB, so 2 MiB on each rank.
        let mut model = Linear::new(&Scope::new(&Device::cpu(), 1), 1024, 1024).unwrap();
        let sharded = fully_shard(&mut model, group, options(Shard::Parameters)).unwrap();
        let sgd = Sgd::new(sharded.parameters(), SgdOptions::default());
        sharded.checkpoint(&model, &sgd).unwrap().save(&folder.0, 1).unwrap();
    });
    let files = DistributedFiles::open(&folder.0).unwrap();
    let device = Device::cpu();
    let whole = files.tensor("weight", &device).unwrap().to_vec::<f32>().unwrap();
    for rows in [0..1024, 0..1, 100..700, 511..514, 1023..1024, 5..5] {
        let found = files.rows("weight", rows.clone(), &device).unwrap();
        assert_eq!(found.shape(), [rows.len(), 1024]);
        assert!(found.to_vec::<f32>().unwrap() == whole[rows.start * 1024..rows.end * 1024], "{rows:?}");
    }
    let error = files.rows("weight", 1000..1025, &device).unwrap_err().to_string();
    assert!(error.contains("`weight` has 1024 rows, not 1000 to 1025"), "{error}");
    // The last byte of the second file's weight is damaged, which is noticed only by reading near it.
    let file = folder.0.join("latest/model/shard-00002-model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() - 1024 * 4 - 1; // the bias comes last
    bytes[end] ^= 1;
    fs::write(&file, bytes).unwrap();
    for (rows, is_damaged) in [(0..600, false), (0..1024, true), (1020..1024, true)] {
        let found = files.rows("weight", rows.clone(), &device);
        assert_eq!(matches!(found, Err(SerializeError::Damaged { .. })), is_damaged, "{rows:?}: {found:?}");
    }
}

/// A model of which a checkpoint is small, with buffers, a scalar's worth of rows, and tensors that one rank has.
pub(super) fn small(group: &ProcessGroup, seed: u64) -> (Sequential, FullyShardedDataParallel, AdamW) {
    let mut model = Sequential::new(&Scope::new(&Device::cpu(), seed))
        .add("fc", |s| Linear::new(s, 3, 2))
        .and_then(|m| m.add("norm", |s| BatchNorm1d::new(s, 2)))
        .unwrap();
    let sharded = fully_shard(&mut model, group, options(Shard::Parameters)).unwrap();
    let adamw = AdamW::new(sharded.parameters(), AdamWOptions { lr: 0.1, ..AdamWOptions::default() });
    (model, sharded, adamw)
}

/// Takes these steps, from the start or a checkpoint. Saves after each step from `first` onward.
fn train(group: &ProcessGroup, run: &Path, steps: RangeInclusive<u64>, from: Option<&Path>, first: u64) {
    train_and(group, steps, from, |saved, step| {
        if step >= first {
            saved.save(run, step).unwrap();
        }
    });
}

/// Takes these steps, from the start or a checkpoint, and gives `save` a checkpoint of each.
pub(super) fn train_and(
    group: &ProcessGroup,
    steps: RangeInclusive<u64>,
    from: Option<&Path>,
    mut save: impl FnMut(DistributedCheckpoint, u64),
) {
    let (model, sharded, mut adamw) = small(group, 1);
    if let Some(from) = from {
        load(from, &model, &sharded, &mut adamw).unwrap();
    }
    for step in steps {
        let x = Tensor::full(&[2, 3], step as f64, plimsoll::DType::F32, &Device::cpu()).unwrap();
        let noise =
            Tensor::from_slice(&[0.5f32, -1.0, 2.0, 1.5, 0.25, -2.0], &[2, 3], &Device::cpu()).unwrap();
        let out = model.forward(&x.mul(&noise).unwrap()).unwrap();
        adamw.zero_grad();
        out.sub(Tensor::ones(&[2, 2], &Device::cpu()).unwrap())
            .unwrap()
            .square()
            .unwrap()
            .mean()
            .unwrap()
            .backward()
            .unwrap();
        adamw.step().unwrap();
        save(sharded.checkpoint(&model, &adamw).unwrap().value("step", step), step);
    }
}

fn load(
    run: &Path,
    model: &Sequential,
    sharded: &FullyShardedDataParallel,
    adamw: &mut AdamW,
) -> Result<u64, SerializeError> {
    let saved = Checkpoint::open(run)?;
    sharded.load_state_dict(model, &saved.model_source(), Strict::Yes)?;
    sharded.load_optimizer(adamw, &saved)?;
    Ok(saved.get("step").and_then(|step| step.as_u64()).unwrap())
}

/// Loads on one rank, which reads every byte.
pub(super) fn loaded(run: &Path) -> Result<u64, SerializeError> {
    let (model, sharded, mut adamw) = small(&ProcessGroup::threads(1)[0], 2);
    load(run, &model, &sharded, &mut adamw)
}

#[test]
fn every_flipped_bit_is_noticed_with_its_tensor_its_file_and_an_older_checkpoint() {
    let folder = Folder::new("flips");
    on_ranks(2, |group| train(group, &folder.0, 1..=2, None, 1));
    let latest = folder.0.join("step-00000002");
    assert_eq!(checkpoints_in(&folder.0), [latest.clone(), folder.0.join("step-00000001")]);
    assert_eq!(loaded(&folder.0).unwrap(), 2);
    let mut files = vec![latest.join("checkpoint.json")];
    for part in ["model", "optimizer"] {
        files.extend(
            (1..=2).map(|n| latest.join(format!("{part}/shard-{n:05}-model-00001-of-00001.safetensors"))),
        );
    }
    let mut tensors = 0;
    for file in files {
        let bytes = fs::read(&file).unwrap();
        // Bits all over the file; `flipped_bits.rs` flips all bits of the file of one process.
        for at in (0..bytes.len()).step_by(5) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&file, damaged).unwrap();
            let error = loaded(&folder.0).expect_err(&format!("byte {at} of {}", file.display())).to_string();
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(error.contains(name), "byte {at}: {error}");
            assert!(
                error.contains("the last good checkpoint is") && error.contains("step-00000001"),
                "{error}"
            );
            tensors += usize::from(error.contains(": `") && error.contains("` is damaged"));
        }
        let damaged = bytes[..bytes.len() - 1].to_vec();
        fs::write(&file, damaged).unwrap();
        assert!(loaded(&folder.0).is_err(), "{} cut short", file.display());
        fs::remove_file(&file).unwrap();
        // Without `checkpoint.json`, it is not a checkpoint, so the older one is used.
        let found = loaded(&folder.0);
        assert!(found.is_err() || found.is_ok_and(|step| step == 1) && file.ends_with("checkpoint.json"));
        fs::write(&file, bytes).unwrap();
    }
    assert!(tensors > 10, "{tensors} flips were in tensors");
    // Files of another save are not mistaken for those of this one.
    let file = "model/shard-00001-model-00001-of-00001.safetensors";
    fs::copy(folder.0.join("step-00000001").join(file), latest.join(file)).unwrap();
    assert!(matches!(loaded(&folder.0), Err(SerializeError::Damaged { .. })));
}

#[test]
fn older_checkpoints_go_after_the_new_one_is_complete() {
    let folder = Folder::new("older");
    let steps = |folder: &Path| {
        let names = checkpoints_in(folder).into_iter().map(|path| path.file_name().unwrap().to_owned());
        names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    on_ranks(2, |group| train(group, &folder.0, 1..=4, None, 1));
    assert_eq!(steps(&folder.0), ["step-00000004", "step-00000003"]);
    // Files left by a killed save, and files that are not ours.
    fs::create_dir_all(folder.0.join("step-00000009/model")).unwrap();
    fs::create_dir_all(folder.0.join("step-mine")).unwrap();
    assert_eq!(loaded(&folder.0).unwrap(), 4);
    // Training that goes back to an older step does not write into a complete checkpoint.
    let from = folder.0.join("step-00000003");
    on_ranks(1, |group| train(group, &folder.0, 4..=4, Some(&from), 4));
    assert_eq!(steps(&folder.0), ["step-00000004-2", "step-00000004"]);
    assert!(!folder.0.join("step-00000009").exists() && folder.0.join("step-mine").exists());
    // A save that is complete, but for which the link was not set.
    fs::remove_file(folder.0.join("latest")).unwrap();
    assert_eq!(loaded(&folder.0).unwrap(), 4);
}

#[test]
fn all_ranks_get_the_error_of_one_that_cannot_save() {
    let folder = Folder::new("error");
    on_ranks(2, |group| train(group, &folder.0, 1..=1, None, 1));
    let errors = on_ranks(2, |group| {
        let (model, sharded, adamw) = small(group, 1);
        let own = if group.rank() == 0 { folder.0.clone() } else { folder.0.join("elsewhere") };
        sharded.checkpoint(&model, &adamw).unwrap().save(own, 2).unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("step-00000002 was not saved: rank 1: "), "{error}");
        assert!(error.contains("what was saved there before is unchanged"), "{error}");
    }
    assert!(!folder.0.join("step-00000002").exists());
    assert_eq!(loaded(&folder.0).unwrap(), 1);
    // A file where the folder should be.
    let errors = on_ranks(2, |group| {
        let (model, sharded, adamw) = small(group, 1);
        let run = folder.0.join("latest/checkpoint.json");
        sharded.checkpoint(&model, &adamw).unwrap().save(run, 2).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("was not saved: rank 0: ")), "{errors:?}");
}

#[test]
fn a_folder_that_the_ranks_do_not_share_is_noticed() {
    let folder = Folder::new("shared");
    let other = Folder::new("shared-other");
    let found = on_ranks(3, |group| {
        check_shared(&folder.0, group).unwrap();
        let own = if group.rank() == 2 { &other.0 } else { &folder.0 };
        check_shared(own, group).unwrap_err().to_string()
    });
    for error in found {
        assert!(error.contains("rank 2 sees a different folder from rank 0"), "{error}");
    }
    let found = on_ranks(2, |group| {
        let own = if group.rank() == 1 { folder.0.join("missing") } else { folder.0.clone() };
        check_shared(own, group).unwrap_err().to_string()
    });
    assert!(found[0].contains("rank 1 cannot write there") && found[1].contains("No such file"), "{found:?}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "tokens stay");
}

const CHILD: &str = "PLIMSOLL_SAVING_CHILD";
const CHILD_IS_ASYNC: &str = "PLIMSOLL_SAVING_ASYNC";

#[test]
#[ignore = "the child of another test: two ranks save until it is killed"]
fn child_that_saves_for_ever() {
    let Some(run) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let from = checkpoints_in(&run).into_iter().next();
    let first = from.as_ref().map_or(0, |from| loaded(from).unwrap());
    let (is_async, steps) = (std::env::var_os(CHILD_IS_ASYNC).is_some(), first + 1..=u64::MAX);
    on_ranks(2, |group| match is_async {
        true => saving_async::train(group, &run, steps.clone(), from.as_deref()),
        false => train(group, &run, steps.clone(), from.as_deref(), 0),
    });
}

/// Repeatedly kills two constantly saving ranks, at different moments during a save. Each time, the last checkpoint
/// loads, has the state of its step, and is not older than the one before.
pub(super) fn kill(times: u64, name: &str, is_async: bool) {
    let folder = Folder::new(name);
    let run = folder.0.join("run");
    let mut last = 0;
    for round in 0..times {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sharded::saving::child_that_saves_for_ever", "--ignored", "--nocapture"]);
        if is_async {
            command.env(CHILD_IS_ASYNC, "1");
        }
        let mut child = command.env(CHILD, &run).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Wait for one more save, then for part of the next ones.
        let start = Instant::now();
        let newest = || checkpoints_in(&run).into_iter().next();
        let before = newest();
        while newest() == before {
            assert!(start.elapsed() < Duration::from_secs(60), "round {round}: nothing is saved");
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let step = loaded(&run).unwrap();
        assert!(step > last, "round {round}: step {step} after {last}");
        last = step;
    }
    // After many kills and resumptions, the state is the same as without them.
    let whole = folder.0.join("whole");
    on_ranks(2, |group| train(group, &whole, 1..=last, None, last));
    let values = |run: &Path| {
        let saved = Checkpoint::open(run).unwrap();
        let model = saved.model_source();
        let value = |name: &String| model.tensor(name, &Device::cpu()).unwrap().to_bytes().unwrap();
        model.names().iter().map(value).collect::<Vec<_>>()
    };
    assert!(values(&run) == values(&whole), "other values after step {last}");
}

#[test]
fn whenever_ranks_are_killed_the_last_checkpoint_is_complete() {
    kill(25, "kill", false);
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kills_lose_nothing() {
    kill(1000, "kills", false);
}
