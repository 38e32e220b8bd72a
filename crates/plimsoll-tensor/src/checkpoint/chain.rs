//! The bytes and seconds of any part of a sequence, in constant time: [`Chain`].

use std::ops::Range;

use super::schedule::{BlockCost, Part, Schedule};

/// A sequence of blocks, with sums over its prefixes.
///
/// The tensor between two blocks is counted with the later one. It is kept if either of them saves it, or if a checkpointed
/// piece begins there.
pub(super) struct Chain {
    blocks: Vec<BlockCost>,
    /// Bytes that the first `i` blocks save if all of them keep what they save.
    kept: Vec<u64>,
    /// Like `kept`, without what waits on the host.
    held: Vec<u64>,
    /// For each block: whether its saved tensors wait on the host, unless it is checkpointed.
    is_offloaded: Vec<bool>,
    /// Bytes that the first `i` blocks save only in a checkpointed part.
    recipes: Vec<u64>,
    /// Seconds of the first `i` blocks.
    seconds: Vec<f64>,
}

impl Chain {
    pub(super) fn new(blocks: &[BlockCost]) -> Chain {
        Chain::with_offloaded(blocks, vec![false; blocks.len()])
    }

    /// A chain in which the saved tensors of some blocks wait on the host.
    pub(super) fn with_offloaded(blocks: &[BlockCost], is_offloaded: Vec<bool>) -> Chain {
        let sums = || vec![0];
        let mut chain = Chain {
            blocks: blocks.to_vec(),
            kept: sums(),
            held: sums(),
            is_offloaded,
            recipes: sums(),
            seconds: vec![0.0],
        };
        let is_timed = blocks.iter().any(|block| block.forward_seconds > 0.0);
        for (i, block) in blocks.iter().enumerate() {
            let kept = chain.kept[i].saturating_add(chain.saved(i));
            chain.kept.push(kept);
            chain.held.push(chain.held[i].saturating_add(chain.held(i)));
            chain.recipes.push(chain.recipes[i].saturating_add(block.recipe_bytes));
            let own = &mut chain.blocks[i];
            (own.forward_seconds, own.tail_seconds) = match is_timed {
                false => (1.0, 0.0),
                true => {
                    let seconds = own.forward_seconds.max(0.0);
                    (seconds, own.tail_seconds.clamp(0.0, seconds))
                }
            };
            chain.seconds.push(chain.seconds[i] + own.forward_seconds);
        }
        chain
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of a block's input.
    pub(super) fn input(&self, block: usize) -> u64 {
        self.blocks[block].input_bytes
    }

    /// Bytes that a block adds if it keeps what it saves.
    pub(super) fn saved(&self, block: usize) -> u64 {
        let own = &self.blocks[block];
        let before = block.checked_sub(1).map(|before| &self.blocks[before]);
        let keeps_input = own.saves_input || before.is_some_and(|before| before.saves_output);
        own.inner_bytes.saturating_add(if keeps_input { own.input_bytes } else { 0 })
    }

    /// Whether a block's saved tensors wait on the host, unless the block is checkpointed.
    pub(super) fn is_offloaded(&self, block: usize) -> bool {
        self.is_offloaded[block]
    }

    /// Bytes that stay on the device if a block keeps what it saves.
    pub(super) fn held(&self, block: usize) -> u64 {
        if self.is_offloaded[block] { 0 } else { self.saved(block) }
    }

    /// Bytes that these blocks save, if all of them keep their saved tensors and no earlier block does.
    pub(super) fn kept(&self, range: Range<usize>) -> u64 {
        self.kept[range.end] - self.kept[range.start]
    }

    /// Bytes that a checkpointed piece needs while its derivatives run: its input, and what it saves when it is
    /// recomputed.
    pub(super) fn again(&self, range: Range<usize>) -> u64 {
        let first = &self.blocks[range.start];
        let inner = first.inner_bytes.saturating_add(self.kept(range.start + 1..range.end));
        let recipes = self.recipes[range.end] - self.recipes[range.start];
        first.input_bytes.saturating_add(inner).saturating_add(recipes).saturating_add(self.output(range.end))
    }

    /// Seconds to recompute a checkpointed piece, up to the last tensor that it saves.
    pub(super) fn seconds_again(&self, range: Range<usize>) -> f64 {
        let tail = self.blocks[range.clone()].last().map_or(0.0, |last| last.tail_seconds);
        self.seconds(range) - tail
    }

    /// Seconds of the blocks' forward pass.
    pub(super) fn seconds(&self, range: Range<usize>) -> f64 {
        self.seconds[range.end] - self.seconds[range.start]
    }

    /// Bytes of the output of the blocks before `end`, if the last of them saves it. A later block, if there is one,
    /// also counts it.
    pub(super) fn output(&self, end: usize) -> u64 {
        match self.blocks[..end].last() {
            Some(last) if last.saves_output => last.output_bytes,
            _ => 0,
        }
    }

    /// These parts, with the bytes that they keep and what they recompute.
    pub(super) fn schedule(&self, parts: &[Part]) -> Schedule {
        let (mut held, mut most, mut again) = (0, 0, 0.0);
        for piece in parts {
            let range = piece.range();
            if range.is_empty() {
                continue;
            }
            match piece {
                Part::Keep(_) => {
                    let last = if range.end == self.len() { self.output(range.end) } else { 0 };
                    held += self.held[range.end] - self.held[range.start];
                    most = most.max(held + last);
                }
                Part::Checkpoint(_, inner) => {
                    let own = match inner {
                        None => self.again(range.clone()),
                        Some(inner) => inner.kept_bytes,
                    };
                    most = most.max(held.saturating_add(own));
                    held += self.input(range.start);
                    // The part's own schedule measures recomputation in forward passes of its blocks.
                    let inside = inner.as_ref().map_or(0.0, |inner| inner.recomputed);
                    again += self.seconds_again(range.clone()) + self.seconds(range) * inside;
                }
            }
        }
        Schedule {
            parts: parts.to_vec(),
            kept_bytes: most,
            recomputed: again / self.seconds(0..self.len()).max(f64::MIN_POSITIVE),
            is_offloaded: if self.is_offloaded.contains(&true) {
                self.is_offloaded.clone()
            } else {
                Vec::new()
            },
        }
    }

    /// The chain in which each of these consecutive ranges is one block.
    pub(super) fn merged(&self, ranges: &[Range<usize>]) -> Chain {
        let merge = |range: &Range<usize>| {
            let (first, last) = (&self.blocks[range.start], &self.blocks[range.end - 1]);
            BlockCost {
                inner_bytes: first.inner_bytes.saturating_add(self.kept(range.start + 1..range.end)),
                output_bytes: last.output_bytes,
                saves_output: last.saves_output,
                recipe_bytes: self.recipes[range.end] - self.recipes[range.start],
                forward_seconds: self.seconds(range.clone()),
                tail_seconds: last.tail_seconds,
                ..*first
            }
        };
        let is_offloaded = ranges.iter().map(|range| self.is_offloaded[range.clone()].iter().all(|&it| it));
        Chain::with_offloaded(&ranges.iter().map(merge).collect::<Vec<_>>(), is_offloaded.collect())
    }
}
