//! Winograd's linear transforms of a line. A square is transformed row by row, then column by column; neighbouring channels
//! are the lanes.

use std::marker::PhantomData;
use std::ops::{Add, Sub};

use crate::simd::{Kernel, Simd, dispatch};

/// The minimum number of lanes of a square.
pub(super) const LANES: usize = 16;

/// A register, with operators to write transforms as formulas. Only [`Map`] creates them, if the processor supports `S`.
#[derive(Clone, Copy)]
pub(super) struct Lanes<S: Simd>(S::Vector);

impl<S: Simd> Lanes<S> {
    /// `self * by + plus`.
    #[inline(always)]
    fn scaled(self, by: f32, plus: Option<Self>) -> Self {
        // SAFETY: `Lanes` values exist only if the processor supports `S`.
        Self(unsafe { S::mul_add(self.0, S::splat(by), plus.map_or(S::splat(0.0), |plus| plus.0)) })
    }

    #[inline(always)]
    fn half(self) -> Self {
        self.scaled(0.5, None)
    }
}

impl<S: Simd> Add for Lanes<S> {
    type Output = Self;
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        other.scaled(1.0, Some(self))
    }
}

impl<S: Simd> Sub for Lanes<S> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        other.scaled(-1.0, Some(self))
    }
}

/// A linear map from `N` numbers to `M`.
pub(super) trait Line<const N: usize, const M: usize> {
    fn line<S: Simd>(x: [Lanes<S>; N]) -> [Lanes<S>; M];
}

/// Four neighbouring elements of an image, on which two windows depend.
pub(super) struct Image;
/// Three taps of a filter.
pub(super) struct Filter;
/// Maps four products to two neighbouring results.
pub(super) struct Results;
/// The derivative of [`Results`]: maps the gradients of two neighbouring results to those of four products.
pub(super) struct ResultsBackward;
/// The derivative of [`Filter`]: maps to the gradients of three taps.
pub(super) struct FilterBackward;

impl Line<4, 4> for Image {
    #[inline(always)]
    fn line<S: Simd>([a, b, c, d]: [Lanes<S>; 4]) -> [Lanes<S>; 4] {
        [a - c, b + c, c - b, d - b]
    }
}

impl Line<3, 4> for Filter {
    #[inline(always)]
    fn line<S: Simd>([a, b, c]: [Lanes<S>; 3]) -> [Lanes<S>; 4] {
        let sides = a + c;
        [a, (sides + b).half(), (sides - b).half(), c]
    }
}

impl Line<4, 2> for Results {
    #[inline(always)]
    fn line<S: Simd>([a, b, c, d]: [Lanes<S>; 4]) -> [Lanes<S>; 2] {
        [a + (b + c), (b - c) + d]
    }
}

impl Line<2, 4> for ResultsBackward {
    #[inline(always)]
    fn line<S: Simd>([a, b]: [Lanes<S>; 2]) -> [Lanes<S>; 4] {
        [a, a + b, a - b, b]
    }
}

impl Line<4, 3> for FilterBackward {
    #[inline(always)]
    fn line<S: Simd>([a, b, c, d]: [Lanes<S>; 4]) -> [Lanes<S>; 3] {
        let sides = (b + c).half();
        [a + sides, (b - c).half(), sides + d]
    }
}

/// The location of squares: the first element, and the distances to the next row, the next column and the next square.
#[derive(Clone, Copy)]
pub(super) struct Squares {
    pub(super) first: usize,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) next: usize,
}

impl Squares {
    fn end(&self, side: usize, count: usize, lanes: usize) -> usize {
        self.first + (side - 1) * (self.row + self.column) + (count - 1) * self.next + lanes
    }
}

/// Transforms `count` squares of `N` by `N` elements to squares of `M` by `M`. Each element has `lanes` numbers.
pub(super) fn map<L: Line<N, M>, const N: usize, const M: usize>(
    (from, from_at): (&[f32], Squares),
    (to, to_at): (&mut [f32], Squares),
    (count, lanes): (usize, usize),
) {
    if count == 0 {
        return;
    }
    let (reads, writes) = (from_at.end(N, count, lanes), to_at.end(M, count, lanes));
    assert!(lanes >= LANES, "squares of {lanes} lanes");
    assert!(from.len() >= reads, "squares: {} where {reads} are read", from.len());
    assert!(to.len() >= writes, "squares: {} where {writes} are written", to.len());
    dispatch(Map::<L, N, M> { from, from_at, to, to_at, count, lanes, line: PhantomData });
}

/// A checked call of [`map`].
struct Map<'a, L, const N: usize, const M: usize> {
    from: &'a [f32],
    from_at: Squares,
    to: &'a mut [f32],
    to_at: Squares,
    count: usize,
    lanes: usize,
    line: PhantomData<L>,
}

impl<L: Line<N, M>, const N: usize, const M: usize> Kernel for Map<'_, L, N, M> {
    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "short plain loops are unrolled, closures perhaps not inlined"
    )]
    fn run<S: Simd>(self) {
        let (from_at, to_at) = (self.from_at, self.to_at);
        for i in 0..self.count {
            for lane in (0..self.lanes).step_by(S::LANES) {
                // The last lanes may be transformed twice.
                let lane = lane.min(self.lanes - S::LANES);
                // SAFETY: `map` checked both ends, and `S` comes from `dispatch`.
                unsafe {
                    let from = self.from.as_ptr().add(from_at.first + i * from_at.next + lane);
                    let to = self.to.as_mut_ptr().add(to_at.first + i * to_at.next + lane);
                    let zero = Lanes::<S>(S::splat(0.0));
                    let mut rows = [[zero; M]; N];
                    for y in 0..N {
                        let mut row = [zero; N];
                        for x in 0..N {
                            row[x] = Lanes(S::load(from.add(y * from_at.row + x * from_at.column)));
                        }
                        rows[y] = L::line(row);
                    }
                    for x in 0..M {
                        let mut column = [zero; N];
                        for y in 0..N {
                            column[y] = rows[y][x];
                        }
                        let column = L::line(column);
                        for y in 0..M {
                            S::store(to.add(y * to_at.row + x * to_at.column), column[y].0);
                        }
                    }
                }
            }
        }
    }
}
