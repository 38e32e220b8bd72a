//! Complex transforms of any length. Lengths with a large prime factor become a convolution (Bluestein's algorithm), which is a product of
//! transforms whose length is a power of two.

use super::roots::{Numbers, NumbersMut, fill_roots, root};
use super::stages::{Stages, run_stages, stages_of};
use crate::number::Float;

/// How a length is transformed.
pub(super) struct Plan {
    len: usize,
    /// The stages of the length, or of the convolution's.
    stages: Stages,
    /// The length of the convolution.
    convolved: Option<usize>,
}

/// The tables of a plan.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a, T> {
    /// Roots for the stages.
    roots: Numbers<'a, T>,
    /// `e^(-πi j²/len)`; empty without a convolution.
    chirp: Numbers<'a, T>,
    /// The transform of the conjugate chirp, divided by the convolution's length.
    filter: Numbers<'a, T>,
}

impl Plan {
    pub(super) fn of(len: usize) -> Plan {
        if let Some(stages) = stages_of(len) {
            return Plan { len, stages, convolved: None };
        }
        let convolved = (2 * len - 1).next_power_of_two();
        let stages = stages_of(convolved).unwrap_or_else(|| unreachable!("a power of two"));
        Plan { len, stages, convolved: Some(convolved) }
    }

    /// The numbers in a buffer, for each row.
    pub(super) fn buffer_len(&self) -> usize {
        self.convolved.unwrap_or(self.len)
    }

    /// The elements of the tables, besides the roots of the length.
    pub(super) fn tables_len(&self) -> usize {
        self.convolved.map_or(0, |convolved| 2 * (2 * convolved + self.len))
    }

    /// Fills in the tables. `roots` are those of a multiple of the length, and `buffers` are as long as for one row.
    pub(super) fn tables<'a, T: Float>(
        &self,
        roots: Numbers<'a, T>,
        memory: &mut &'a mut [T],
        buffers: &mut [T],
    ) -> Tables<'a, T> {
        let none = Numbers { re: &[], im: &[] };
        let Some(convolved) = self.convolved else { return Tables { roots, chirp: none, filter: none } };
        let mut roots = NumbersMut::take(memory, convolved);
        fill_roots(&mut roots);
        let (roots, chirp, filter) =
            (roots.into_read(), NumbersMut::take(memory, self.len), NumbersMut::take(memory, convolved));
        for at in 0..self.len {
            let squared = (at as u128 * at as u128 % (2 * self.len) as u128) as usize;
            let (re, im) = root(squared, 2 * self.len);
            (chirp.re[at], chirp.im[at]) = (T::of(re), T::of(im));
        }
        let mut rest = buffers;
        let (x, y) = (NumbersMut::take(&mut rest, convolved), NumbersMut::take(&mut rest, convolved));
        x.re.fill(T::of(0.0));
        x.im.fill(T::of(0.0));
        let scale = T::of(1.0 / convolved as f64);
        for at in 0..self.len {
            let (re, im) = (chirp.re[at] * scale, -chirp.im[at] * scale);
            for at in [at, (convolved - at) % convolved] {
                (x.re[at], x.im[at]) = (re, im);
            }
        }
        let (mut x, mut y) = (x, y);
        let found = match run_stages(&self.stages, 1, roots, x.by_ref(), y.by_ref()) {
            true => y,
            false => x,
        };
        filter.re.copy_from_slice(found.re);
        filter.im.copy_from_slice(found.im);
        Tables { roots, chirp: chirp.into_read(), filter: filter.into_read() }
    }

    /// Transforms the numbers in `x`, with `lanes` rows side by side. Returns the buffer that has the result.
    pub(super) fn run<'a, T: Float>(
        &self,
        tables: Tables<'_, T>,
        lanes: usize,
        mut x: NumbersMut<'a, T>,
        mut y: NumbersMut<'a, T>,
    ) -> NumbersMut<'a, T> {
        let Tables { roots, chirp, filter } = tables;
        if self.convolved.is_none() {
            return if run_stages(&self.stages, lanes, roots, x.by_ref(), y.by_ref()) { y } else { x };
        }
        multiply(&mut x, chirp, lanes);
        x.re[self.len * lanes..].fill(T::of(0.0));
        x.im[self.len * lanes..].fill(T::of(0.0));
        if run_stages(&self.stages, lanes, roots, x.by_ref(), y.by_ref()) {
            std::mem::swap(&mut x, &mut y);
        }
        multiply(&mut x, filter, lanes);
        // Back by the same stages: with the two parts exchanged, before and after.
        let exchanged = |numbers: &mut NumbersMut<'a, T>| std::mem::swap(&mut numbers.re, &mut numbers.im);
        exchanged(&mut x);
        exchanged(&mut y);
        if run_stages(&self.stages, lanes, roots, x.by_ref(), y.by_ref()) {
            std::mem::swap(&mut x, &mut y);
        }
        exchanged(&mut x);
        multiply(&mut x, chirp, lanes);
        x
    }
}

/// Multiplies the numbers of each row.
fn multiply<T: Float>(x: &mut NumbersMut<'_, T>, by: Numbers<'_, T>, lanes: usize) {
    let rows = x.re.chunks_exact_mut(lanes).zip(x.im.chunks_exact_mut(lanes));
    for ((re, im), (&by_re, &by_im)) in rows.zip(by.re.iter().zip(by.im)) {
        for (re, im) in re.iter_mut().zip(im) {
            (*re, *im) = (*re * by_re - *im * by_im, *re * by_im + *im * by_re);
        }
    }
}
