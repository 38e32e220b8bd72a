//! The history: PyTorch's trace entries in PyTorch's order, in a bounded ring.

use plimsoll_alloc::{
    Action, Allocator, Callers, Category, Clock, Config, DeviceMemory, Entry, History, HistoryOptions,
    LabelId, PoolId, Request, SimDriver, StackId, StreamId, Tag,
};

const MIB: u64 = 1 << 20;

fn ticks() -> Clock {
    let mut now = 0;
    Box::new(move || {
        now += 1;
        now
    })
}

fn recording(options: HistoryOptions) -> Allocator<SimDriver, History> {
    let mut history = History::default();
    history.record(options, ticks());
    Allocator::new(Config::default(), SimDriver::with_capacity(64 * MIB), history)
}

fn actions(allocator: &Allocator<SimDriver, History>) -> Vec<&'static str> {
    allocator.observer().entries().map(|entry| entry.action.name()).collect()
}

#[test]
fn every_action_has_its_entry() {
    let mut a = recording(HistoryOptions::default());
    a.mark_step(7);
    let request =
        Request { stream: StreamId(2), label: LabelId(9), stack: Some(StackId(5)), ..Request::of(1000) };
    let x = a.malloc(request).unwrap();
    let addr = x.addr();
    a.retag(&x, Category::Input, LabelId(1));
    a.mark_snapshot();
    assert!(a.malloc(Request::of(100 * MIB)).is_err());
    a.free(x);
    a.empty_cache().unwrap();
    let names = ["step_mark", "segment_alloc", "alloc", "retag", "snapshot", "oom", "free_requested"];
    assert_eq!(actions(&a)[..7], names);
    assert_eq!(actions(&a)[7..], ["free_completed", "segment_free"]);
    let entries: Vec<&Entry> = a.observer().entries().collect();
    let times: Vec<u64> = entries.iter().map(|entry| entry.time_us).collect();
    assert_eq!(times, [1, 2, 3, 4, 5, 6, 7, 7, 8], "an immediately completed free has one time");
    assert_eq!(entries[0].action, Action::StepMark { number: 7 });
    let tag = Tag { category: Category::Temporary, label: LabelId(9) };
    let alloc = Entry {
        time_us: 3,
        action: Action::Alloc,
        addr,
        bytes: 1000,
        stream: StreamId(2),
        pool: PoolId::DEFAULT,
        tag,
        stack: Some(StackId(5)),
    };
    assert_eq!(*entries[2], alloc);
    assert_eq!(entries[3].action, Action::Retag { from: tag });
    assert_eq!((entries[3].tag.label, entries[4].bytes), (LabelId(1), 1024));
    assert_eq!(
        (entries[5].bytes, entries[5].action),
        (100 * MIB, Action::Oom { device_free_bytes: 62 * MIB })
    );
    assert_eq!(entries[6].stack, Some(StackId(5)), "the stack of the request is kept with the block");
}

#[test]
fn the_ring_keeps_the_latest_in_order_and_counts_the_dropped() {
    let mut a = recording(HistoryOptions { max_entries: 4, ..HistoryOptions::default() });
    (1..=10).for_each(|number| a.mark_step(number));
    let numbers = a.observer().entries().map(|entry| entry.time_us).collect::<Vec<_>>();
    assert_eq!((numbers, a.observer().lost()), (vec![7, 8, 9, 10], 6));
}

#[test]
fn skipped_actions_are_absent() {
    let mut a =
        recording(HistoryOptions { skip: vec!["segment_alloc", "free_completed"], ..Default::default() });
    let x = a.malloc(Request::of(1)).unwrap();
    a.free(x);
    assert_eq!(actions(&a), ["alloc", "free_requested"]);
}

#[test]
fn it_is_off_by_default_and_drops_its_entries_when_stopped() {
    let mut a = Allocator::new(Config::default(), SimDriver::with_capacity(64 * MIB), History::default());
    a.mark_step(1);
    assert!(!a.observer().is_recording());
    a.observer_mut().record(HistoryOptions::default(), ticks());
    a.mark_step(2);
    assert_eq!(a.observer().entries().count(), 1);
    a.observer_mut().stop();
    assert_eq!(a.observer().entries().count(), 0);
}

#[test]
fn taken_entries_are_removed() {
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 * MIB));
    let options = HistoryOptions { max_entries: 2, ..HistoryOptions::default() };
    memory.record_history(options, Callers::AsGiven, ticks());
    let taken = || {
        let (entries, lost) = memory.take_history();
        (entries.iter().map(|entry| entry.action.to_string()).collect::<Vec<_>>(), lost)
    };
    let x = memory.alloc(Request::of(1)).unwrap();
    memory.mark_step(1);
    assert_eq!(taken(), (vec!["alloc".to_owned(), "step_mark".to_owned()], 1));
    assert_eq!(taken(), (vec![], 0));
    memory.free(x);
    assert_eq!(taken(), (vec!["free_requested".to_owned(), "free_completed".to_owned()], 0));
}

#[test]
fn the_handle_can_record_the_place_of_a_request_in_the_program() {
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 * MIB));
    memory.record_history(HistoryOptions::default(), Callers::Located, ticks());
    let line = line!() + 1;
    let x = memory.alloc(Request::of(1)).unwrap();
    let stack = memory.history()[1].stack.unwrap();
    let place = memory.location(stack).unwrap();
    assert_eq!((place.file(), place.line()), (file!(), line));
    memory.mark_step(1);
    memory.mark_snapshot();
    assert_eq!(memory.history().len(), 4);
    memory.stop_history();
    memory.free(x);
    assert_eq!(memory.history(), []);
}
