//! Compares SGD and Adam with their formulas in double precision, on any number of threads.

use super::*;
use crate::testing::*;

const LENS: [usize; 3] = [1, 37, 100_003];

#[test]
fn three_sgd_steps_match_the_formula_in_double_precision() {
    for (momentum, dampening, weight_decay, nesterov) in [
        (0.0, 0.0, 0.0, false),
        (0.0, 0.0, 0.1, false),
        (0.9, 0.0, 0.01, false),
        (0.9, 0.3, 0.0, false),
        (0.9, 0.0, 0.01, true),
    ] {
        let options =
            SgdStep { lr: 0.1, momentum, dampening, weight_decay, nesterov, first: false, maximize: false };
        for len in LENS {
            let start = random(len, 1);
            let mut reference: Vec<[f64; 2]> = start.iter().map(|&p| [f64::from(p), 0.0]).collect();
            for step in 0..3 {
                for ([p, buffer], g) in reference.iter_mut().zip(random(len, 5 + step)) {
                    let g = f64::from(g) + weight_decay * *p;
                    *buffer = if step == 0 { g } else { momentum * *buffer + (1.0 - dampening) * g };
                    *p -= 0.1
                        * if nesterov {
                            g + momentum * *buffer
                        } else if momentum == 0.0 {
                            g
                        } else {
                            *buffer
                        };
                }
            }
            let found = on_any_threads(|| {
                let (mut param, mut buffer) = (start.clone(), vec![f32::NAN; len]);
                for step in 0..3 {
                    let buffer = (momentum != 0.0).then_some(&mut buffer[..]);
                    let options = SgdStep { first: step == 0, ..options };
                    sgd_step(&options, &mut param, &random(len, 5 + step), buffer);
                }
                param
            });
            assert_close(&found, &reference.iter().map(|r| r[0] as f32).collect::<Vec<_>>(), 1e-6);
        }
    }
}

#[test]
fn three_adam_steps_match_the_formula_in_double_precision() {
    for decay in [Decay::InGradient, Decay::Decoupled] {
        let options = AdamStep {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.1,
            decay,
            amsgrad: false,
            maximize: false,
            step: 0,
        };
        for len in LENS {
            let start = random(len, 1);
            let mut reference: Vec<[f64; 3]> = start.iter().map(|&p| [f64::from(p), 0.0, 0.0]).collect();
            for step in 1..=3 {
                for ([p, m, v], g) in reference.iter_mut().zip(random(len, 5 + step)) {
                    let mut g = f64::from(g);
                    match decay {
                        Decay::InGradient => g += 0.1 * *p,
                        Decay::Decoupled => *p *= 1.0 - 0.1 * 0.1,
                    }
                    *m = 0.9 * *m + 0.1 * g;
                    *v = 0.999 * *v + 0.001 * g * g;
                    let root = (*v / (1.0 - 0.999f64.powf(step as f64))).sqrt() + 1e-8;
                    *p -= 0.1 * (*m / (1.0 - 0.9f64.powf(step as f64))) / root;
                }
            }
            let found = on_any_threads(|| {
                let (mut param, mut m, mut v) = (start.clone(), vec![0.0; len], vec![0.0; len]);
                for step in 1..=3 {
                    adam_step(
                        &AdamStep { step, ..options },
                        &mut param,
                        &random(len, 5 + step),
                        &mut m,
                        &mut v,
                        None,
                    );
                }
                param
            });
            assert_close(&found, &reference.iter().map(|r| r[0] as f32).collect::<Vec<_>>(), 2e-5);
        }
    }
}
