//! The allocated bytes at the start of the last steps, for a live view: [`StepLevels`].

use std::collections::VecDeque;

/// The number of steps kept.
const KEPT: usize = 240;

/// The allocated bytes at the start of each of the last steps.
#[derive(Debug)]
pub(super) struct StepLevels {
    steps: u64,
    /// At most [`KEPT`] entries, preallocated.
    kept: VecDeque<u64>,
}

impl Default for StepLevels {
    fn default() -> Self {
        Self { steps: 0, kept: VecDeque::with_capacity(KEPT) }
    }
}

impl StepLevels {
    /// Begins a step.
    pub(super) fn begin(&mut self, allocated_bytes: u64) {
        self.steps += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(allocated_bytes);
    }

    /// The number of steps begun.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The levels, oldest first.
    pub(super) fn kept(&self) -> Vec<u64> {
        self.kept.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_of_the_last_steps_are_kept_and_all_are_counted() {
        let mut levels = StepLevels::default();
        (0..KEPT as u64 + 10).for_each(|bytes| levels.begin(bytes));
        assert_eq!((levels.steps, levels.kept.len()), (250, 240));
        assert_eq!((levels.kept.front(), levels.kept.back()), (Some(&10), Some(&249)));
    }
}
