//! One layer in one direction, over sequences of equal length or packed sequences. For packed sequences, it handles one
//! group of steps with the same number of sequences at a time.

use plimsoll_tensor::{Cell, RecurrentState, Result, Tensor};

use super::direction::Direction;
use super::packed::EqualSteps;

/// Runs over `[steps, batch, inputs]`, or `[batch, steps, inputs]` with `batch_first`.
pub(super) fn steps(
    cell: Cell,
    direction: &Direction,
    x: &Tensor,
    state: &RecurrentState,
    batch_first: bool,
    reverse: bool,
) -> Result<(Tensor, RecurrentState)> {
    x.recurrent(direction.layer(cell, batch_first, reverse), state)
}

/// Runs over packed rows `[rows, inputs]`, the longest sequence first. A sequence's last state is the state after its own last
/// step.
pub(super) fn packed(
    cell: Cell,
    direction: &Direction,
    (x, equal_steps): (&Tensor, &[EqualSteps]),
    first: &RecurrentState,
    reverse: bool,
) -> Result<(Tensor, RecurrentState)> {
    let inputs = x.shape()[1];
    let over = |run: &EqualSteps, state: &RecurrentState| {
        let EqualSteps { row, steps: count, batch } = *run;
        let part = x.narrow(0, row, count * batch)?.reshape(&[count, batch, inputs])?;
        let (y, last) = steps(cell, direction, &part, state, false, reverse)?;
        Ok((y.flatten(0, 1)?, last))
    };
    let rows = |state: &RecurrentState, from: usize, to: usize| -> Result<RecurrentState> {
        let part = |x: &Tensor| x.narrow(0, from, to - from);
        Ok(RecurrentState { h: part(&state.h)?, c: state.c.as_ref().map(part).transpose()? })
    };
    let mut outs = Vec::with_capacity(equal_steps.len());
    let mut state: Option<RecurrentState> = None;
    if reverse {
        let mut running = 0;
        for run in equal_steps.iter().rev() {
            // Backwards, the sequences that end in this group start here, with their initial state.
            let joining = rows(first, running, run.batch)?;
            let (y, last) = over(
                run,
                &match &state {
                    Some(state) => joined(&[state, &joining])?,
                    None => joining,
                },
            )?;
            (running, state) = (run.batch, Some(last));
            outs.push(y);
        }
        outs.reverse();
    } else {
        // States of the sequences that have ended, the shortest first.
        let mut ended = Vec::new();
        for run in equal_steps {
            let current = match state.take() {
                None => first.clone(),
                Some(before) => {
                    ended.push(rows(&before, run.batch, before.h.shape()[0])?);
                    rows(&before, 0, run.batch)?
                }
            };
            let (y, last) = over(run, &current)?;
            state = Some(last);
            outs.push(y);
        }
        if let Some(last) = &state {
            let all: Vec<&RecurrentState> = std::iter::once(last).chain(ended.iter().rev()).collect();
            state = Some(joined(&all)?);
        }
    }
    let y = Tensor::cat(&outs.iter().collect::<Vec<_>>(), 0)?;
    Ok((y, state.unwrap_or_else(|| first.clone())))
}

/// Concatenates the states of several groups of sequences.
fn joined(states: &[&RecurrentState]) -> Result<RecurrentState> {
    let h: Vec<&Tensor> = states.iter().map(|state| &state.h).collect();
    let c: Vec<&Tensor> = states.iter().filter_map(|state| state.c.as_ref()).collect();
    let c = (!c.is_empty()).then(|| Tensor::cat(&c, 0)).transpose()?;
    Ok(RecurrentState { h: Tensor::cat(&h, 0)?, c })
}
