//! The two entry points: [`pack`] (the smallest arena that can be found) and [`pack_within`] (a packing within a
//! capacity).
//!
//! Note [Large lists]: the search takes too long for ten thousand buffers, and first fit leaves holes between the large ones. So the
//! search packs the large ones within their own lower bound, and first fit places all others around them.

use crate::first_fit::FirstFit;
use crate::order::Order;
use crate::search::{Found, search};
use crate::sections::Sections;
use crate::{Buffer, Error, Packing, lower_bound};

/// How long to search.
///
/// The limit is a number of steps, not a time, so the result is the same on all machines. In a step, the search looks at one buffer at
/// one time. A 2023 processor takes 8 to 60 ns per step.
///
/// ```
/// use plimsoll_packing::Effort;
///
/// assert_eq!(Effort::default().steps, 250_000_000);
/// assert_eq!(Effort::FIRST_FIT.steps, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The maximum number of steps of all searches.
    pub steps: u64,
}

impl Effort {
    /// No search: each buffer is placed at the lowest free offset, in several orders.
    pub const FIRST_FIT: Effort = Effort { steps: 0 };
}

impl Default for Effort {
    /// 250 million steps, 2 to 15 s.
    fn default() -> Effort {
        Effort { steps: 250_000_000 }
    }
}

/// Chooses an offset for each buffer, so that buffers that are alive at the same time do not overlap and the arena is small.
///
/// Offsets are sums of sizes: if all sizes are multiples of an alignment, so are all offsets. For up to a few thousand
/// buffers, the result is often the smallest possible arena. Memory use is proportional to the number of pairs of
/// buffers that are alive at the same time.
///
/// # Errors
///
/// [`Error::EmptyLifetime`], [`Error::TooLarge`], [`Error::TooMany`].
pub fn pack(buffers: &[Buffer], effort: Effort) -> Result<Packing, Error> {
    let bound = lower_bound(buffers)?;
    let all = indices(buffers)?;
    let sections = Sections::new(buffers);
    let mut best = Packing { offsets: Vec::new(), bytes: u64::MAX };
    let first_fit = |order: Order, best: &mut Packing| {
        let offsets = FirstFit::new(buffers, &sections).add(&order.sorted(buffers, &sections, all.clone()));
        keep_smaller(best, Packing::new(buffers, offsets));
    };
    if buffers.len() <= MOST_SEARCHED {
        for order in Order::ALL {
            if best.bytes > bound {
                first_fit(order, &mut best);
            }
        }
        smaller_arenas(buffers, bound, effort.steps, &mut best);
        return Ok(best);
    }
    let mut steps = effort.steps;
    first_fit(Order::LoadThenWidth, &mut best);
    for most in MOST_LARGE {
        if best.bytes - bound > bound / CLOSE {
            around_large(buffers, &sections, most, &mut steps, &mut best);
        }
    }
    if best.bytes - bound > bound / CLOSE {
        first_fit(Order::SizeThenLoad, &mut best);
    }
    Ok(best)
}

/// Searches for a packing within `capacity`. `None` if there is none, or if none is found.
///
/// # Errors
///
/// As [`pack`].
///
/// ```
/// use plimsoll_packing::{Buffer, Effort, pack_within};
///
/// let buffers = [Buffer { lower: 0, upper: 2, size: 512 }, Buffer { lower: 1, upper: 4, size: 512 }];
/// assert!(pack_within(&buffers, 1000, Effort::default())?.is_none());
/// assert_eq!(pack_within(&buffers, 1024, Effort::default())?.map(|packing| packing.bytes), Some(1024));
/// # Ok::<(), plimsoll_packing::Error>(())
/// ```
pub fn pack_within(buffers: &[Buffer], capacity: u64, effort: Effort) -> Result<Option<Packing>, Error> {
    if lower_bound(buffers)? > capacity {
        return Ok(None);
    }
    if buffers.len() > MOST_SEARCHED {
        return Ok(Some(pack(buffers, effort)?).filter(|packing| packing.bytes <= capacity));
    }
    // The search may place buffers directly below the capacity, so the capacity must not be larger than needed.
    let first_fit = pack(buffers, Effort::FIRST_FIT)?;
    if first_fit.bytes <= capacity {
        return Ok(Some(first_fit));
    }
    let mut steps = effort.steps;
    Ok(searched(buffers, capacity, &mut steps))
}

/// The maximum number of buffers for which the whole list is searched.
const MOST_SEARCHED: usize = 3000;

/// How many large buffers are searched if there are more.
const MOST_LARGE: [usize; 2] = [2500, 8000];

/// A large list is packed well enough if its arena exceeds the lower bound by less than this fraction of it.
const CLOSE: u64 = 512;

fn indices(buffers: &[Buffer]) -> Result<Vec<u32>, Error> {
    let most = u32::try_from(buffers.len()).ok().filter(|&n| n < u32::MAX);
    most.map(|n| (0..n).collect()).ok_or(Error::TooMany { buffers: buffers.len() })
}

fn keep_smaller(best: &mut Packing, other: Packing) {
    if other.bytes < best.bytes {
        *best = other;
    }
}

/// The search does not accept empty buffers. They may be placed anywhere.
fn searched(buffers: &[Buffer], capacity: u64, steps: &mut u64) -> Option<Packing> {
    if *steps == 0 {
        return None;
    }
    let solid: Vec<Buffer> = buffers.iter().copied().filter(|buffer| buffer.size > 0).collect();
    let Found::Offsets(found) = search(&solid, capacity, steps) else { return None };
    let mut found = found.into_iter();
    let offset = |buffer: &Buffer| if buffer.size > 0 { found.next().unwrap_or(0) } else { 0 };
    let offsets = buffers.iter().map(offset).collect();
    Some(Packing::new(buffers, offsets))
}

/// Searches within the lower bound first, then within capacities between it and the best arena.
fn smaller_arenas(buffers: &[Buffer], bound: u64, steps: u64, best: &mut Packing) {
    let (mut lowest, mut capacity) = (bound, bound);
    // Half of the steps are used for the lower bound.
    let (mut left, mut share) = (steps, steps.div_ceil(2));
    while best.bytes > lowest && left > 0 {
        let mut rest = share.min(left);
        left -= rest;
        match searched(buffers, capacity, &mut rest) {
            Some(packing) => keep_smaller(best, packing),
            None => lowest = capacity + 1,
        }
        left += rest;
        share = steps.div_ceil(16);
        capacity = u64::midpoint(lowest, best.bytes.saturating_sub(1).max(lowest));
    }
}

/// Searches for a packing of the `most` largest buffers, and places all others around them.
fn around_large(buffers: &[Buffer], sections: &Sections, most: usize, steps: &mut u64, best: &mut Packing) {
    let mut sizes: Vec<u64> = buffers.iter().map(|buffer| buffer.size).collect();
    sizes.sort_unstable();
    // Buffers of the same size stay together.
    let limit = sizes[sizes.len().saturating_sub(most + 1)];
    let (large, small): (Vec<u32>, Vec<u32>) =
        (0..buffers.len() as u32).partition(|&it| buffers[it as usize].size > limit);
    let those: Vec<Buffer> = large.iter().map(|&it| buffers[it as usize]).collect();
    let Ok(bound) = lower_bound(&those) else { return };
    let Some(packed) = searched(&those, bound, steps) else { return };
    for order in [Order::LoadThenWidth, Order::WidthThenSize] {
        let mut first_fit = FirstFit::new(buffers, sections);
        for (&it, &offset) in large.iter().zip(&packed.offsets) {
            first_fit.place(it, offset);
        }
        let offsets = first_fit.add(&order.sorted(buffers, sections, small.clone()));
        keep_smaller(best, Packing::new(buffers, offsets));
    }
}
