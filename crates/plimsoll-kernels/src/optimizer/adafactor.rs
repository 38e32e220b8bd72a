//! Adafactor: factors the second moment of a matrix into those of its rows and its columns.
//!
//! Three passes and no temporary: the variances, the RMS of parameter and update, and the update.

use smallvec::{SmallVec, smallvec};

use super::super::number::Float;
use super::super::parallel::{Pieces, for_each_cut};
use super::clip::{sum_in_parts, sum_of_squares};

/// One step of Adafactor on one parameter, as `torch.optim.Adafactor` defines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdafactorStep {
    /// The largest relative step.
    pub lr: f64,
    /// Exponent of the decay of the variances; 0 or less.
    pub beta2_decay: f64,
    /// The square root of the smallest variance; `None` means the type's rounding error.
    pub eps1: Option<f64>,
    /// The lower bound of a parameter's RMS, to which a step is relative.
    pub eps2: f64,
    /// The largest RMS of an update.
    pub d: f64,
    /// Decay of the parameter itself.
    pub weight_decay: f64,
    /// Whether to step along the gradient instead of against it.
    pub maximize: bool,
}

pub(super) fn state_shapes(shape: &[usize]) -> SmallVec<[SmallVec<[usize; 4]>; 3]> {
    let Some(rows) = shape.len().checked_sub(2) else { return smallvec![SmallVec::from_slice(shape)] };
    let without = |dim: usize| {
        let mut shape: SmallVec<[usize; 4]> = SmallVec::from_slice(shape);
        shape[dim] = 1;
        shape
    };
    smallvec![without(rows + 1), without(rows)]
}

/// Running variances of rows and columns, or of the elements of a vector.
enum Variance<'a, T> {
    Factored { rows: &'a mut [T], columns: &'a mut [T], shape: [usize; 3] },
    Whole(&'a mut [T]),
}

impl<T: Float> Variance<'_, T> {
    /// Adds the squares of `grad` to the averages, with this weight.
    fn update(&mut self, grad: &[T], weight: T) {
        let mix = |old: &mut T, new: T| *old += weight * (new - *old);
        match self {
            Variance::Whole(variance) => variance.iter_mut().zip(grad).for_each(|(v, &g)| mix(v, g * g)),
            Variance::Factored { rows, columns, shape: [batch, height, width] } => {
                let (height, width) = (*height, *width);
                for matrix in 0..*batch {
                    let columns = &mut columns[matrix * width..][..width];
                    columns.iter_mut().for_each(|column| *column *= T::ONE - weight);
                    let share = weight / T::of(height as f64);
                    for row in matrix * height..(matrix + 1) * height {
                        let grad = &grad[row * width..][..width];
                        columns.iter_mut().zip(grad).for_each(|(column, &g)| *column += share * g * g);
                        let mean = sum_of_squares(grad) / width as f64;
                        mix(&mut rows[row], T::of(mean));
                    }
                }
            }
        }
    }

    /// The length and the number of contiguous runs of elements.
    fn runs(&self) -> (usize, usize) {
        match self {
            Variance::Whole(variance) => (variance.len(), 1),
            Variance::Factored { shape: [batch, height, width], .. } => (*width, batch * height),
        }
    }

    /// The factor of the gradient at `at` of run `run`, given the mean over its matrix's rows.
    fn scale(&self, run: usize, at: usize, mean: T, eps: T) -> T {
        let estimate = match self {
            Variance::Whole(variance) => variance[at],
            Variance::Factored { rows, columns, shape: [_, height, width] } => {
                let matrix = run / height;
                rows[run] * columns[matrix * width + at] / mean
            }
        };
        T::ONE / largest(estimate, eps * eps).sqrt()
    }
}

/// The larger of the two, or NaN if either is NaN, as in PyTorch.
fn largest<T: Float>(a: T, b: T) -> T {
    if a < b { b } else { a }
}

/// Moves `param` against `grad` divided by the root of its variance, by a step relative to the parameter's
/// RMS.
pub(super) fn adafactor_step<T: Float>(
    options: &AdafactorStep,
    step: u64,
    shape: &[usize],
    (param, grad): (&mut [T], &[T]),
    first: &mut [T],
    second: Option<&mut [T]>,
) {
    assert_eq!(param.len(), grad.len(), "adafactor: parameter and gradient differ in length");
    if param.is_empty() {
        return;
    }
    let &AdafactorStep { lr, beta2_decay, eps1, eps2, d, weight_decay, maximize } = options;
    let eps1 = T::of(eps1.unwrap_or(T::EPSILON));
    let root_len = (param.len() as f64).sqrt();
    let rate = lr.min((step as f64).sqrt().recip());
    let alpha = eps2.max(sum_of_squares(param).sqrt() / root_len) * rate;
    let mut variance = match second {
        None => Variance::Whole(first),
        Some(columns) => {
            let [height, width] = [shape[shape.len() - 2], shape[shape.len() - 1]];
            Variance::Factored {
                rows: first,
                columns,
                shape: [param.len() / (height * width), height, width],
            }
        }
    };
    variance.update(grad, T::of((step as f64).powf(beta2_decay)));
    let means = |matrix: usize| match &variance {
        Variance::Whole(_) => T::ONE,
        Variance::Factored { rows, shape: [_, height, _], .. } => {
            let rows = &rows[matrix * height..][..*height];
            let mean = rows.iter().map(|&x| x.wide()).sum::<f64>() / *height as f64;
            largest(T::of(mean), eps1)
        }
    };
    let (run_len, runs) = variance.runs();
    // Each row of a matrix needs the matrix's mean, so it is read once per row, not once per element.
    let scales = |run: usize, each: &mut dyn FnMut(usize, T)| {
        let matrix = match &variance {
            Variance::Whole(_) => 0,
            Variance::Factored { shape: [_, height, _], .. } => run / height,
        };
        let mean = means(matrix);
        (0..run_len).for_each(|at| each(at, variance.scale(run, at, mean, eps1)));
    };
    let squares = sum_in_parts(runs, |range| {
        let mut total = 0.0;
        for run in range {
            scales(run, &mut |at, scale| total += (scale * grad[run * run_len + at]).wide().powi(2));
        }
        total
    });
    let clip = 1f64.max(squares.sqrt() / (root_len * d));
    let (keep, move_by) = (1.0 - lr * weight_decay, if maximize { -alpha / clip } else { alpha / clip });
    let (keep, move_by) = (T::of(if weight_decay == 0.0 { 1.0 } else { keep }), T::of(move_by));
    for_each_cut(runs, Pieces::of(param, run_len), |run, param| {
        let grad = &grad[run * run_len..];
        scales(run, &mut |at, scale| param[at] = keep * param[at] - move_by * scale * grad[at]);
    });
}
