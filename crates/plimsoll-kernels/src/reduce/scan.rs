//! Cumulative sums and products along a dimension, and the derivative of the products.

use crate::parallel::{Cut, PIECE, for_each_chunk};
use crate::simd::vectorize;

/// The number of columns that are scanned together.
const LANES: usize = 16;

/// The sizes before, of and after the scanned dimension of a row-major tensor.
#[derive(Clone, Copy, Debug)]
pub struct ScanShape {
    pub outer: usize,
    pub len: usize,
    pub inner: usize,
}

impl ScanShape {
    /// The sizes around a dimension.
    pub fn of(shape: &[usize], dim: usize) -> ScanShape {
        let product = |sizes: &[usize]| sizes.iter().product();
        ScanShape { outer: product(&shape[..dim]), len: shape[dim], inner: product(&shape[dim + 1..]) }
    }

    fn total(self) -> usize {
        self.outer * self.len * self.inner
    }
}

/// The end at which a scan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Front,
    Back,
}

/// `out[i] = finish(state)` after `state = step(state, i)` at each position of a line, for all lines; `i` counts
/// all elements of the row-major shape.
pub fn scan<S: Copy + Sync, O: Send>(
    shape: ScanShape,
    from: From,
    start: S,
    step: impl Fn(S, usize) -> (S, O) + Sync,
    out: &mut [O],
) {
    assert_eq!(out.len(), shape.total(), "scan: out does not match {shape:?}");
    let ScanShape { outer, len, inner } = shape;
    if out.is_empty() {
        return;
    }
    // A group has up to LANES neighbouring lines; a chunk has several groups.
    let groups = inner.div_ceil(LANES);
    let chunk_len = (PIECE / (len * LANES.min(inner))).max(1);
    let out = Cut::new(out);
    let place = |i: usize| if from == From::Front { i } else { len - 1 - i };
    for_each_chunk((outer * groups).div_ceil(chunk_len), |chunk| {
        for group in chunk * chunk_len..((chunk + 1) * chunk_len).min(outer * groups) {
            let (first, lane) = (group / groups * len * inner, group % groups * LANES);
            let width = LANES.min(inner - lane);
            vectorize(
                #[inline(always)]
                || {
                    let mut states = [start; LANES];
                    for i in 0..len {
                        let at = first + place(i) * inner + lane;
                        // SAFETY: groups have different lines, and thus different elements.
                        let out = unsafe { out.range(at, width) };
                        for (i, (out, state)) in out.iter_mut().zip(&mut states).enumerate() {
                            (*state, *out) = step(*state, at + i);
                        }
                    }
                },
            );
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_scanned_from_either_end() {
        for (outer, len, inner) in [(1, 7, 1), (3, 4, 1), (2, 5, 37), (1, 0, 3), (1, 1, 16)] {
            let shape = ScanShape { outer, len, inner };
            let x: Vec<f64> = (0..shape.total()).map(|i| (i * 7 % 11) as f64).collect();
            for from in [From::Front, From::Back] {
                let mut out = vec![0.0; x.len()];
                scan(shape, from, 0.0, |sum, i| (sum + x[i], sum + x[i]), &mut out);
                for (i, &out) in out.iter().enumerate() {
                    let (line, place) = (i / (len * inner) * len * inner + i % inner, i / inner % len);
                    let summed = if from == From::Front { 0..place + 1 } else { place..len };
                    assert_eq!(out, summed.map(|j| x[line + j * inner]).sum::<f64>());
                }
            }
        }
    }
}
