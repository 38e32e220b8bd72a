//! The rows of a step of a sequence, divided among threads by batch, together with the rows of the previous step.

use super::super::parallel::Pieces;
use super::steps::Steps;

/// The number of gate elements in a chunk: a few µs of work, below which waking another thread costs more.
const CHUNK: usize = 8192;

/// One step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) steps: Steps,
    pub(super) time: usize,
    pub(super) before: Option<usize>,
    /// The number of rows in a chunk.
    pub(super) rows: usize,
}

impl Step {
    /// The `i`-th step in execution order, with `gates` gates per row.
    pub(super) fn of(steps: &Steps, i: usize, gates: usize) -> Step {
        let (time, before) = steps.at(i);
        Step { steps: *steps, time, before, rows: (CHUNK / gates.max(1)).clamp(1, steps.batch.max(1)) }
    }

    pub(super) fn chunks(&self) -> usize {
        self.steps.batch.div_ceil(self.rows)
    }

    /// The batches of a chunk.
    pub(super) fn batches(&self, chunk: usize) -> std::ops::Range<usize> {
        chunk * self.rows..self.steps.batch.min((chunk + 1) * self.rows)
    }

    /// Splits a sequence of rows of `width` so that each chunk has its rows of this step. Also returns the rows of the previous
    /// step, if they are not in the same piece. A sequence that the cell does not have is empty, and so are its pieces.
    pub(super) fn cut<'a, T>(&self, data: &'a mut [T], width: usize) -> (Pieces<'a, T>, &'a [T]) {
        let Steps { time, batch, batch_first, .. } = self.steps;
        if batch_first || data.is_empty() {
            return (Pieces::of(data, self.rows * time * width), &[]);
        }
        let len = batch * width;
        let (first, before) = (self.time * len, self.before.map(|before| before * len));
        let (now, past): (&mut [T], &[T]) = match before {
            Some(before) if before < first => {
                let (past, now) = data.split_at_mut(first);
                (&mut now[..len], &past[before..][..len])
            }
            Some(before) => {
                let (now, past) = data.split_at_mut(before);
                (&mut now[first..][..len], &past[..len])
            }
            None => (&mut data[first..][..len], &[]),
        };
        (Pieces::of(now, self.rows * width), past)
    }

    /// The row of a batch at this step and the one at the previous step, from the piece of its chunk.
    pub(super) fn row<'a, T>(
        &self,
        (piece, past): (&'a mut [T], &'a [T]),
        batch: usize,
        width: usize,
    ) -> (Option<&'a [T]>, &'a mut [T]) {
        let nth = batch % self.rows;
        if !self.steps.batch_first {
            let before = self.before.and_then(|_| past.get(batch * width..(batch + 1) * width));
            return (before, &mut piece[nth * width..][..width]);
        }
        let len = self.steps.time * width;
        let sequence = &mut piece[nth * len..][..len];
        let now = self.time * width;
        match self.before.map(|before| before * width) {
            Some(before) if before < now => {
                let (past, rest) = sequence.split_at_mut(now);
                (Some(&past[before..][..width]), &mut rest[..width])
            }
            Some(before) => {
                let (rest, past) = sequence.split_at_mut(before);
                (Some(&past[..width]), &mut rest[now..][..width])
            }
            None => (None, &mut sequence[now..][..width]),
        }
    }
}
