//! Blocks of the backward pass, and the forward lines that they belong to, compared with the lines that PyTorch's
//! anomaly mode records (`snapshots/backward/make.py`).

use plimsoll_trace::explain::{DeviceExplanation, FoundBy, Options, Origins};

use crate::files;

/// The number of correct results, and of all.
type Right = [u64; 2];

/// Scores by blocks, by bytes, and for the blocks whose line is called likely or certain.
#[derive(Debug, Default)]
struct Score {
    blocks: Right,
    bytes: Right,
    likely: Right,
    certain: Right,
}

fn percent([right, all]: Right) -> u64 {
    100 * right / all.max(1)
}

fn score(file: &str) -> Score {
    let snapshot = files::open(&files::here("tests/snapshots/backward").join(format!("{file}.pickle.gz")));
    let origins = Origins::of(&snapshot);
    let device = DeviceExplanation::of(&snapshot, 0, &origins, Options::default());
    let requests = device.timeline.lives.iter().filter_map(|life| life.born);
    let lines = device.forward_lines_of(device.analysis(&snapshot, &origins), requests);
    let mut score = Score::default();
    for life in &device.timeline.lives {
        let node = life.user_metadata.map_or("", |text| snapshot.texts.get(text));
        let Some(truth) = line_of(node).filter(|_| origins.get(life.stack).line.is_none()) else { continue };
        let found = lines.get(life.born);
        let is_right = found.is_some_and(|found| {
            let frame = snapshot.stacks.get_frame(found.frame);
            truth == (snapshot.texts.get(frame.filename), frame.line)
        });
        let add = |sum: &mut Right, amount: u64| {
            *sum = [sum[0] + if is_right { amount } else { 0 }, sum[1] + amount];
        };
        add(&mut score.blocks, 1);
        add(&mut score.bytes, life.bytes);
        if found.is_some_and(|found| found.by == FoundBy::Operator) {
            add(&mut score.likely, 1);
        }
        if found.is_some_and(|found| found.by == FoundBy::Recorded) {
            add(&mut score.certain, 1);
        }
    }
    score
}

/// The line in a node's metadata: `NODE@FILE:LINE`.
fn line_of(node: &str) -> Option<(&str, i64)> {
    let (file, line) = node.split_once('@')?.1.rsplit_once(':')?;
    Some((file, line.parse().ok()?))
}

/// Checks that at least these percentages of the blocks, and of the bytes, are correct.
fn check(file: &str, blocks: u64, bytes: u64) {
    let score = score(file);
    assert!(score.blocks[1] > 20, "{file}: {score:?}");
    assert!(percent(score.blocks) >= blocks && percent(score.bytes) >= bytes, "{file}: {score:?}");
}

#[test]
fn in_anomaly_mode_the_recording_has_the_forward_line_of_every_backward_block() {
    for program in ["mlp", "gpt"] {
        let score = score(&format!("{program}.anomaly"));
        assert!(score.blocks[1] > 20 && score.blocks[0] == score.blocks[1], "{program}: {score:?}");
        assert_eq!(score.certain, score.blocks, "{program}");
    }
}

#[test]
fn a_forward_stack_survives_writing_and_reading() {
    let path = files::here("tests/snapshots/backward/mlp.anomaly.pickle.gz");
    let before = files::open(&path);
    let copy = std::env::temp_dir().join(format!("plimsoll-forward-{}.pickle", std::process::id()));
    plimsoll_trace::output::save(&before, &copy, plimsoll_trace::Sharing::Equal).expect("a file");
    let after = files::open(&copy);
    std::fs::remove_file(&copy).expect("the file");
    let lines = |snapshot: &plimsoll_trace::snapshot::Snapshot| -> Vec<Option<(String, i64)>> {
        let forward = |event: &plimsoll_trace::snapshot::Event| {
            let frame = *snapshot.stacks.frames(snapshot.stacks.forward(event.stack?)?).next()?;
            Some((snapshot.texts.get(frame.filename).to_owned(), frame.line))
        };
        snapshot.trace(0).iter().map(forward).collect()
    };
    assert!(lines(&before).iter().flatten().count() > 20);
    assert_eq!(lines(&before), lines(&after));
}

#[test]
fn frames_of_cpp_show_the_forward_line_of_a_backward_block() {
    check("mlp.all", 100, 100);
    check("cnn.all", 100, 100);
    check("gpt.all", 90, 95);
}

#[test]
fn products_under_autocast_and_selections_have_a_forward_line_also_where_no_variable_keeps_the_loss() {
    check("amp.all", 90, 90);
}

#[test]
fn without_frames_of_cpp_order_and_sizes_show_the_forward_line_of_most_backward_blocks() {
    check("mlp.python", 80, 90);
    check("cnn.python", 60, 60);
    check("gpt.python", 60, 70);
}

#[test]
fn a_line_called_likely_is_right_nine_times_of_ten_and_one_by_order_alone_is_called_a_guess() {
    for program in ["mlp", "cnn", "gpt", "amp"] {
        let all = score(&format!("{program}.all"));
        assert!(percent(all.likely) >= 90, "{program}: {all:?}");
        assert_eq!(score(&format!("{program}.python")).likely, [0, 0], "{program}");
    }
}
