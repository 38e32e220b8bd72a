//! Compares rows divided among threads, and projected outputs, with loops over single numbers.

use super::*;
use crate::recurrent::*;
use crate::testing::*;

/// An LSTM, computed one number at a time.
fn reference(steps: &Steps, start: Start<'_, f32>, inputs: &[f32]) -> Vec<f32> {
    let Steps { hidden, state, .. } = *steps;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut y = vec![0.0; steps.time * steps.batch * state];
    for batch in 0..steps.batch {
        let mut h: Vec<f64> = start.h0[batch * state..][..state].iter().map(|&x| f64::from(x)).collect();
        let mut c: Vec<f64> = start.c0[batch * hidden..][..hidden].iter().map(|&x| f64::from(x)).collect();
        for i in 0..steps.time {
            let row = steps.row(steps.at(i).0, batch);
            let gate = |k: usize, j: usize| {
                let at = k * hidden + j;
                let of_state: f64 = (0..state).map(|s| h[s] * f64::from(start.weight[at * state + s])).sum();
                f64::from(inputs[row * 4 * hidden + at]) + of_state
            };
            let gates: Vec<[f64; 4]> = (0..hidden).map(|j| [0, 1, 2, 3].map(|k| gate(k, j))).collect();
            let outputs: Vec<f64> = gates
                .iter()
                .zip(&mut c)
                .map(|(&[i, f, g, o], c)| {
                    *c = sigmoid(f) * *c + sigmoid(i) * g.tanh();
                    sigmoid(o) * c.tanh()
                })
                .collect();
            let project = |s: usize| match start.projection {
                None => outputs[s],
                Some(weight) => (0..hidden).map(|j| outputs[j] * f64::from(weight[s * hidden + j])).sum(),
            };
            h = (0..state).map(project).collect();
            y[row * state..][..state].iter_mut().zip(&h).for_each(|(y, &h)| *y = h as f32);
        }
    }
    y
}

#[test]
fn an_lstm_in_many_chunks_matches_the_reference_projected_or_not() {
    for (state, projected, batch_first, reverse) in [
        (200, false, false, false),
        (200, false, true, true),
        (24, true, false, true),
        (24, true, true, false),
        (200, true, false, false),
    ] {
        let steps = Steps {
            cell: Cell::Lstm,
            time: 3,
            batch: 37,
            hidden: 200,
            state,
            projected,
            batch_first,
            reverse,
        };
        let (hidden, rows) = (steps.hidden, steps.time * steps.batch);
        let (h0, c0) = (random(37 * state, 1), random(37 * hidden, 2));
        let scaled = |values: Vec<f32>| values.into_iter().map(|x| x / 8.0).collect::<Vec<_>>();
        let (weight, projection) = (scaled(random(4 * hidden * state, 3)), scaled(random(state * hidden, 4)));
        let projection = projected.then_some(&projection[..]);
        let start = Start { h0: &h0, c0: &c0, weight: &weight, bias: None, projection };
        let inputs = random(rows * 4 * hidden, 5);
        let found = on_any_threads(|| {
            let (mut y, mut gates, mut memory) =
                (vec![f32::NAN; rows * state], inputs.clone(), vec![f32::NAN; rows * hidden]);
            let mut scratch = vec![f32::NAN; forward_scratch_len(&steps)];
            forward(&steps, start, (&mut y, &mut gates, &mut memory), &mut scratch);
            y
        });
        assert_close(&found, &reference(&steps, start, &inputs), 1e-5);
    }
}
