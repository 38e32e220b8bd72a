//! The shapes that a failed request may have had: [`Guess`]es from sizes in the same recording.
//!
//! A recording has bytes, not shapes. But a model's dimensions recur: one-dimensional parameters have the width of the
//! model, one side of a two-dimensional parameter is that width, and activations have a row for each token. If the
//! request has the size of some number of rows times a width, or times a few widths, these factors are the guess. But
//! if the request was made neither in a forward nor in a backward pass, and parameters have exactly its size, their
//! shape is the guess. If the recording shows no model, attention scores are tried: for queries `[k, n, d]`, they are
//! `[k, n, n]`. If a vector of `n` numbers is live, a square `[n, n]` may come from broadcasting `[n, 1]` with `[n]`,
//! as in a loss whose prediction and target differ in shape. For all other sizes, there is no guess.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::fragmentation::DeviceAnalysis;
use crate::failure::Failure;
use crate::snapshot::{EventIndex, LifeIndex};
use crate::timeline::Life;

/// A shape that a request may have had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guess {
    /// The dimensions of the shape.
    pub dims: Vec<u64>,
    /// Bytes of one element.
    pub element_bytes: u64,
    /// The evidence for the shape.
    pub evidence: Evidence,
}

/// The evidence for a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Parameters have the same size: the request may be for a gradient, an optimizer state or a copy of a parameter.
    Parameters {
        /// The number of such parameters.
        count: usize,
    },
    /// The first dimension of the shape occurs in other sizes, and the last dimension in parameters.
    Rows {
        /// The number of other sizes with the same number of rows.
        sizes: usize,
    },
    /// Attention scores: in each head, every row of a sequence is compared with all rows of the same sequence.
    Attention {
        /// The number of other sizes that have as many rows as all sequences together.
        sizes: usize,
    },
    /// The square of a vector's length: broadcasting `[n, 1]` with `[n]` gives `[n, n]`.
    Broadcast {
        /// The vector; if several such vectors are live, the last of them.
        of: LifeIndex,
        /// The number of such live vectors.
        vectors: usize,
    },
    /// The square of a dimension of this earlier block.
    Scores {
        /// The block.
        of: LifeIndex,
    },
}

/// The most guesses that are shown.
const MOST: usize = 2;
/// There are no guesses for smaller requests.
const LEAST_BYTES: u64 = 1 << 20;
/// At most this many of the latest blocks are used: about as many as one step allocates.
const LAST: usize = 1 << 12;
/// At most this many sizes of a step, and at most this many widths, are used. No model has more, but a forged file
/// may.
const MOST_SIZES: usize = 1 << 10;
const MOST_WIDTHS: usize = 1 << 7;
/// Element sizes that models compute with, in bytes.
const ELEMENTS: [u64; 2] = [4, 2];
/// Common widths of attention heads, the most common first.
const HEADS: [u64; 7] = [64, 128, 32, 80, 96, 256, 40];

/// A request that failed, and the context for a guess.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedRequest<'a> {
    pub(super) analysis: DeviceAnalysis<'a>,
    pub(super) failure: Failure,
    /// The last event before the step of the request, if steps are known.
    pub(super) step_began: Option<EventIndex>,
    /// Whether the request was made in a forward or backward pass.
    pub(super) is_pass: bool,
}

impl FailedRequest<'_> {
    /// The guesses, the best first.
    pub(super) fn guesses(&self) -> Vec<Guess> {
        let block_bytes = self.failure.asked_bytes;
        if block_bytes < LEAST_BYTES {
            return Vec::new();
        }
        let lives = &self.analysis.timeline.lives;
        let before = |at: EventIndex| lives.partition_point(|life| life.born < Some(at));
        let born = before(self.failure.at);
        let first = self.step_began.map_or(0, before).max(born.saturating_sub(LAST));
        let parameters = self.parameters(born);
        let mut made = self.made(first, born);
        made.remove(&block_bytes);
        let dims = Dims::of_sizes(&parameters, &made);
        let of_parameters =
            parameters.get(&block_bytes).and_then(|&count| dims.of_parameter(block_bytes, count));
        let mut found: Vec<Guess> = of_parameters.filter(|_| !self.is_pass).into_iter().collect();
        let computes = self.computes();
        if found.is_empty() {
            found = dims.products(block_bytes);
            found.extend(dims.attention(block_bytes).filter(|_| computes));
            // A model's own widths can also produce squares. So guesses from the model come first.
            let square = self.broadcast(born, block_bytes).filter(|_| computes);
            let is_width = |guess: &Guess| guess.dims.iter().all(|length| dims.widths.contains(length));
            match square {
                Some(guess) if found.is_empty() || is_width(&guess) => found.push(guess),
                Some(guess) => found.insert(0, guess),
                None => {}
            }
        }
        if found.is_empty() && dims.widths.is_empty() && computes {
            found = self.scores(born, block_bytes);
        }
        found.truncate(MOST);
        found
    }

    /// Whether the operator of the request, if its stack shows one, can produce a square from vectors or rows: it
    /// multiplies, adds, compares or normalises. An operator that joins, copies, looks up or creates tensors cannot.
    fn computes(&self) -> bool {
        const CANNOT: [&str; 20] = [
            "cat",
            "stack",
            "embedding",
            "index",
            "gather",
            "repeat",
            "expand",
            "new",
            "zeros",
            "ones",
            "empty",
            "full",
            "rand",
            "arange",
            "conv",
            "cudnn",
            "native_layer_norm",
            "native_batch_norm",
            "one_hot",
            "pad",
        ];
        let operator = self.analysis.origins.get(self.failure.stack).operator;
        let Some(name) = operator.map(|name| name.of(self.analysis.snapshot).trim_start_matches('_')) else {
            return true;
        };
        !CANNOT.iter().any(|one| name.starts_with(one))
    }

    fn category(&self, nth: usize) -> Option<Category> {
        LifeIndex::new(nth).and_then(|life| self.analysis.purposes.get(life).category)
    }

    /// The sizes of parameters, each with its count.
    fn parameters(&self, born: usize) -> BTreeMap<u64, usize> {
        let mut sizes = BTreeMap::new();
        for nth in (0..born).filter(|&nth| self.category(nth) == Some(Category::Parameter)) {
            *sizes.entry(asked(&self.analysis.timeline.lives[nth])).or_default() += 1;
        }
        sizes
    }

    /// The sizes of the blocks between two indices, except those of parameters, optimizer state and workspaces.
    fn made(&self, first: usize, born: usize) -> BTreeSet<u64> {
        const KEPT: [Category; 3] = [Category::Parameter, Category::OptimizerState, Category::Workspace];
        let is_kept = |nth: usize| self.category(nth).is_some_and(|category| KEPT.contains(&category));
        let lives = &self.analysis.timeline.lives;
        let made = (first..born).filter(|&nth| lives[nth].born.is_some() && !is_kept(nth));
        let mut made: BTreeSet<u64> = made.map(|nth| asked(&lives[nth])).collect();
        while made.len() > MOST_SIZES {
            made.pop_first();
        }
        made
    }

    /// The guess that the request is the square of a live vector's length.
    fn broadcast(&self, born: usize, block_bytes: u64) -> Option<Guess> {
        const KEPT: [Category; 4] =
            [Category::Parameter, Category::Gradient, Category::OptimizerState, Category::Workspace];
        let is_vector = |nth: usize, length: u64, elements: &[u64]| {
            let life = &self.analysis.timeline.lives[nth];
            life.is_held_after(Some(self.failure.at))
                && elements.iter().any(|bytes| bytes.saturating_mul(length) == asked(life))
                && !self.category(nth).is_some_and(|category| KEPT.contains(&category))
        };
        // Targets may be 8-byte integers although the other operand has a smaller type, so several element sizes are
        // tried.
        [8, 4, 2].into_iter().find_map(|element_bytes| {
            let length = (block_bytes / element_bytes).isqrt();
            let dims = vec![length, length];
            let (mut own, mut vectors) = (None, 0);
            if length > 1 && is_of(&dims, element_bytes, block_bytes) {
                for nth in 0..born {
                    vectors += usize::from(is_vector(nth, length, &[8, 4, 2]));
                    if is_vector(nth, length, &[element_bytes]) {
                        own = LifeIndex::new(nth);
                    }
                }
            }
            let evidence = Evidence::Broadcast { of: own?, vectors };
            Some(Guess { dims, element_bytes, evidence })
        })
    }

    /// Guesses for attention scores: the square of a dimension of a recent, much smaller block.
    fn scores(&self, born: usize, block_bytes: u64) -> Vec<Guess> {
        let lives = self.analysis.timeline.lives[..born].iter().enumerate().rev().take(16);
        let smaller = lives.filter(|(_, life)| asked(life) >= 1 << 16 && asked(life) <= block_bytes / 8);
        let guesses = smaller.filter_map(|(nth, life)| {
            let (query_bytes, of) = (asked(life), LifeIndex::new(nth)?);
            let guess = |head: u64, element_bytes: u64| {
                let length = (block_bytes / query_bytes).checked_mul(head)?;
                let count = query_bytes / element_bytes / length.checked_mul(head)?.max(1);
                let is_query = count > 0 && is_of(&[count, length, head], element_bytes, query_bytes);
                let dims = vec![count, length, length];
                let fits = is_query && is_of(&dims, element_bytes, block_bytes);
                fits.then_some(Guess { dims, element_bytes, evidence: Evidence::Scores { of } })
            };
            let tried = HEADS.into_iter().flat_map(|head| ELEMENTS.map(|element| (head, element)));
            Some(tried.filter_map(|(head, element)| guess(head, element)).take(MOST).collect::<Vec<_>>())
        });
        guesses.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
    }
}

/// A model's dimensions, as found from sizes.
#[derive(Debug, Default)]
struct Dims {
    /// The model's width.
    wide: u64,
    /// The element size of its parameters, in bytes.
    element_bytes: u64,
    /// The lengths of its one-dimensional parameters.
    widths: BTreeSet<u64>,
    /// The row counts of activations, each with the number of sizes that have it, the most frequent first.
    rows: Vec<(u64, usize)>,
}

impl Dims {
    /// Finds the dimensions from the sizes of parameters, each with its count, and from other sizes.
    fn of_sizes(parameters: &BTreeMap<u64, usize>, made: &BTreeSet<u64>) -> Self {
        let largest = parameters.keys().next_back().copied().unwrap_or(0);
        // A width occurs often, and its square is not larger than the largest parameter.
        let is_narrow = |bytes: u64| bytes >= 64 && (bytes / 4).saturating_mul(bytes) <= largest;
        let narrow = parameters.iter().filter(|&(&bytes, _)| is_narrow(bytes));
        let Some((&wide_bytes, _)) = narrow.max_by_key(|&(_, count)| *count) else { return Self::default() };
        // A square parameter shows the element type. The products are the same with either type.
        let is_half = parameters.contains_key(&(wide_bytes / 2).saturating_mul(wide_bytes));
        let element_bytes = if is_half { 2 } else { 4 };
        let wide = wide_bytes / element_bytes;
        let mut widths = BTreeSet::from([wide]);
        for length in parameters
            .keys()
            .rev()
            .map(|bytes| bytes / element_bytes)
            .filter(|&length| length >= 16)
            .take(MOST_WIDTHS)
        {
            // A long vector such as a bias has a few times the model's width; a parameter with many times the width is
            // a matrix with the width as one side.
            let is_matrix = length.is_multiple_of(wide) && length / wide >= 16;
            widths.insert(if is_matrix { length / wide } else { length });
        }
        let rows = rows(&widths, made, element_bytes);
        Self { wide, element_bytes, widths, rows }
    }

    /// The shape of `count` parameters of this size.
    fn of_parameter(&self, bytes: u64, count: usize) -> Option<Guess> {
        let length = bytes / self.element_bytes.max(1);
        let is_matrix = self.wide > 0 && length.is_multiple_of(self.wide) && length > self.wide;
        let dims = if is_matrix { vec![length / self.wide, self.wide] } else { vec![length] };
        let guess =
            Guess { dims, element_bytes: self.element_bytes, evidence: Evidence::Parameters { count } };
        (self.wide > 0).then_some(guess)
    }

    /// Rows times a width, or times several widths.
    fn products(&self, block_bytes: u64) -> Vec<Guess> {
        let mut found = Vec::new();
        let elements = if self.element_bytes == 2 { [2, 4] } else { ELEMENTS };
        for times in 1..=4 {
            if !found.is_empty() {
                break;
            }
            for (&(rows, sizes), element_bytes) in
                self.rows.iter().flat_map(|rows| elements.map(|it| (rows, it)))
            {
                for &width in self.widths.iter().rev() {
                    let dims = if times == 1 { vec![rows, width] } else { vec![rows, times, width] };
                    if is_of(&dims, element_bytes, block_bytes) {
                        found.push(Guess { dims, element_bytes, evidence: Evidence::Rows { sizes } });
                    }
                }
            }
        }
        found
    }

    /// Attention scores: for each sequence and head, the square of the number of rows.
    fn attention(&self, block_bytes: u64) -> Option<Guess> {
        let of = |(rows, sizes): (u64, usize), head: u64, element_bytes: u64| {
            let heads = self.wide.is_multiple_of(head).then_some(self.wide / head)?;
            let length = block_bytes / element_bytes / rows.checked_mul(heads)?.max(1);
            let dims = vec![rows.checked_div(length)?, heads, length, length];
            let fits = length > 1 && rows.is_multiple_of(length) && is_of(&dims, element_bytes, block_bytes);
            fits.then_some(Guess { dims, element_bytes, evidence: Evidence::Attention { sizes } })
        };
        let tried = self.rows.iter().flat_map(|&rows| HEADS.map(|head| (rows, head)));
        let mut tried = tried.flat_map(|(rows, head)| ELEMENTS.map(|element| (rows, head, element)));
        tried.find_map(|(rows, head, element)| of(rows, head, element))
    }
}

/// The row counts of activations, sorted by the number of sizes that have them. Rows of 4-byte elements look like
/// twice as many rows of 2-byte elements; if both are equally frequent, the count for the parameters' element type
/// comes first.
fn rows(widths: &BTreeSet<u64>, made: &BTreeSet<u64>, element_bytes: u64) -> Vec<(u64, usize)> {
    let mut rows: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for &bytes in made {
        for row_bytes in
            widths.iter().flat_map(|&width| ELEMENTS.map(|element| width.saturating_mul(element)))
        {
            if bytes > row_bytes && bytes.is_multiple_of(row_bytes) {
                rows.entry(bytes / row_bytes).or_default().insert(bytes);
            }
        }
    }
    let mut rows: Vec<(u64, usize, bool)> = rows
        .into_iter()
        .map(|(rows, sizes)| {
            // The token ids themselves, and sizes with one number per token.
            let [is_token, is_figure] = [8, 4].map(|bytes| made.contains(&(bytes * rows)));
            (rows, sizes.len() + usize::from(is_token) + usize::from(is_token && is_figure), is_token)
        })
        .filter(|&(_, sizes, _)| sizes > 2)
        .collect();
    rows.sort_by_key(|&(rows, sizes, is_token)| {
        let by_type = if element_bytes == 2 { u64::MAX - rows } else { rows };
        (Reverse(sizes + usize::from(is_token)), by_type)
    });
    rows.truncate(3);
    rows.into_iter().map(|(rows, sizes, _)| (rows, sizes)).collect()
}

/// Whether a tensor of this shape needs a block of this size: blocks are multiples of 512 bytes.
fn is_of(dims: &[u64], element_bytes: u64, block_bytes: u64) -> bool {
    let bytes = dims.iter().try_fold(element_bytes, |product: u64, &dim| product.checked_mul(dim));
    bytes.and_then(|bytes| bytes.checked_next_multiple_of(512)) == block_bytes.checked_next_multiple_of(512)
}

fn asked(life: &Life) -> u64 {
    life.requested_bytes.get().unwrap_or(life.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GPT-2 in float32, with 12 sequences of 1,000 tokens in bfloat16: width 768, vocabulary 50,257.
    fn gpt2() -> Dims {
        let parameters =
            [(768, 100), (3072, 12), (2304, 12), (768 * 768, 12), (768 * 3072, 24), (50257 * 768, 1)];
        let made = [(768, 2), (3072, 2), (2304, 2), (768, 4), (1, 8), (1, 4)];
        let made = made.map(|(width, element): (u64, u64)| 12_000 * width * element);
        Dims::of_sizes(&parameters.map(|(length, count)| (4 * length, count)).into(), &made.into())
    }

    #[test]
    fn a_models_dimensions_are_found_from_its_parameters_and_activations() {
        let dims = gpt2();
        assert_eq!(dims.wide, 768);
        assert_eq!(dims.widths, BTreeSet::from([768, 2304, 3072, 50257]));
        assert_eq!(dims.rows[0].0, 12_000, "{:?}", dims.rows);
    }

    #[test]
    fn logits_are_recognised_by_the_vocabulary_and_scores_by_the_sequence() {
        let check = |bytes: u64, dims: &[u64], element_bytes| {
            let found = gpt2().products(bytes).into_iter().chain(gpt2().attention(bytes)).next();
            assert_eq!(found.map(|it| (it.dims, it.element_bytes)), Some((dims.to_vec(), element_bytes)));
        };
        check((12_000 * 50257 * 4_u64).next_multiple_of(512), &[12_000, 50257], 4);
        check(12_000 * 3072 * 2, &[12_000, 3072], 2);
        check(12 * 12 * 1000 * 1000 * 4, &[12, 12, 1000, 1000], 4);
    }

    #[test]
    fn what_is_no_product_of_known_dimensions_gets_no_guess() {
        let bytes = 12_007 * 50_261 * 512;
        assert!(gpt2().products(bytes).is_empty());
        assert_eq!(gpt2().attention(bytes), None);
        assert!(Dims::default().products(1 << 30).is_empty());
    }

    #[test]
    fn a_square_parameter_shows_the_type_of_all() {
        let sizes = [(2 * 512, 9), (2 * 512 * 512, 4), (2 * 512 * 2048, 2)];
        assert_eq!(Dims::of_sizes(&sizes.into(), &BTreeSet::new()).wide, 512);
    }
}
