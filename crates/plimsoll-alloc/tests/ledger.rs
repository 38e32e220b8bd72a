//! The ledger: allocated bytes by owner now, at the peak, and after retags.

use plimsoll_alloc::{
    Allocation, Allocator, Category, Config, LabelId, Ledger, Owner, Request, SimDriver, Stats,
};

const MIB: u64 = 1 << 20;

type Counted = Allocator<SimDriver, (Stats, Ledger)>;

fn device() -> Counted {
    Allocator::new(Config::default(), SimDriver::with_capacity(1024 * MIB), Default::default())
}

fn alloc(allocator: &mut Counted, category: Category, label: u32, bytes: u64) -> Allocation {
    allocator.malloc(Request { category, label: LabelId(label), ..Request::of(bytes) }).unwrap()
}

fn owner(label: u32, category: Category, bytes: u64, blocks: u64) -> Owner {
    Owner { label: LabelId(label), category, bytes, blocks }
}

#[test]
fn categories_sum_to_the_allocated_bytes() {
    let mut a = device();
    let weight = alloc(&mut a, Category::Parameter, 1, 10 * MIB);
    let gradient = alloc(&mut a, Category::Gradient, 1, 1000);
    let unsplit = alloc(&mut a, Category::Input, 2, 11 * MIB);
    let (stats, ledger) = a.observer();
    assert_eq!(ledger.by_category()[Category::Gradient], 1024, "rounding belongs to the holder");
    assert_eq!(ledger.by_category()[Category::Input], 12 * MIB, "so does an unsplit rest");
    assert_eq!(ledger.by_category().total() as i64, stats.allocated_bytes().all.current);
    [weight, gradient, unsplit].into_iter().for_each(|block| a.free(block));
    assert_eq!(a.observer().1.by_category().total(), 0);
    assert_eq!(a.observer().1.owners(), []);
}

#[test]
fn the_state_at_the_peak_is_kept() {
    let mut a = device();
    let weight = alloc(&mut a, Category::Parameter, 1, 4 * MIB);
    let scratch = alloc(&mut a, Category::Workspace, 0, 8 * MIB);
    a.free(scratch);
    let kept = alloc(&mut a, Category::Activation, 2, 2 * MIB);
    let ledger = &a.observer().1;
    assert_eq!(ledger.peak_bytes(), 12 * MIB);
    let at_peak = [owner(0, Category::Workspace, 8 * MIB, 1), owner(1, Category::Parameter, 4 * MIB, 1)];
    assert_eq!(ledger.owners_at_peak(), at_peak);
    let now = [owner(1, Category::Parameter, 4 * MIB, 1), owner(2, Category::Activation, 2 * MIB, 1)];
    assert_eq!(ledger.owners(), now);
    a.free(weight);
    a.free(kept);
}

#[test]
fn a_retag_moves_bytes_without_moving_the_total() {
    let mut a = device();
    let x = alloc(&mut a, Category::Temporary, 0, 4 * MIB);
    a.retag(&x, Category::Gradient, LabelId(5));
    let (stats, ledger) = a.observer();
    assert_eq!(ledger.owners(), [owner(5, Category::Gradient, 4 * MIB, 1)]);
    assert_eq!(stats.allocated_bytes().all.allocated, 4 * 1024 * 1024);
    assert_eq!(a.segments()[0].blocks[0].tag.label, LabelId(5));
    a.free(x);
}

#[test]
fn a_retag_while_at_the_peak_is_part_of_it_and_a_later_one_is_not() {
    let mut a = device();
    let x = alloc(&mut a, Category::Temporary, 0, 4 * MIB);
    let y = alloc(&mut a, Category::Temporary, 0, 2 * MIB);
    a.retag(&x, Category::Activation, LabelId(1));
    a.free(y);
    a.retag(&x, Category::Gradient, LabelId(2));
    let at_peak = a.observer().1.by_category_at_peak();
    assert_eq!((at_peak[Category::Activation], at_peak[Category::Temporary]), (4 * MIB, 2 * MIB));
    assert_eq!(at_peak[Category::Gradient], 0);
    a.free(x);
}

#[test]
fn the_first_of_two_equal_peaks_is_kept() {
    let mut a = device();
    for category in [Category::Input, Category::Workspace] {
        let x = alloc(&mut a, category, 0, 4 * MIB);
        a.free(x);
    }
    assert_eq!(a.observer().1.owners_at_peak(), [owner(0, Category::Input, 4 * MIB, 1)]);
}

#[test]
fn a_reset_makes_now_the_peak() {
    let mut a = device();
    let big = alloc(&mut a, Category::Workspace, 0, 40 * MIB);
    let small = alloc(&mut a, Category::Parameter, 1, 2 * MIB);
    a.free(big);
    let (stats, ledger) = a.observer_mut();
    stats.reset_peak();
    ledger.reset_peak();
    assert_eq!(a.observer().1.peak_bytes(), 2 * MIB);
    let more = alloc(&mut a, Category::Input, 2, 3 * MIB);
    a.free(more);
    a.free(small);
    let (stats, ledger) = a.observer();
    assert_eq!(ledger.peak_bytes() as i64, stats.allocated_bytes().all.peak);
    let at_peak = [owner(2, Category::Input, 3 * MIB, 1), owner(1, Category::Parameter, 2 * MIB, 1)];
    assert_eq!(ledger.owners_at_peak(), at_peak);
}

#[test]
fn a_label_may_be_any_number() {
    let mut a = device();
    let labels = [0, 7, (1 << 16) - 1, 1 << 16, u32::MAX].map(LabelId);
    let held = labels.map(|label| a.malloc(Request { label, ..Request::of(512) }).unwrap());
    let owners = a.observer().1.owners();
    assert_eq!(owners.iter().map(|owner| owner.label).collect::<Vec<_>>(), labels);
    for allocation in held {
        a.free(allocation);
    }
    assert_eq!(a.observer().1.owners(), []);
}
