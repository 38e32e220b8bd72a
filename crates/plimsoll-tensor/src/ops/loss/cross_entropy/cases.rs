//! Cases for the conformance suite: cross entropies compared with their definition.

use smallvec::smallvec;

use super::CrossEntropyOptions;
use crate::cpu::kernels::loss::Reduction;
use crate::dtype::DType;
use crate::suite::{Case, Domain};
use crate::tensor::Tensor;

/// The loss of logits `[batch, classes, inner]` against classes, without weights.
fn naive([batch, classes, inner]: [usize; 3], ins: [&[f64]; 2], smoothing: f64) -> Vec<f64> {
    let position = |at: usize| {
        let x = |class: usize| ins[0][(at / inner * classes + class) * inner + at % inner];
        let log_sum = (0..classes).map(|class| x(class).exp()).sum::<f64>().ln();
        let all: f64 = (0..classes).map(|class| log_sum - x(class)).sum();
        (1.0 - smoothing) * (log_sum - x(ins[1][at] as usize)) + smoothing * all / classes as f64
    };
    (0..batch * inner).map(position).collect()
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |sizes: [usize; 3], reduction: Reduction, label_smoothing: f64| {
        let options = CrossEntropyOptions { reduction, label_smoothing, ..CrossEntropyOptions::default() };
        let [batch, classes, inner] = sizes;
        let (logits, of_target) = match inner {
            1 => (vec![batch, classes], vec![batch]),
            _ => (vec![batch, classes, inner], vec![batch, inner]),
        };
        Case::new(
            format!("cross_entropy {logits:?}, {reduction:?}, smoothing {label_smoothing}"),
            &[&logits],
            move |ins| Ok(smallvec![ins[0].cross_entropy_with(ins[1], options)?]),
        )
        .and(&of_target, DType::I64, Domain::Below(classes))
        .expect(move |ins| {
            let losses = naive(sizes, [&ins[0], &ins[1]], label_smoothing);
            let sum = losses.iter().sum::<f64>();
            vec![match reduction {
                Reduction::None => losses,
                Reduction::Sum => vec![sum],
                Reduction::Mean => vec![sum / (batch * inner) as f64],
            }]
        })
    };
    let weighted = |shapes: &[&[usize]]| {
        Case::new(format!("cross_entropy of probabilities {shapes:?}"), shapes, |ins| {
            let weight = ins[2].detach();
            let options = CrossEntropyOptions {
                weight: Some(&weight),
                label_smoothing: 0.2,
                ..CrossEntropyOptions::default()
            };
            Ok(smallvec![ins[0].cross_entropy_with(ins[1], options)?])
        })
    };
    let fused = |bias: bool| {
        let shapes: &[&[usize]] = if bias { &[&[2, 3, 4], &[5, 4], &[5]] } else { &[&[2, 3, 4], &[5, 4]] };
        Case::new(format!("linear_cross_entropy {shapes:?}"), shapes, move |ins| {
            let (bias, target) = (bias.then(|| ins[2]), ins[ins.len() - 1]);
            Ok(smallvec![ins[0].linear_cross_entropy(
                ins[1],
                bias,
                target,
                CrossEntropyOptions::default()
            )?])
        })
        .and(&[2, 3], DType::I64, Domain::Below(5))
    };
    // All options; targets of class 1 are ignored.
    let fused_with = |reduction: Reduction, label_smoothing: f64| {
        let name = format!("linear_cross_entropy with weights, {reduction:?}, smoothing {label_smoothing}");
        Case::new(name, &[&[2, 3, 4], &[5, 4], &[5]], move |ins| {
            let weights = Tensor::from_slice(&[0.5f32, 2.0, 1.0, 0.25, 1.5], &[5], ins[0].device())?;
            let weights = weights.to_dtype(ins[0].dtype())?;
            let options =
                CrossEntropyOptions { weight: Some(&weights), ignore_index: 1, label_smoothing, reduction };
            Ok(smallvec![ins[0].linear_cross_entropy(ins[1], Some(ins[2]), ins[3], options)?])
        })
        .and(&[2, 3], DType::I64, Domain::Below(5))
    };
    let mut cases = super::nll::cases();
    cases.extend([
        case([4, 5, 1], Reduction::Mean, 0.0),
        case([3, 20, 1], Reduction::Sum, 0.1),
        case([2, 3, 5], Reduction::None, 0.3),
        case([2, 3, 70], Reduction::Mean, 0.0),
        weighted(&[&[3, 4], &[3, 4], &[4]]).without_derivative(),
        fused(false),
        fused(true),
        fused_with(Reduction::Mean, 0.0),
        fused_with(Reduction::Sum, 0.2),
    ]);
    cases
}
