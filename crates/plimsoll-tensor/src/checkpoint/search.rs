//! The search for a schedule: the one with the fewest bytes, or the fastest one within a byte limit.

use std::ops::Range;
use std::sync::Arc;

use super::chain::Chain;
use super::cheapest::{Rest, Ways, add, cheapest};
use super::nested::Nested;
use super::schedule::{BlockCost, Budget, Part, Schedule, equal};
use crate::error::{Error, Result};
use crate::offload::IN_FLIGHT;

/// Up to this many blocks, the schedule with the fewest bytes is also the fastest of those with that many bytes.
const REFINED: usize = 512;

impl Schedule {
    /// The schedule of a sequence whose blocks have these costs.
    ///
    /// # Errors
    /// If there are no segments, or more segments than blocks; if the budget is below what every schedule keeps (the
    /// error has the least that one needs); if times are not finite, or the bytes add up to more than 2⁶³.
    pub fn of(blocks: &[BlockCost], budget: Budget) -> Result<Schedule> {
        check(blocks)?;
        of_chain(&Chain::new(blocks), budget)
    }

    /// Like [`Schedule::of`], but some blocks' saved tensors may wait on the host, at most `host_bytes` of them: only
    /// those whose copies, according to these costs, are hidden by the computation, so they take no time. They are used
    /// if they save recomputation or, with [`Budget::Auto`], bytes; the schedule then counts the tensors that are being
    /// copied.
    ///
    /// ```
    /// use plimsoll_tensor::checkpoint::{BlockCost, Budget, Schedule};
    /// let layer = BlockCost {
    ///     inner_bytes: 64 << 20,
    ///     largest_bytes: 16 << 20,
    ///     forward_seconds: 1.0,
    ///     copy_seconds: 2.0, // every second layer can be copied while the others run
    ///     ..BlockCost::default()
    /// };
    /// let half = Schedule::with_offload(&[layer; 100], Budget::Bytes(3300 << 20), u64::MAX)?;
    /// assert_eq!((half.recomputed(), half.offloaded().len()), (0.0, 50));
    /// assert!(Schedule::of(&[layer; 100], Budget::Bytes(3300 << 20))?.recomputed() > 0.4);
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same errors as [`Schedule::of`].
    pub fn with_offload(blocks: &[BlockCost], budget: Budget, host_bytes: u64) -> Result<Schedule> {
        check(blocks)?;
        let chain = Chain::new(blocks);
        let plain = of_chain(&chain, budget);
        let is_enough = |plain: &Schedule| budget != Budget::Auto && plain.recomputed() == 0.0;
        let is_offloaded = hidden(&chain, blocks, host_bytes);
        if plain.as_ref().is_ok_and(is_enough) || !is_offloaded.contains(&true) {
            return plain;
        }
        let in_flight = IN_FLIGHT * blocks.iter().map(|block| block.largest_bytes).max().unwrap_or(0);
        let less = match budget {
            Budget::Bytes(bytes) => Budget::Bytes(bytes.saturating_sub(in_flight)),
            other => other,
        };
        let Ok(mut found) = of_chain(&Chain::with_offloaded(blocks, is_offloaded), less) else {
            return plain;
        };
        found.kept_bytes = found.kept_bytes.saturating_add(in_flight);
        match plain {
            Ok(plain) if budget == Budget::Auto && plain.kept_bytes <= found.kept_bytes => Ok(plain),
            Ok(plain) if budget != Budget::Auto && plain.recomputed <= found.recomputed => Ok(plain),
            _ => Ok(found),
        }
    }
}

/// Returns an error for costs that cannot be added up.
fn check(blocks: &[BlockCost]) -> Result<()> {
    let bytes = |block: &BlockCost| {
        [block.input_bytes, block.inner_bytes, block.recipe_bytes, block.output_bytes].map(u128::from)
    };
    let sum: u128 = blocks.iter().flat_map(bytes).sum();
    let timed = |block: &BlockCost| block.forward_seconds.is_finite() && block.tail_seconds.is_finite();
    if sum > 1 << 63 || !blocks.iter().all(timed) {
        let message = "the bytes of all blocks are over 2^63, or a time is not a finite number";
        return Err(Error::argument("checkpoint_sequential", message));
    }
    Ok(())
}

fn of_chain(chain: &Chain, budget: Budget) -> Result<Schedule> {
    let too_small = |bytes: u64, least: u64| {
        let message = format!(
            "a budget of {bytes} bytes is too small for {} blocks: they need {least}, even if everything possible is computed again",
            chain.len()
        );
        Error::argument("checkpoint_sequential", message)
    };
    match budget {
        Budget::Segments(segments) => Ok(chain.schedule(&equal(chain.len(), segments)?)),
        Budget::Auto => Ok(least(chain)),
        Budget::Bytes(bytes) => within(chain, bytes).map_err(|least| too_small(bytes, least)),
    }
}

/// For each block, whether its saved tensors are copied to the host: only if the link is free, the copy is done by the
/// end of the forward pass, and they fit into `host_bytes`. So these blocks are not adjacent, and in the backward pass,
/// which takes at least as long, the tensors of each come back while the derivatives of the blocks in between run.
fn hidden(chain: &Chain, blocks: &[BlockCost], host_bytes: u64) -> Vec<bool> {
    let (mut copied_at, mut left) = (0.0_f64, host_bytes);
    let all = chain.seconds(0..chain.len());
    let leaves = |at: usize| {
        let (copy, bytes) = (blocks[at].copy_seconds, chain.saved(at));
        let (begins, ends) = (chain.seconds(0..at), chain.seconds(0..at + 1));
        let done = copied_at.max(begins) + copy;
        let leaves = copy > 0.0 && bytes > 0 && bytes <= left && copied_at <= ends && done <= all;
        if leaves {
            copied_at = done;
            left -= bytes;
        }
        leaves
    };
    (0..blocks.len()).map(leaves).collect()
}

/// The schedule with the fewest bytes in which each block runs at most twice.
fn least(chain: &Chain) -> Schedule {
    let rest = rests(chain);
    if chain.len() <= REFINED
        && let Some(schedule) = cheapest(chain, &rest, rest[0].bytes, &Flat(chain))
    {
        return schedule;
    }
    let mut parts = Vec::new();
    let mut at = 0;
    while at < chain.len() {
        add(&mut parts, part(&rest[at], at));
        at = rest[at].end;
    }
    chain.schedule(&parts)
}

/// The schedule that recomputes the least and keeps at most this many bytes. The error is the smallest number of bytes
/// that a schedule can keep.
fn within(chain: &Chain, bytes: u64) -> Result<Schedule, u64> {
    let rest = rests(chain);
    if rest[0].bytes <= bytes {
        let groups = groups(chain.len(), REFINED);
        let merged = chain.merged(&groups);
        let found = cheapest(&merged, &rests(&merged), bytes, &Flat(&merged));
        return Ok(found.map_or_else(|| least(chain), |found| chain.schedule(&spread(found.parts, &groups))));
    }
    let groups = groups(chain.len(), Nested::MOST);
    let merged = chain.merged(&groups);
    let nested = Nested::new(&merged, bytes)?;
    let found = cheapest(&merged, nested.rest(), bytes, &nested).ok_or_else(|| nested.least())?;
    Ok(chain.schedule(&spread(found.parts, &groups)))
}

fn part(rest: &Rest, at: usize) -> Part {
    if rest.is_kept { Part::Keep(at..rest.end) } else { Part::Checkpoint(at..rest.end, None) }
}

/// For each block, how to continue from it if each block runs at most twice.
fn rests(chain: &Chain) -> Vec<Rest> {
    let len = chain.len();
    let mut rest = vec![Rest::default(); len + 1];
    rest[len].bytes = chain.output(len);
    for at in (0..len).rev() {
        let after = rest[at + 1];
        let bytes = chain.held(at).saturating_add(after.bytes);
        let mut best = Rest { bytes, seconds: after.seconds, end: at + 1, is_kept: true };
        // Recomputing the last piece would free nothing for the others.
        for (end, after) in rest.iter().enumerate().take(len).skip(at + 1) {
            let own = chain.again(at..end);
            let bytes = own.max(chain.input(at).saturating_add(after.bytes));
            let seconds = chain.seconds_again(at..end) + after.seconds;
            let found = Rest { bytes, seconds, end, is_kept: false };
            if found.is_better_than(&best) {
                best = found;
            }
            if own - chain.output(end) > best.bytes {
                break; // Longer parts need more bytes.
            }
        }
        rest[at] = best;
    }
    rest
}

/// Everything in the piece is kept when it is recomputed.
struct Flat<'a>(&'a Chain);

impl Ways for Flat<'_> {
    fn of(&self, range: Range<usize>) -> impl Iterator<Item = (u64, f64)> {
        std::iter::once((self.0.again(range.clone()), self.0.seconds_again(range)))
    }

    fn schedule(&self, _: Range<usize>, _: usize) -> Option<Arc<Schedule>> {
        None
    }
}

/// At most `most` ranges of about the same number of blocks.
fn groups(blocks: usize, most: usize) -> Vec<Range<usize>> {
    let count = blocks.min(most);
    (0..count).map(|i| i * blocks / count..(i + 1) * blocks / count).collect()
}

/// Converts parts of groups to parts of blocks.
fn spread(parts: Vec<Part>, groups: &[Range<usize>]) -> Vec<Part> {
    let blocks = |range: Range<usize>| groups[range.start].start..groups[range.end - 1].end;
    let one = |piece: Part| match piece {
        Part::Keep(range) => Part::Keep(blocks(range)),
        Part::Checkpoint(range, inner) => {
            let own = &groups[range.clone()];
            let first = own[0].start;
            let inside: Vec<Range<usize>> = own.iter().map(|it| it.start - first..it.end - first).collect();
            let inner = inner.map(|inner| {
                let parts = spread(inner.parts.clone(), &inside);
                Arc::new(Schedule { parts, ..Schedule::clone(&inner) })
            });
            Part::Checkpoint(blocks(range), inner)
        }
    };
    parts.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer that saves its output of one unit.
    const LAYER: BlockCost = BlockCost {
        input_bytes: 1,
        saves_input: false,
        inner_bytes: 0,
        recipe_bytes: 0,
        output_bytes: 1,
        saves_output: true,
        forward_seconds: 1.0,
        tail_seconds: 0.0,
        copy_seconds: 0.0,
        largest_bytes: 1,
    };

    /// Blocks with sizes and times from a small generator.
    fn unequal(seed: u64, len: usize) -> Vec<BlockCost> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let mut input_bytes = 1 + next(8);
        let mut block = || {
            let output_bytes = 1 + next(8);
            let cost = BlockCost {
                input_bytes,
                saves_input: next(3) > 0,
                inner_bytes: next(20),
                recipe_bytes: next(4) * next(5),
                output_bytes,
                saves_output: next(3) == 0,
                forward_seconds: 2.0 + next(16) as f64,
                tail_seconds: next(3) as f64,
                ..BlockCost::default()
            };
            input_bytes = output_bytes;
            cost
        };
        (0..len).map(|_| block()).collect()
    }

    /// All ways to cut blocks into kept and checkpointed parts.
    fn all_ways(from: usize, len: usize) -> Vec<Vec<Part>> {
        if from == len {
            return vec![Vec::new()];
        }
        let mut ways = Vec::new();
        for end in from + 1..=len {
            for rest in all_ways(end, len) {
                let first = Part::Checkpoint(from..end, None);
                ways.push([vec![first], rest.clone()].concat());
                if end == from + 1 {
                    ways.push([vec![Part::Keep(from..end)], rest].concat());
                }
            }
        }
        ways
    }

    #[test]
    fn equal_layers_take_twice_the_root_of_their_number() {
        for len in [16, 17, 64, 100, 300, 1000, 1024, 4096] {
            let least = Schedule::of(&vec![LAYER; len], Budget::Auto).unwrap();
            let root = (len as f64).sqrt();
            assert!(least.kept_bytes() as f64 <= 2.0 * root + 1.0, "{len} layers: {}", least.kept_bytes());
            assert!(least.recomputed() < 1.0, "{len} layers: {}", least.recomputed());
        }
    }

    #[test]
    fn no_way_to_cut_a_short_sequence_is_better() {
        for seed in 0..60 {
            let blocks = unequal(seed, 7);
            let chain = Chain::new(&blocks);
            let all: Vec<Schedule> = all_ways(0, 7).iter().map(|parts| chain.schedule(parts)).collect();
            let least = Schedule::of(&blocks, Budget::Auto).unwrap();
            let bytes = all.iter().map(Schedule::kept_bytes).min().unwrap();
            assert_eq!(least.kept_bytes(), bytes, "seed {seed}");
            let most = chain.kept(0..7);
            for budget in [bytes, (bytes + most) / 2, (bytes + 3 * most) / 4, most] {
                let found = Schedule::of(&blocks, Budget::Bytes(budget)).unwrap();
                let fitting = all.iter().filter(|it| it.kept_bytes() <= budget);
                let best = fitting.map(Schedule::recomputed).min_by(f64::total_cmp).unwrap();
                assert!(found.kept_bytes() <= budget, "seed {seed}, {budget} bytes");
                assert!((found.recomputed() - best).abs() < 1e-9, "seed {seed}, {budget} bytes: {found:?}");
            }
        }
    }

    #[test]
    fn unequal_blocks_take_less_than_any_number_of_equal_segments() {
        let mut better = 0;
        for seed in 0..20 {
            let blocks = unequal(seed, 60);
            let least = Schedule::of(&blocks, Budget::Auto).unwrap().kept_bytes();
            let segments = (1..=60).map(|count| Schedule::of(&blocks, Budget::Segments(count)).unwrap());
            let equal = segments.map(|it| it.kept_bytes()).min().unwrap();
            assert!(least <= equal, "seed {seed}: {least} and {equal}");
            better += u32::from(least < equal);
        }
        assert!(better >= 19, "{better} of 20");
    }

    /// The most units that the parts hold, and the blocks that run again, computed block by block.
    fn simulated(parts: &[Part], blocks: &[BlockCost], held: u64) -> (u64, f64) {
        let chain = Chain::new(blocks);
        let (mut held, mut most, mut again) = (held, held, 0.0);
        let mut begun = Vec::new();
        for part in parts {
            let range = part.range();
            match part {
                Part::Keep(_) => held += range.clone().map(|block| chain.saved(block)).sum::<u64>(),
                Part::Checkpoint(..) => held += chain.input(range.start),
            }
            most = most.max(held);
            begun.push((part, held));
        }
        for (part, held) in begun.into_iter().rev() {
            let Part::Checkpoint(range, inner) = part else { continue };
            let own = &blocks[range.clone()];
            again += own.iter().map(|block| block.forward_seconds).sum::<f64>();
            let input = chain.input(range.start);
            match inner {
                None => most = most.max(held - input + chain.again(range.clone())),
                Some(inner) => {
                    let before = held - input;
                    let (inside, more) = simulated(&inner.parts, own, 0);
                    let own = inside.max(input) + chain.output(range.end);
                    most = most.max(before + own.max(inside));
                    again += more;
                }
            }
        }
        (most, again)
    }

    #[test]
    fn smaller_budgets_checkpoint_inside_of_parts() {
        let blocks = vec![LAYER; 64];
        let total = 64.0;
        let mut last = 0.0;
        for budget in [15, 12, 10, 9] {
            let schedule = Schedule::of(&blocks, Budget::Bytes(budget)).unwrap();
            assert!(schedule.kept_bytes() <= budget, "{budget}: {}", schedule.kept_bytes());
            let (most, again) = simulated(&schedule.parts, &blocks, 0);
            assert!(most <= budget + 1, "{budget}: {most} in {schedule:?}");
            assert!((again / total - schedule.recomputed()).abs() < 1e-9, "{budget}");
            assert!(schedule.recomputed() >= last, "less memory takes no less time");
            last = schedule.recomputed();
        }
        assert!(last < 3.0, "{last}");
    }

    #[test]
    fn what_cannot_be_reached_is_said_with_what_can() {
        let blocks = vec![LAYER; 64];
        let error = Schedule::of(&blocks, Budget::Bytes(2)).unwrap_err().to_string();
        let least: u64 =
            error.split("they need ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        assert!(Schedule::of(&blocks, Budget::Bytes(least)).is_ok(), "{error}");
        assert!(Schedule::of(&blocks, Budget::Bytes(least - 1)).is_err(), "{error}");
        let none = Schedule::of(&[], Budget::Auto).unwrap();
        assert_eq!((none.kept_bytes(), none.recomputed()), (0, 0.0));
        assert!(Schedule::of(&blocks, Budget::Segments(0)).is_err());
    }

    #[test]
    fn a_budget_for_everything_computes_nothing_again() {
        for len in [1, 2, 40, 2000] {
            let schedule = Schedule::of(&unequal(3, len), Budget::Bytes(u64::MAX)).unwrap();
            assert_eq!(schedule.recomputed(), 0.0, "{len}");
        }
    }
}
