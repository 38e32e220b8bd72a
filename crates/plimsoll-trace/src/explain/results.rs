//! Finds results that a variable keeps if no backward pass follows: [`settle`]. In that case, a forward pass frees
//! every block: results of generation or evaluation, and operators' temporaries.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::kept::Program;
use super::purpose::{Purpose, Why};
use crate::snapshot::{EventIndex, StackId};
use crate::timeline::Life;

/// If this many blocks of the same stack are live at once, a variable such as a list or a cache keeps them, because a
/// temporary would be freed before its line has run that often.
const TOGETHER: usize = 4;

/// The live blocks of a stack.
#[derive(Default)]
struct Live {
    /// For each block, whether it is never freed, when it is freed, and its index in the list of blocks. Blocks that
    /// are never freed come last.
    ends: BTreeSet<(bool, Option<EventIndex>, usize)>,
    /// The blocks that are not marked as results yet.
    new: Vec<usize>,
}

pub(super) fn settle(program: &Program<'_>, lives: &[Life], purposes: &mut [Purpose]) {
    let mut of_stacks: BTreeMap<StackId, Live> = BTreeMap::new();
    let mut kept = Vec::new();
    for (place, (life, purpose)) in lives.iter().zip(purposes.iter()).enumerate() {
        let (Some(born), Some(stack)) = (life.born, life.stack) else { continue };
        if purpose.why != Why::FreedInForward || program.passes.next_backward(born).is_some() {
            continue;
        }
        let live = of_stacks.entry(stack).or_default();
        while live.ends.first().is_some_and(|(is_never, end, _)| !is_never && *end < Some(born)) {
            live.ends.pop_first();
        }
        live.ends.insert((life.freed.is_none(), life.freed, place));
        live.new.push(place);
        if live.ends.len() >= TOGETHER {
            let is_live = |place: &usize| lives[*place].freed.is_none_or(|freed| freed > born);
            kept.extend(std::mem::take(&mut live.new).into_iter().filter(is_live));
        } else if live.new.len() > 2 * TOGETHER {
            live.new.retain(|place| lives[*place].freed.is_none_or(|freed| freed > born));
        }
    }
    for place in kept {
        let is_input = program.is_input(&lives[place]);
        let category = if is_input { Category::Input } else { Category::Output };
        purposes[place] = Purpose { category: Some(category), why: Why::LiveTogether };
    }
}
