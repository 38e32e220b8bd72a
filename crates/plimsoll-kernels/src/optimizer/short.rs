//! Steps of parameters of any types. One short run at a time is converted to 32 bits in the L1 cache, stepped, and rounded
//! back. Nothing is allocated.

use smallvec::SmallVec;

use super::super::convert::{Compute, RUN};
use super::super::parallel::{PIECE, for_each_pieces};
use super::rounding::Rounding;
use super::step::Rule;
use crate::dtype::DType;

/// A tensor that a step changes.
pub type Changed<'a> = (&'a mut [u8], DType);

/// The maximum number of tensors that change for one parameter: the parameter and three tensors of state.
const MOST: usize = 4;

/// [`Rule::run`] for one parameter and its state, in any floating-point types of up to 32 bits. With `rounding`, those in
/// `bfloat16` are rounded stochastically.
pub fn step_any(
    rule: &Rule,
    step: u64,
    changed: SmallVec<[Changed<'_>; MOST]>,
    (grad, grad_dtype): (&[u8], DType),
    rounding: Option<Rounding>,
) {
    let dtypes: SmallVec<[DType; MOST]> = changed.iter().map(|(_, dtype)| *dtype).collect();
    let sizes: SmallVec<[usize; MOST]> = dtypes.iter().map(|dtype| dtype.size()).collect();
    let slices: SmallVec<[&mut [u8]; MOST]> = changed.into_iter().map(|(bytes, _)| bytes).collect();
    let body = |first: usize, pieces: &mut [&mut [u8]]| {
        let count = pieces.first().map_or(0, |piece| piece.len() / sizes[0]);
        for at in (0..count).step_by(RUN) {
            let n = RUN.min(count - at);
            let mut values = [[0.0f32; RUN]; MOST];
            let mut of_grad = [0.0f32; RUN];
            f32::load(grad_dtype)(grad, first + at, 1, &mut of_grad[..n]);
            for (i, (piece, values)) in pieces.iter().zip(&mut values).enumerate() {
                f32::load(dtypes[i])(piece, at, 1, &mut values[..n]);
            }
            let mut all = values.iter_mut().take(dtypes.len()).map(|values| &mut values[..n]);
            let Some(param) = all.next() else { return };
            rule.run::<f32>(step, (param, &of_grad[..n]), all.collect());
            for (i, (piece, values)) in pieces.iter_mut().zip(&values).enumerate() {
                let to = &mut piece[at * sizes[i]..][..n * sizes[i]];
                match rounding.filter(|_| dtypes[i] == DType::BF16) {
                    Some(rounding) => rounding.store(i, first + at, &values[..n], to),
                    None => f32::store(dtypes[i])(&values[..n], to),
                }
            }
        }
    };
    // Tensors of equal size are split together; otherwise one thread processes everything.
    match (sizes.iter().all(|size| *size == sizes[0]), slices.len()) {
        (true, 1) => together::<1>(slices, sizes[0], &body),
        (true, 2) => together::<2>(slices, sizes[0], &body),
        (true, 3) => together::<3>(slices, sizes[0], &body),
        (true, 4) => together::<4>(slices, sizes[0], &body),
        _ => {
            let mut slices = slices;
            body(0, &mut slices);
        }
    }
}

fn together<const N: usize>(
    slices: SmallVec<[&mut [u8]; MOST]>,
    size: usize,
    body: &(impl Fn(usize, &mut [&mut [u8]]) + Sync),
) {
    let Ok(slices) = <[&mut [u8]; N]>::try_from(slices.into_iter().collect::<Vec<_>>()) else {
        unreachable!("counted")
    };
    for_each_pieces(slices, PIECE / 2 * size, |start, mut pieces| body(start / size, &mut pieces));
}
