//! Cross entropy of logits, without their softmax in memory: two numbers per row suffice to recompute it.
//!
//! A position's loss is `Σ b_c (log Σ e^x - x_c)` over its classes, with coefficients `b` that depend on its target, the
//! weights of the classes and label smoothing; its gradient is `Σb · softmax(x)_c - b_c`. Logits are `[outer, classes,
//! inner]`.

use super::nll::BadTarget;
use crate::normalization::softmax::{row_max, row_sum};
use crate::number::Float;
use crate::parallel::{PIECE, for_each_piece, for_each_piece3};
use crate::simd::vectorize;

/// The targets with which positions are compared.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a, T> {
    /// One class for each position; positions with the class `ignored` do not count.
    Classes { index: &'a [i64], ignored: i64 },
    /// A probability for each class, in the layout of the logits.
    Probabilities(&'a [T]),
}

/// The coefficients of a loss.
#[derive(Clone, Copy, Debug)]
pub struct Coefficients<'a, T> {
    pub classes: usize,
    /// The number of adjacent positions, which is also the distance between the logits of one position.
    pub inner: usize,
    /// A weight for each class; 1 if `None`.
    pub weight: Option<&'a [T]>,
    /// The fraction of the loss that is spread over all classes.
    pub smoothing: f64,
    pub targets: Targets<'a, T>,
}

/// The number of adjacent positions that are processed together.
const BLOCK: usize = 64;

impl<T: Float> Coefficients<'_, T> {
    fn weight(&self, class: usize) -> T {
        self.weight.map_or(T::of(1.0), |weight| weight[class])
    }

    /// The factor of the part of each class's coefficient that does not depend on the target: its weight times this.
    fn spread(&self) -> T {
        T::of(self.smoothing / self.classes as f64)
    }

    /// The offset of the first logit of a position.
    fn at(&self, position: usize) -> usize {
        position / self.inner * self.classes * self.inner + position % self.inner
    }

    /// The sum of the weights of the positions, which is the divisor of a mean.
    ///
    /// # Errors
    /// The first target that is neither a class nor ignored.
    pub fn total(&self, positions: usize) -> Result<f64, BadTarget> {
        let Targets::Classes { index, ignored } = self.targets else { return Ok(positions as f64) };
        let mut total = 0.0;
        for (row, &value) in index.iter().enumerate().filter(|&(_, &value)| value != ignored) {
            let class = usize::try_from(value).ok().filter(|&class| class < self.classes);
            let class = class.ok_or(BadTarget { row, value, cols: self.classes })?;
            total += self.weight(class).wide();
        }
        Ok(total)
    }

    /// The class of a position and its coefficient without the spread; `None` if it is ignored or has probabilities.
    #[inline(always)]
    fn class(&self, position: usize) -> Option<(usize, T)> {
        match self.targets {
            Targets::Classes { index, ignored } if index[position] != ignored => {
                let class = index[position] as usize;
                Some((class, T::of(1.0 - self.smoothing) * self.weight(class)))
            }
            _ => None,
        }
    }

    /// Whether a position counts.
    #[inline(always)]
    fn counts(&self, position: usize) -> bool {
        match self.targets {
            Targets::Classes { index, ignored } => index[position] != ignored,
            Targets::Probabilities(_) => true,
        }
    }

    /// The part of a class's coefficient that does not depend on a target class.
    #[inline(always)]
    fn base(&self, position: usize, class: usize) -> T {
        match self.targets {
            Targets::Classes { .. } => self.spread() * self.weight(class),
            Targets::Probabilities(all) => {
                let probability = all[self.at(position) + class * self.inner];
                self.weight(class) * (probability * T::of(1.0 - self.smoothing) + self.spread())
            }
        }
    }

    /// Whether classes other than the target have coefficients.
    fn has_base(&self) -> bool {
        self.smoothing != 0.0 || matches!(self.targets, Targets::Probabilities(_))
    }

    /// The sum of a position's coefficients.
    #[inline(always)]
    fn level(&self, position: usize) -> T {
        let base: T = match self.has_base() {
            true => (0..self.classes).map(|class| self.base(position, class)).sum(),
            false => T::default(),
        };
        base + self.class(position).map_or(T::default(), |(_, coefficient)| coefficient)
    }

    /// A position's loss, from its logits (at the beginning of `x`, `step` apart), their maximum, and the log-sum-exp
    /// relative to it.
    #[inline(always)]
    pub fn loss(&self, position: usize, (x, step): (&[T], usize), max: T, log_sum: T) -> T {
        if !self.counts(position) {
            return T::default();
        }
        let mut loss = T::default();
        if self.has_base() {
            for class in 0..self.classes {
                loss += self.base(position, class) * (log_sum - (x[class * step] - max));
            }
        }
        match self.class(position) {
            Some((class, coefficient)) => loss + coefficient * (log_sum - (x[class * step] - max)),
            None => loss,
        }
    }

    /// Writes the gradient of a row of contiguous logits, times `scale`.
    #[inline(always)]
    pub fn gradient(&self, position: usize, [max, log_sum]: [T; 2], scale: T, row: &mut [T]) {
        if !self.counts(position) {
            return row.fill(T::default());
        }
        let level = self.level(position) * scale;
        for x in &mut *row {
            *x = (*x - max - log_sum).exp() * level;
        }
        if self.has_base() {
            for (class, x) in row.iter_mut().enumerate() {
                *x = *x - self.base(position, class) * scale;
            }
        }
        if let Some((class, coefficient)) = self.class(position) {
            row[class] = row[class] - coefficient * scale;
        }
    }
}

/// The maximum of a row, and the log-sum-exp relative to it.
#[inline(always)]
pub fn log_sum<T: Float>(row: &[T]) -> [T; 2] {
    let max = row_max(row);
    let mut sum = 0f64;
    let mut buffer = [T::default(); 256];
    for part in row.chunks(buffer.len()) {
        let exps = &mut buffer[..part.len()];
        exps.iter_mut().zip(part).for_each(|(out, &x)| *out = (x - max).exp());
        sum += row_sum(exps).wide();
    }
    [max, T::of(sum.ln())]
}

/// The same for as many adjacent positions as `max` has elements.
#[inline(always)]
fn log_sums<T: Float>(x: &[T], (classes, inner): (usize, usize), max: &mut [T], log_sums: &mut [T]) {
    let mut sums = [T::default(); BLOCK];
    max.fill(T::LOWEST);
    for class in 0..classes {
        let x = &x[class * inner..][..max.len()];
        max.iter_mut().zip(x).for_each(|(max, &x)| *max = if x > *max { x } else { *max });
    }
    for class in 0..classes {
        let x = &x[class * inner..][..max.len()];
        for ((sum, &x), &max) in sums.iter_mut().zip(x).zip(&*max) {
            *sum += (x - max).exp();
        }
    }
    log_sums.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum.ln());
}

/// Writes the loss of each position, the maximum of its logits, and the log-sum-exp relative to it.
/// [`Coefficients::total`] must have checked the targets.
pub fn cross_entropy<T: Float>(
    of: &Coefficients<'_, T>,
    x: &[T],
    losses: &mut [T],
    max: &mut [T],
    log: &mut [T],
) {
    let &Coefficients { classes, inner, .. } = of;
    let piece = (PIECE / 8 / classes.max(1)).next_multiple_of(BLOCK);
    for_each_piece3((losses, max, log), piece, |start, losses, max, log| {
        vectorize(
            #[inline(always)]
            || {
                let mut done = 0;
                while done < losses.len() {
                    let position = start + done;
                    let count = BLOCK.min(inner - position % inner).min(losses.len() - done);
                    let x = &x[of.at(position).min(x.len())..];
                    let (max, log) = (&mut max[done..][..count], &mut log[done..][..count]);
                    if inner == 1 {
                        [max[0], log[0]] = log_sum(&x[..classes]);
                    } else {
                        log_sums(x, (classes, inner), max, log);
                    }
                    for i in 0..count {
                        losses[done + i] =
                            of.loss(position + i, (&x[i.min(x.len())..], inner), max[i], log[i]);
                    }
                    done += count;
                }
            },
        );
    });
}

/// Writes the gradient of the logits. `scale` returns the gradient of each position's loss.
pub fn cross_entropy_backward<T: Float>(
    of: &Coefficients<'_, T>,
    x: &[T],
    [max, log]: [&[T]; 2],
    scale: impl Fn(usize) -> T + Sync,
    out: &mut [T],
) {
    let &Coefficients { classes, inner, .. } = of;
    let outer = classes * inner;
    if out.is_empty() {
        return;
    }
    let rows = if inner == 1 { (PIECE / 8 / classes).max(1) } else { 1 };
    for_each_piece(out, rows * outer, |start, piece| {
        piece.copy_from_slice(&x[start..][..piece.len()]);
        vectorize(
            #[inline(always)]
            || {
                for (n, out) in piece.chunks_exact_mut(outer).enumerate() {
                    let first = (start / outer + n) * inner;
                    if inner == 1 {
                        of.gradient(first, [max[first], log[first]], scale(first), out);
                    } else {
                        columns(of, first, [&max[first..][..inner], &log[first..][..inner]], &scale, out);
                    }
                }
            },
        );
    });
}

/// The gradients of adjacent positions, from `first` onward.
#[inline(always)]
fn columns<T: Float>(
    of: &Coefficients<'_, T>,
    first: usize,
    [max, log]: [&[T]; 2],
    scale: &impl Fn(usize) -> T,
    out: &mut [T],
) {
    for from in (0..of.inner).step_by(BLOCK) {
        let count = BLOCK.min(of.inner - from);
        let scales: [T; BLOCK] = std::array::from_fn(|i| {
            let counts = i < count && of.counts(first + from + i);
            if counts { scale(first + from + i) } else { T::default() }
        });
        let levels: [T; BLOCK] = std::array::from_fn(|i| {
            let counts = scales[i] != T::default();
            if counts { of.level(first + from + i) * scales[i] } else { T::default() }
        });
        let (max, log) = (&max[from..][..count], &log[from..][..count]);
        for class in 0..of.classes {
            let row = &mut out[class * of.inner + from..][..count];
            for (((x, &max), &log), level) in row.iter_mut().zip(max).zip(log).zip(levels) {
                *x = if level == T::default() { level } else { (*x - max - log).exp() * level };
            }
            if of.has_base() {
                for (i, x) in row.iter_mut().enumerate() {
                    *x = *x - of.base(first + from + i, class) * scales[i];
                }
            }
        }
        for i in 0..count {
            if let Some((class, coefficient)) = of.class(first + from + i) {
                let x = &mut out[class * of.inner + from + i];
                *x = *x - coefficient * scales[i];
            }
        }
    }
}

/// Writes all coefficients, for the second derivative. The targets must have been checked.
pub fn coefficients<T: Float>(of: &Coefficients<'_, T>, out: &mut [T]) {
    for position in 0..out.len() / of.classes.max(1) {
        for class in 0..of.classes {
            let target = of.class(position).filter(|&(target, _)| target == class);
            let base = if of.counts(position) { of.base(position, class) } else { T::default() };
            out[of.at(position) + class * of.inner] =
                base + target.map_or(T::default(), |(_, coefficient)| coefficient);
        }
    }
}

/// Returns the sum of minus each position's log-probability of its class, times its weight. Writes each one to `out`, if
/// given. The targets must have been checked.
pub fn likelihood<T: Float>(
    of: &Coefficients<'_, T>,
    x: &[T],
    positions: usize,
    mut out: Option<&mut [T]>,
) -> f64 {
    let mut sum = 0.0;
    for position in 0..positions {
        let of_class = |(class, weight): (usize, T)| -(weight * x[of.at(position) + class * of.inner]);
        let loss = of.class(position).map_or(T::default(), of_class);
        sum += loss.wide();
        if let Some(out) = &mut out {
            out[position] = loss;
        }
    }
    sum
}

/// Writes the gradient of [`likelihood`]: one entry per position, 0 elsewhere. `scale` returns the gradient of each
/// position's loss.
pub fn likelihood_backward<T: Float>(
    of: &Coefficients<'_, T>,
    positions: usize,
    scale: impl Fn(usize) -> T,
    out: &mut [T],
) {
    crate::elementwise::strided::fill(out, T::default());
    for position in 0..positions {
        if let Some((class, weight)) = of.class(position) {
            out[of.at(position) + class * of.inner] = -(weight * scale(position));
        }
    }
}
