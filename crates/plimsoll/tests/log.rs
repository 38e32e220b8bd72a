//! The log of a run has the same events as its snapshot; a truncated log has those that were written.

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::Duration;

use plimsoll::memory::{self, HistoryOptions};
use plimsoll::nn::Module;
use plimsoll::optim::{Optimizer, Sgd, SgdOptions};
use plimsoll::{Device, SimConfig, Tensor};
use plimsoll_trace::log::{self, End};
use plimsoll_trace::snapshot::{BlockState, Snapshot};

use crate::world::{batch, cnn, devices};

/// Runs two steps, a block whose rest is not split off, and an emptied cache. Returns the result of `then`.
fn train<T>(device: &Device, then: impl FnOnce() -> T) -> T {
    let model = cnn(device);
    let mut sgd = Sgd::new(model.parameters(), SgdOptions { momentum: 0.9, ..SgdOptions::default() });
    for step in 0..2 {
        device.mark_step(step);
        let (images, labels) = batch(device);
        let loss = model.forward(&images).unwrap().cross_entropy(&labels).unwrap();
        sgd.zero_grad();
        loss.backward().unwrap();
        sgd.step().unwrap();
    }
    drop(Tensor::zeros(&[3 << 20], device).unwrap());
    let _oversize = Tensor::zeros(&[(3 << 20) - 100_000], device).unwrap();
    device.empty_cache().unwrap();
    then()
}

/// The log of a run, and the snapshot of the same run.
fn logged() -> (Vec<u8>, Snapshot) {
    let path = std::env::temp_dir().join(format!(
        "plimsoll-log-test-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let device = Device::sim(SimConfig::new(1 << 30));
    let log = memory::stream_history(&device, &path).unwrap();
    let entries = train(&device, || log.finish().unwrap());
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let device = Device::sim(SimConfig::new(1 << 30));
    memory::record_history(&device, HistoryOptions::default());
    let snapshot = train(&device, || memory::snapshot(&device));
    // The log has the step marks; the snapshot has scopes, and an event for the snapshot itself.
    assert_eq!(entries, snapshot.traces[0].len() as u64 + 2 - 1);
    (bytes, snapshot)
}

#[test]
fn a_log_has_the_events_of_a_snapshot_of_the_same_run() {
    let (bytes, expected) = logged();
    let read = log::read(bytes.as_slice(), usize::MAX).unwrap();
    assert_eq!((read.end, read.lost, read.facts.device.as_str()), (End::Whole, 0, "sim"));
    assert_eq!(read.snapshot.traces, expected.traces);
    assert_eq!(read.snapshot.annotations, expected.annotations);
    assert_eq!((&read.snapshot.texts, &read.snapshot.stacks), (&expected.texts, &expected.stacks));
    let live = |snapshot: &Snapshot| {
        let blocks = snapshot.segments.iter().flat_map(|it| it.blocks.clone());
        blocks.filter(|block| block.state != BlockState::Inactive).collect::<Vec<_>>()
    };
    assert_eq!(live(&read.snapshot), live(&expected));
    for (found, expected) in read.snapshot.segments.iter().zip(&expected.segments) {
        let sizes = |it: &plimsoll_trace::snapshot::Segment| {
            it.blocks.iter().map(|block| (block.address, block.size, block.state)).collect::<Vec<_>>()
        };
        assert_eq!(sizes(found), sizes(expected));
        assert_eq!(
            (found.segment_type, found.allocated_size),
            (expected.segment_type, expected.allocated_size)
        );
    }
    assert_eq!(read.snapshot.segments.len(), expected.segments.len());
    assert!((bytes.len() as u64) < 8 * read.entries, "{} bytes for {} entries", bytes.len(), read.entries);
}

#[test]
fn a_log_cut_anywhere_has_all_events_before_the_cut() {
    let (bytes, _) = logged();
    let whole = log::read(bytes.as_slice(), 10).unwrap();
    let mut entries = 0;
    for cut in 0..bytes.len() {
        match log::read(&bytes[..cut], 10) {
            Ok(part) => {
                assert_ne!(part.end, End::Whole, "cut at {cut}");
                assert!(part.entries >= entries && part.entries <= whole.entries);
                entries = part.entries;
            }
            Err(error) => {
                assert_eq!((error.kind(), entries), (ErrorKind::InvalidData, 0), "cut at {cut}");
            }
        }
    }
    assert_eq!(entries, whole.entries, "only the end is missing");
    assert_eq!(
        (whole.snapshot.traces[0].len(), whole.entries > 100),
        (11, true),
        "the latest, and the snapshot"
    );
}

#[test]
fn a_changed_byte_is_found() {
    let (bytes, _) = logged();
    for at in (0..bytes.len()).step_by(7) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        match log::read(changed.as_slice(), usize::MAX) {
            Ok(read) => {
                let End::Broken { at: begin } = read.end else { panic!("changed at {at}: {:?}", read.end) };
                assert!(begin <= at as u64, "changed at {at}, found at {begin}");
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidData),
        }
    }
}

#[test]
fn a_log_begins_with_an_empty_device() {
    for device in devices() {
        let begin = || memory::stream_history(&device, "/no/such/folder/log").unwrap_err().kind();
        assert_eq!(begin(), ErrorKind::NotFound);
        let _x = Tensor::zeros(&[4], &device).unwrap();
        assert_eq!(begin(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_the_history() {
    let (reader, writer) = std::io::pipe().unwrap();
    let device = Device::sim(SimConfig::new(1 << 30));
    let log = memory::stream_history(&device, format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
    drop((reader, writer));
    for _ in 0..5000 {
        drop(Tensor::zeros(&[1024], &device).unwrap());
    }
    std::thread::sleep(Duration::from_millis(200)); // the thread writes a frame, and fails
    assert_eq!(log.finish().unwrap_err().kind(), ErrorKind::BrokenPipe);
    let _later = Tensor::zeros(&[1024], &device).unwrap();
    assert!(device.recording().entries.is_empty());
}
