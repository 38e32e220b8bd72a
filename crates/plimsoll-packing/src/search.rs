//! Exact search for a packing within a fixed capacity ([`search`]): many short attempts that learn from each other's conflicts.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `instance.rs` | what does not change: sizes, sections, neighbours |
//! | `state.rs` | a partial packing, lower bounds of offsets, and how to undo changes |
//! | `propagate.rs` | the rules that raise lower bounds or find a conflict |
//! | `choice.rs` | which buffer is placed next |
//! | `attempt.rs` | a depth-first search with a limit |

mod attempt;
mod choice;
mod instance;
mod propagate;
mod state;

use crate::Buffer;
use attempt::{Attempt, Ending};
use choice::{First, Preferences, Ranking};
use instance::Instance;
use state::State;

/// The result of a search.
pub(crate) enum Found {
    /// An offset for each buffer.
    Offsets(Vec<u64>),
    /// There is no packing within this capacity.
    Impossible,
    /// The limit was reached.
    Limit,
}

/// One kind of attempt. Each kind learns only from its own conflicts.
struct Kind {
    first: First,
    /// After a conflict, return to a decision near it: Note [Jumps].
    jumps: bool,
    /// [`Preferences::lead`], in thousandths of the capacity.
    lead: u64,
}

/// Measured on MiniMalloc's instances: each of these finds packings that the others do not.
const KINDS: [Kind; 4] = [
    Kind { first: First::Wide, jumps: true, lead: 0 },
    Kind { first: First::Wide, jumps: false, lead: 30 },
    Kind { first: First::Wide, jumps: true, lead: 100 },
    Kind { first: First::LargeArea, jumps: true, lead: 0 },
];

/// [`Preferences::grain`] is this fraction of the capacity.
const GRAINS: u64 = 256;

/// Searches for a packing within `capacity`, and subtracts the number of buffers that it looked at from `steps`.
pub(crate) fn search(buffers: &[Buffer], capacity: u64, steps: &mut u64) -> Found {
    let instance = Instance::new(buffers);
    let mut weights: Vec<Vec<u64>> = KINDS.iter().map(|_| vec![0; instance.sections]).collect();
    // The number of buffers that preparing an attempt looks at.
    let preparation = instance.members.iter().map(|members| members.len() as u64).sum::<u64>();
    let mut nodes = 3 * buffers.len() as u64;
    for seed in 0.. {
        for (kind, weight) in KINDS.iter().zip(&mut weights) {
            let lead = capacity / 1000 * kind.lead;
            let preferences = Preferences { first: kind.first, grain: capacity / GRAINS, lead };
            let ranking = Ranking::new(&instance, weight, &preferences, seed);
            let mut attempt = Attempt::new(State::new(&instance, capacity), &ranking, weight, kind.jumps);
            let ending = attempt.run(nodes, *steps);
            *steps = steps.saturating_sub(attempt.steps() + preparation);
            match ending {
                Ending::Packed(offsets) => return Found::Offsets(offsets),
                Ending::Impossible => return Found::Impossible,
                Ending::Open if *steps == 0 => return Found::Limit,
                Ending::Open => {}
            }
        }
        nodes += nodes / 10;
    }
    Found::Limit
}
