//! Every snapshot has a page, whatever it claims, and no page is large.

mod files;

use plimsoll_alloc::{Addr, StreamId};
use plimsoll_trace::explain::{DeviceExplanation, Options, Origins};
use plimsoll_trace::render::html::Report;
use plimsoll_trace::snapshot::{Action, Event, Segment, SegmentType, Snapshot};

const MOST_BYTES: usize = 5_000_000;

fn page(snapshot: &Snapshot) -> String {
    let origins = Origins::of(snapshot);
    let options = Options { infer: true, device_total_bytes: None };
    let numbers = snapshot.devices().into_iter();
    let devices: Vec<DeviceExplanation> =
        numbers.map(|device| DeviceExplanation::of(snapshot, device, &origins, options)).collect();
    Report { file: "run.pickle", snapshot, origins: &origins, devices: &devices }.page()
}

#[test]
fn every_snapshot_has_a_page_of_less_than_five_megabytes() {
    for (name, snapshot) in files::snapshots() {
        let page = page(&snapshot);
        assert!(page.len() < MOST_BYTES, "{name}: {} bytes", page.len());
        let verdicts = page.matches("<h2 class=\"verdict").count();
        assert_eq!(verdicts, snapshot.devices().len(), "{name}");
    }
}

#[test]
fn sizes_and_places_that_no_device_has_do_no_harm() {
    let far = [0, 1, 511, 1 << 20, (1 << 63) + 7, u64::MAX - 9, u64::MAX];
    for (addr, bytes) in far.into_iter().flat_map(|addr| far.map(|bytes| (addr, bytes))) {
        let segment = Segment {
            device: None,
            address: Addr(addr),
            total_size: bytes,
            allocated_size: None.into(),
            active_size: None.into(),
            requested_size: None.into(),
            stream: StreamId(0),
            segment_type: SegmentType::Large,
            pool: None,
            is_expandable: Some(false),
            stack: None,
            blocks: Vec::new(),
        };
        let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
        let trace = vec![
            event(Action::Alloc, addr, bytes),
            event(Action::SegmentAlloc, addr / 2, bytes),
            event(Action::FreeRequested, addr, bytes),
            event(Action::Alloc, addr.saturating_add(bytes / 2), bytes / 2),
            Event::oom(bytes, Some(addr), StreamId(0)),
        ];
        let snapshot = Snapshot { segments: vec![segment], traces: vec![trace], ..Snapshot::default() };
        let page = page(&snapshot);
        assert!(page.len() < MOST_BYTES, "{addr:#x}, {bytes}: {} bytes", page.len());
    }
}
