//! Our own runs as snapshots in PyTorch's format: the file agrees with the device's figures, and is the same on every device.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll::memory::{self, HistoryOptions, Report};
use plimsoll::nn::Module;
use plimsoll::optim::{Adam, AdamOptions, Optimizer};
use plimsoll::{Category, Device, SimConfig, Tensor};
use plimsoll_trace::input;
use plimsoll_trace::snapshot::{Action, Block, BlockState, Event, Setting, Snapshot, StackId, Stage, TextId};

use crate::world::{batch, cnn, devices};

/// Trains three steps with the history recorded. Returns the result of `then`, which runs while the model still exists.
fn trained<T>(device: &Device, then: impl FnOnce() -> T) -> T {
    memory::record_history(device, HistoryOptions::default());
    let model = cnn(device);
    let mut adam = Adam::new(model.parameters(), AdamOptions::default());
    for step in 0..3 {
        device.mark_step(step);
        let (images, labels) = batch(device);
        let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
        adam.zero_grad();
        loss.backward().unwrap();
        adam.step().unwrap();
    }
    then()
}

/// A path that no other test uses; the file is deleted when this is dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> File {
        File(std::env::temp_dir().join(format!("plimsoll-{name}-{}.pickle", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Saves a snapshot and reads it back.
fn saved(device: &Device, name: &str) -> Snapshot {
    let file = File::new(&format!("{name}-{}", device.name()));
    memory::save_snapshot(device, &file.0).unwrap();
    input::open(&file.0).unwrap()
}

fn text(snapshot: &Snapshot, id: Option<TextId>) -> &str {
    id.map_or("", |id| snapshot.texts.get(id))
}

fn category<'a>(snapshot: &'a Snapshot, event: &Event) -> &'a str {
    text(snapshot, event.category.map(|id| snapshot.categories[id.index()]))
}

/// The file and name of each frame of a stack.
fn frames(snapshot: &Snapshot, stack: Option<StackId>) -> Vec<[&str; 2]> {
    let frames = stack.into_iter().flat_map(|stack| snapshot.stacks.frames(stack));
    frames.map(|frame| [frame.filename, frame.name].map(|id| snapshot.texts.get(id))).collect()
}

fn live(snapshot: &Snapshot) -> Vec<&Block> {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    blocks.filter(|block| block.state == BlockState::ActiveAllocated).collect()
}

#[test]
fn a_saved_snapshot_agrees_with_the_statistics() {
    for device in devices() {
        trained(&device, || {
            let snapshot = saved(&device, "statistics");
            let sum = |size: &dyn Fn(&Block) -> u64| live(&snapshot).into_iter().map(size).sum::<u64>();
            let segments = snapshot.segments.iter();
            assert_eq!(sum(&|block| block.size), device.memory_allocated());
            assert_eq!(segments.clone().map(|it| it.total_size).sum::<u64>(), device.memory_reserved());
            assert_eq!(
                segments.map(|it| it.allocated_size.get().unwrap()).sum::<u64>(),
                device.memory_allocated()
            );
            let requested = device.memory_stats()["requested_bytes.all.current"];
            assert_eq!(i64::try_from(sum(&|block| block.requested_size.get().unwrap())), Ok(requested));
            assert_eq!(snapshot.facts.written_by(), "PyTorch 2.13 or newer");
        });
    }
}

#[test]
fn the_trace_replayed_has_the_peaks_of_the_run() {
    for device in devices() {
        let snapshot = trained(&device, || saved(&device, "peaks"));
        // A separate device that gets the same requests in the same order.
        let again = Device::sim(SimConfig::new(1 << 30));
        let mut held = BTreeMap::new();
        for event in &snapshot.traces[0] {
            match event.action {
                Action::Alloc => {
                    let bytes = vec![0_i64; usize::try_from(event.size.div_ceil(8)).unwrap()];
                    // Requests of half a word round up to the same blocks of 512 bytes.
                    held.insert(event.addr(), Tensor::from_slice(&bytes, &[bytes.len()], &again).unwrap());
                }
                Action::FreeRequested => drop(held.remove(&event.addr()).expect("it was allocated")),
                _ => {}
            }
        }
        assert_eq!(again.max_memory_allocated(), device.max_memory_allocated());
        assert_eq!(again.max_memory_reserved(), device.max_memory_reserved());
        let live: Vec<_> = live(&snapshot).iter().map(|block| Some(block.address)).collect();
        assert!(held.keys().copied().eq(live), "what is left is what the segments hold");
    }
}

/// Everything in a trace except times. Addresses become offsets in segments, which are numbered in order of appearance.
fn events(snapshot: &Snapshot) -> Vec<String> {
    let mut segments: Vec<(u64, u64)> = Vec::new();
    let mut lines = Vec::new();
    for event in &snapshot.traces[0] {
        let addr = event.addr().map_or(0, |addr| addr.0);
        if event.action == Action::SegmentAlloc {
            segments.push((addr, event.size));
        }
        let place = segments.iter().rposition(|&(start, size)| (start..start + size).contains(&addr));
        let place = place.map(|nth| (nth, addr - segments[nth].0));
        let metadata = text(snapshot, event.user_metadata);
        let (category, frames) = (category(snapshot, event), frames(snapshot, event.stack));
        lines.push(format!("{:?} {place:?} {} {metadata} {category} {frames:?}", event.action, event.size));
    }
    lines.extend(live(snapshot).iter().map(|block| {
        format!("{} {:?} {:?}", block.size, block.requested_size, frames(snapshot, block.stack))
    }));
    lines.extend(
        snapshot.annotations.iter().map(|it| format!("{:?} {}", it.stage, text(snapshot, Some(it.name)))),
    );
    lines
}

#[test]
fn the_simulated_device_records_the_same_events_as_the_cpu() {
    let [cpu, sim] = devices().map(|device| trained(&device, || events(&saved(&device, "story"))));
    assert_eq!(cpu.len(), sim.len());
    for (cpu, sim) in cpu.iter().zip(&sim) {
        assert_eq!(cpu, sim);
    }
}

#[test]
fn the_simulated_device_writes_the_same_bytes_every_time() {
    let bytes = |name| {
        let device = Device::sim(SimConfig::new(1 << 30));
        let file = File::new(name);
        trained(&device, || memory::save_snapshot(&device, &file.0).unwrap());
        std::fs::read(&file.0).unwrap()
    };
    assert!(bytes("bytes-1") == bytes("bytes-2"));
}

#[test]
fn a_block_carries_its_operation_its_owner_and_its_purpose() {
    let device = Device::sim(SimConfig::new(1 << 30));
    let snapshot = trained(&device, || saved(&device, "owners"));
    let allocs = || snapshot.traces[0].iter().filter(|event| event.action == Action::Alloc);
    let relu = [["<plimsoll>", "relu"], ["<label>", "relu2"], ["<category>", "activation"]];
    let relu = allocs().find(|event| frames(&snapshot, event.stack) == relu).unwrap();
    // The final category determines the colour; the first category and the change are recorded as well.
    assert_eq!(category(&snapshot, relu), "activation");
    assert_eq!(text(&snapshot, relu.user_metadata), "category=temporary label=relu2");
    let retag =
        snapshot.traces[0].iter().find(|it| (it.action, it.addr()) == (Action::Annotate, relu.addr()));
    assert_eq!(text(&snapshot, retag.unwrap().user_metadata), "category=activation label=relu2");
    // Blocks have no category in PyTorch's format, so their outermost frame states it.
    let mut by_category = BTreeMap::new();
    for block in live(&snapshot) {
        let purpose = frames(&snapshot, block.stack).last().copied().unwrap();
        *by_category.entry(purpose[1]).or_insert(0) += block.size;
    }
    assert_eq!(by_category.keys().copied().collect::<Vec<_>>(), ["gradient", "optimizer_state", "parameter"]);
    let fresh = Device::sim(SimConfig::new(1 << 30));
    let _model = cnn(&fresh);
    assert_eq!(by_category["parameter"], fresh.memory_by_category()[Category::Parameter]);
}

#[test]
fn steps_are_scopes_and_settings_say_whose_file_it_is() {
    let device = Device::sim(SimConfig::new(1 << 30));
    device.set_memory_limit(64 << 20);
    let snapshot = trained(&device, || saved(&device, "steps"));
    let scopes: Vec<_> = (snapshot.annotations.iter())
        .map(|it| (it.stage, text(&snapshot, Some(it.name)), it.time_us.get().unwrap()))
        .collect();
    let expected = (0..3).flat_map(|step| [(Stage::Start, step), (Stage::End, step)]);
    assert!(
        scopes
            .iter()
            .map(|it| (it.0, it.1.to_owned()))
            .eq(expected.map(|(stage, step)| (stage, format!("ProfilerStep#{step}"))))
    );
    assert!(scopes.is_sorted_by_key(|it| it.2));
    let Some(Setting::Map(own)) = snapshot.setting("plimsoll") else { panic!("{:?}", snapshot.settings) };
    let own: BTreeMap<_, _> = own.iter().map(|(name, setting)| (name.as_str(), setting)).collect();
    assert_eq!(own["device"], &Setting::Text("sim".to_owned()));
    assert_eq!(
        (own["capacity_bytes"], own["limit_bytes"]),
        (&Setting::Int(1 << 30), &Setting::Int(64 << 20))
    );
    assert_eq!(snapshot.setting("expandable_segments"), Some(&Setting::Bool(false)));
    assert_eq!(snapshot.setting("trace_alloc_overflowed"), Some(&Setting::Bool(false)));
}

#[test]
fn a_ring_that_overflowed_says_so_and_keeps_the_latest() {
    let device = Device::sim(SimConfig::new(1 << 30));
    memory::record_history(&device, HistoryOptions { max_entries: 3, ..HistoryOptions::default() });
    let kept: Vec<_> = (0..4).map(|_| Tensor::zeros(&[4], &device).unwrap()).collect();
    let snapshot = saved(&device, "ring");
    let actions: Vec<_> = snapshot.traces[0].iter().map(|event| event.action).collect();
    use Action::{Alloc, Snapshot};
    assert_eq!((actions, live(&snapshot).len()), (vec![Alloc, Alloc, Alloc, Snapshot], kept.len()));
    // PyTorch's viewer fails unless there is at least one event of category `unknown`.
    assert_eq!(category(&snapshot, snapshot.traces[0].last().unwrap()), "unknown");
    assert_eq!(snapshot.setting("trace_alloc_overflowed"), Some(&Setting::Bool(true)));
    // A second snapshot has an event for the first.
    let actions: Vec<_> = saved(&device, "ring").traces[0].iter().map(|event| event.action).collect();
    assert_eq!(actions, [Alloc, Alloc, Snapshot, Snapshot]);
    memory::stop_history(&device);
    assert_eq!((memory::snapshot(&device).traces[0].len(), memory::snapshot(&device).segments.len()), (0, 1));
}

#[test]
fn who_sees_a_failure_sees_everything_that_was_held() {
    for device in devices() {
        let file = File::new(&format!("oom-{}", device.name()));
        let path = file.0.clone();
        memory::record_history(&device, HistoryOptions::default());
        device.on_out_of_memory(move |device| memory::save_snapshot(device, &path).map(drop).unwrap());
        device.set_memory_limit(24 << 20);
        let held = Tensor::zeros(&[4 << 20], &device).unwrap();
        let error = Tensor::zeros(&[8 << 20], &device).unwrap_err();
        assert!(error.out_of_memory().is_some());
        let snapshot = input::open(&file.0).unwrap();
        let [.., last, _] = &snapshot.traces[0][..] else { panic!("{:?}", snapshot.traces) };
        assert_eq!((last.action, last.size, last.addr()), (Action::Oom, 32 << 20, None));
        assert!(last.device_free().is_some());
        assert_eq!(live(&snapshot)[0].size, held.numel() as u64 * 4);
        assert_eq!(Report::of(&device).allocated_bytes, 16 << 20);
    }
}
