//! The shared handle: many threads, one memory, and a lock that survives a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use plimsoll_alloc::{Category, Config, DeviceMemory, Error, LabelId, Request, SimDriver};

const MIB: u64 = 1 << 20;

fn device() -> DeviceMemory {
    DeviceMemory::new(Config::default(), SimDriver::with_capacity(256 * MIB))
}

#[test]
fn threads_share_one_memory() {
    let memory = device();
    thread::scope(|scope| {
        for thread in 0..4 {
            let memory = memory.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    let category = Category::ALL[thread];
                    let x = memory.alloc(Request { category, ..Request::of(1 + round * 8191) }).unwrap();
                    memory.retag(&x, Category::Workspace, LabelId(1));
                    memory.free(x);
                }
            });
        }
    });
    memory.check().unwrap();
    assert_eq!(memory.memory_allocated(), 0);
    assert_eq!(memory.memory_stats()["allocation.all.allocated"], 800);
    assert_eq!(memory.by_category_at_peak().total(), memory.max_memory_allocated());
}

#[test]
fn the_handle_tells_what_the_core_tells() {
    let memory = device();
    let x = memory.alloc(Request { label: LabelId(3), ..Request::of(40 * MIB) }).unwrap();
    memory.free(x);
    let y = memory.alloc(Request { category: Category::Input, ..Request::of(5 * MIB) }).unwrap();
    assert_eq!((memory.memory_allocated(), memory.max_memory_allocated()), (5 * MIB, 40 * MIB));
    assert_eq!((memory.memory_reserved(), memory.max_memory_reserved()), (40 * MIB, 40 * MIB));
    assert_eq!(memory.owners_at_peak()[0].label, LabelId(3));
    assert_eq!((memory.by_category()[Category::Input], memory.owners().len()), (5 * MIB, 1));
    memory.reset_peak_memory_stats();
    assert_eq!((memory.max_memory_allocated(), memory.by_category_at_peak().total()), (5 * MIB, 5 * MIB));
    memory.reset_accumulated_memory_stats();
    assert_eq!(memory.memory_stats()["allocated_bytes.all.freed"], 0);
    memory.free(y);
    assert_eq!(memory.empty_cache(), Ok(40 * MIB));
    assert_eq!((memory.segments().len(), memory.memory_info().free_bytes), (0, 256 * MIB));
    assert!(memory.memory_summary("ours").contains("ours"));
    memory.check().unwrap();
}

#[test]
fn a_limit_holds_and_a_fraction_replaces_it() {
    let memory = device();
    memory.set_memory_limit(Some(10 * MIB));
    assert_eq!(memory.memory_limit(), Some(10 * MIB));
    assert!(matches!(memory.alloc(Request::of(12 * MIB)), Err(Error::OutOfMemory(_))));
    memory.set_memory_fraction(0.5).unwrap();
    assert_eq!(memory.memory_limit(), Some(128 * MIB));
    let x = memory.alloc(Request::of(12 * MIB)).unwrap();
    memory.set_memory_limit(None);
    assert_eq!(memory.memory_limit(), None);
    memory.free(x);
}

#[test]
fn a_panic_under_the_lock_does_not_make_the_next_call_panic() {
    let (memory, other) = (device(), device());
    let foreign = other.alloc(Request::of(1)).unwrap();
    let freed = catch_unwind(AssertUnwindSafe(|| memory.free(foreign)));
    assert!(freed.is_err(), "an allocation of another memory is a bug of the caller");
    let x = memory.alloc(Request::of(1)).unwrap();
    memory.free(x);
    memory.check().unwrap();
}
