//! The peaks of the phases and steps of programs that we ran, compared with the total peak.

use plimsoll_alloc::Category;
use plimsoll_trace::explain::{DeviceExplanation, Options, Origins, PassKind, Phase};
use plimsoll_trace::snapshot::Snapshot;

use crate::files;

fn explained(name: &str) -> (Snapshot, Origins, DeviceExplanation) {
    let snapshot = files::open(&files::here("tests/snapshots").join(name));
    let origins = Origins::of(&snapshot);
    let device = DeviceExplanation::of(&snapshot, 0, &origins, Options::default());
    (snapshot, origins, device)
}

#[test]
fn the_highest_phase_and_the_highest_step_are_the_peak() {
    for name in
        ["programs/adam_fused.pickle.gz", "programs/checkpoint_reentrant.pickle.gz", "leak_layer.pickle.gz"]
    {
        let (_, _, device) = explained(name);
        let peak = device.timeline.peak_allocated;
        assert_eq!(device.peaks.phases[0].1, peak, "{name}");
        let highest = device.peaks.steps.iter().map(|moment| moment.level.allocated_bytes).max();
        assert_eq!(highest, Some(peak.level.allocated_bytes), "{name}");
    }
}

#[test]
fn a_request_failed_in_the_phase_that_the_program_was_in() {
    let check = |name: &str, phase| {
        let (_, _, device) = explained(&format!("programs/{name}.pickle.gz"));
        assert_eq!(device.peaks.failed_in, Some(phase), "{name}");
    };
    check("oom_evaluation", Phase::Evaluation);
    check("oom_forward", Phase::Pass(PassKind::Forward));
    check("oom_backward", Phase::Pass(PassKind::Backward));
    check("oom_optimizer", Phase::Pass(PassKind::Optimizer));
}

#[test]
fn the_second_step_takes_more_by_the_optimizers_state() {
    let (snapshot, origins, device) = explained("programs/adam_fused.pickle.gz");
    let rises = device.peaks.rises(device.analysis(&snapshot, &origins));
    let rise = rises.first().expect("a rise");
    assert_eq!((rise.steps, rise.pass), ([0, 1], PassKind::Backward));
    let [less, more] = rise.moments.map(|moment| i128::from(moment.level.allocated_bytes));
    assert_eq!(rise.lines.iter().map(|line| line.bytes()).sum::<i128>(), more - less);
    let first = &rise.lines[0];
    assert_eq!(first.key.category.purpose(), Some(Category::OptimizerState));
    // The optimizer has two numbers for each parameter.
    let parameters = device.held().filter(|(_, of)| *of == Some(Category::Parameter));
    let parameters: u64 = parameters.filter_map(|(life, _)| life.requested_bytes.get()).sum();
    let state = u64::try_from(first.bytes()).expect("it grows");
    assert!(state.abs_diff(2 * parameters) <= parameters / 50, "{state} for {parameters}");
}
