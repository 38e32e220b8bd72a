//! A test suite for implementations of [`Driver`]: the properties that the allocator relies on.
//! Call [`segments`] for every driver, and [`events`], [`pages`] and [`aliases`] for those that support them.
//!
//! ```
//! use plimsoll_alloc::{SimDriver, driver_suite};
//!
//! let mut device = SimDriver::with_capacity(64 << 20);
//! driver_suite::segments(&mut device);
//! driver_suite::events(&mut device);
//! driver_suite::pages(&mut device);
//! driver_suite::aliases(&mut device);
//! ```

use crate::driver::{Driver, DriverError};
use crate::request::{Addr, StreamId};

const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 20 * MIB;

/// Segments do not overlap, use free memory, and can be freed once. The device needs at least 64 MiB free.
///
/// # Panics
/// If a property does not hold; the message names it.
pub fn segments(device: &mut impl Driver) {
    let before = device.memory();
    assert!(before.free_bytes <= before.total_bytes, "{before:?}");
    let sizes = [2 * MIB, 20 * MIB, 11 * MIB];
    let mut segments = sizes.map(|bytes| (done("segment_alloc", device.segment_alloc(bytes)), bytes));
    segments.sort_unstable();
    for (addr, _) in segments {
        assert!(addr.0 != 0 && addr.0.is_multiple_of(512), "a segment starts at {addr}");
    }
    for pair in segments.windows(2) {
        assert!(pair[0].0.0 + pair[0].1 <= pair[1].0.0, "{pair:?} overlap");
    }
    let taken = device.memory();
    assert!(taken.free_bytes <= before.free_bytes - 33 * MIB, "{before:?}, and with 33 MiB taken {taken:?}");
    assert_eq!(device.segment_alloc(u64::MAX), Err(DriverError::OutOfMemory), "more than any device has");
    refused("segment_free at an address without a segment", &device.segment_free(Addr(1)));
    for (addr, _) in segments {
        done("segment_free", device.segment_free(addr));
    }
    refused("segment_free of a freed segment", &device.segment_free(segments[0].0));
    assert_eq!(device.memory().total_bytes, before.total_bytes, "total_bytes does not change");
}

/// Events can be waited for, and can be queried until they are done.
///
/// # Panics
/// If a property does not hold; the message names it.
pub fn events(device: &mut impl Driver) {
    for _ in 0..2 {
        let event = done("record", device.record(StreamId(1)));
        done("wait", device.wait(event));
    }
    let event = done("record", device.record(StreamId(2)));
    while !done("is_done", device.is_done(event)) {}
}

/// Pages are mapped once, in reserved address space, and the space can be released when nothing is mapped in it. The
/// device needs at least 64 MiB free.
///
/// # Panics
/// If a property does not hold; the message names it.
pub fn pages(device: &mut impl Driver) {
    let (range_bytes, on) = (256 * MIB, StreamId(0));
    let before = device.memory();
    let range = done("reserve", device.reserve(range_bytes));
    assert!(range.0 != 0 && range.0.is_multiple_of(512), "a range starts at {range}");
    let at = |page: u64| range.plus(page * PAGE_BYTES);
    done("map", device.map(at(1), PAGE_BYTES, 2));
    refused("map of mapped pages", &device.map(at(2), PAGE_BYTES, 1));
    refused("release while pages are mapped", &device.release(range, range_bytes));
    refused("unmap of a range that is not fully mapped", &device.unmap(at(0), PAGE_BYTES, 2, on));
    done("unmap", device.unmap(at(2), PAGE_BYTES, 1, on));
    done("map", device.map(at(0), PAGE_BYTES, 1));
    done("unmap", device.unmap(at(0), PAGE_BYTES, 2, on));
    assert_eq!(device.memory().total_bytes, before.total_bytes, "total_bytes does not change");
    done("release", device.release(range, range_bytes));
    refused("map outside reserved address space", &device.map(at(0), PAGE_BYTES, 1));
}

/// Mapped pages can be mapped again in a different order, take no more memory for that, and stay mapped where they were.
/// The device needs at least 64 MiB free.
///
/// # Panics
/// If a property does not hold; the message names it.
pub fn aliases(device: &mut impl Driver) {
    let (range_bytes, page_bytes, on) = (64 * MIB, 2 * MIB, StreamId(0));
    let (home, other) =
        (done("reserve", device.reserve(range_bytes)), done("reserve", device.reserve(range_bytes)));
    let at = |page: u64| home.plus(page * page_bytes);
    done("map", device.map(home, page_bytes, 3));
    let before = device.memory();
    refused("alias of a page that is not mapped", &device.alias(other, page_bytes, &[at(0), at(3)]));
    refused("alias outside reserved address space", &device.alias(Addr(1 << 62), page_bytes, &[at(0)]));
    done("alias", device.alias(other, page_bytes, &[at(2), at(0)]));
    // On a real device, page tables may take a page.
    let taken = before.free_bytes.saturating_sub(device.memory().free_bytes);
    assert!(taken < 2 * page_bytes, "two pages that are mapped again took {taken} bytes");
    refused("alias over another", &device.alias(other, page_bytes, &[at(1)]));
    refused("unmap of a page that is mapped again", &device.unmap(home, page_bytes, 3, on));
    refused("unalias of what is not mapped again", &device.unalias(other, page_bytes, 3, on));
    refused("release while pages are mapped again", &device.release(other, range_bytes));
    done("unalias", device.unalias(other, page_bytes, 2, on));
    done("unmap", device.unmap(home, page_bytes, 3, on));
    for range in [home, other] {
        done("release", device.release(range, range_bytes));
    }
}

/// Unwraps a call that must succeed.
#[track_caller]
fn done<T>(call: &str, answer: Result<T, DriverError>) -> T {
    match answer {
        Ok(value) => value,
        Err(why) => panic!("{call}: {why}"),
    }
}

#[track_caller]
fn refused(call: &str, answer: &Result<(), DriverError>) {
    assert!(
        matches!(answer, Err(DriverError::Failed(_))),
        "{call}: {answer:?}, expected DriverError::Failed"
    );
}
