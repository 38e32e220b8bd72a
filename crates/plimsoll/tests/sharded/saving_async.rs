//! Asynchronous checkpoints of several ranks: a thread of each rank writes while the ranks train and use their collectives.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use plimsoll::ProcessGroup;
use plimsoll::serialize::{AsyncSave, checkpoints_in};

use super::saving::{Folder, kill, loaded, small, train_and};
use super::{Case, SHARDED, Training, Way, on_ranks};

/// Takes these steps, and saves after each of them on a thread.
pub(super) fn train(group: &ProcessGroup, run: &Path, steps: RangeInclusive<u64>, from: Option<&Path>) {
    let mut saving = AsyncSave::default();
    train_and(group, steps, from, |saved, step| saved.save_async(run, step, &mut saving).unwrap());
    saving.wait().unwrap();
}

/// The contents of all files in a folder.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<PathBuf> = vec![PathBuf::from("checkpoint.json")];
    for part in ["model", "optimizer"] {
        let names = fs::read_dir(folder.join(part)).unwrap().map(|entry| entry.unwrap().file_name());
        paths.extend(names.map(|name| Path::new(part).join(name)));
    }
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(folder.join(path)).unwrap())).collect()
}

#[test]
fn the_files_are_those_of_the_moment_of_the_call_and_training_has_the_same_bits() {
    let folder = Folder::new("async");
    for shard in SHARDED {
        let run = |name: &str| folder.0.join(format!("{shard:?}-{name}"));
        let values = on_ranks(3, |group| {
            let mut training = Training::new(group, Some(shard), Case::default(), 1).unwrap();
            training.steps(group, 0..2);
            training.save(&run("now"), 2);
            training.steps(group, 2..5);
            training.values().unwrap()
        });
        let found = on_ranks(3, |group| {
            let mut training = Training::new(group, Some(shard), Case::default(), 1).unwrap();
            training.steps(group, 0..2);
            let (mut saving, Way::Sharded(sharded)) = (AsyncSave::default(), &training.way) else {
                unreachable!()
            };
            let saved = sharded.checkpoint(&training.model, &training.adamw).unwrap();
            let saved = saved.generator("device", &training.device).value("step", 2);
            saved.save_async(run("later"), 2, &mut saving).unwrap();
            training.steps(group, 2..5);
            assert_eq!(saving.wait().unwrap(), Some(run("later").join("step-00000002")));
            assert!(saving.is_done() && saving.wait().unwrap().is_none());
            training.values().unwrap()
        });
        assert!(found == values, "{shard:?}: other values");
        assert!(contents(&run("now/latest")) == contents(&run("later/latest")), "{shard:?}: other files");
    }
}

#[test]
fn saves_follow_one_another_and_the_last_one_is_complete_at_the_end() {
    let folder = Folder::new("async-many");
    on_ranks(2, |group| train(group, &folder.0, 1..=9, None));
    let last = [9, 8].map(|step| folder.0.join(format!("step-0000000{step}")));
    assert_eq!(checkpoints_in(&folder.0), last);
    assert_eq!(loaded(&folder.0).unwrap(), 9);
    // Dropping the handle also waits.
    on_ranks(2, |group| {
        let (model, sharded, adamw) = small(group, 1);
        let mut saving = AsyncSave::default();
        let saved = sharded.checkpoint(&model, &adamw).unwrap().value("step", 10);
        saved.save_async(&folder.0, 10, &mut saving).unwrap();
    });
    assert_eq!(loaded(&folder.0).unwrap(), 10);
}

#[test]
fn all_ranks_get_the_error_of_one_at_the_next_save_and_then_save_again() {
    let folder = Folder::new("async-error");
    let errors = on_ranks(2, |group| {
        let (model, sharded, adamw) = small(group, 1);
        let mut saving = AsyncSave::default();
        let mut save = |run: &Path, step: u64| {
            let saved = sharded.checkpoint(&model, &adamw).unwrap().value("step", step);
            saved.save_async(run, step, &mut saving)
        };
        save(&folder.0, 1).unwrap();
        let elsewhere = folder.0.join("elsewhere");
        save(if group.rank() == 0 { &folder.0 } else { &elsewhere }, 2).unwrap();
        let error = save(&folder.0, 3).unwrap_err().to_string();
        save(&folder.0, 4).unwrap();
        saving.wait().unwrap();
        error
    });
    for error in errors {
        assert!(error.contains("step-00000002 was not saved: rank 1: "), "{error}");
    }
    let kept = [4, 1].map(|step| folder.0.join(format!("step-0000000{step}")));
    assert_eq!(checkpoints_in(&folder.0), kept);
    assert_eq!(loaded(&folder.0).unwrap(), 4);
}

#[test]
fn whenever_ranks_are_killed_the_last_checkpoint_is_complete() {
    kill(25, "async-kill", true);
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kills_lose_nothing() {
    kill(1000, "async-kills", true);
}
