//! The individual reductions: extremes with their positions, products, counts, moments, norms.

use super::fold::Fold;
use crate::number::{Float, Number};

/// The largest or smallest element and its position; of equal elements, the first. The first NaN wins.
#[derive(Clone, Copy, Debug)]
pub struct Extreme {
    pub largest: bool,
}

impl Extreme {
    /// Whether `x` replaces `best`, which came before it.
    #[inline(always)]
    fn replaces<T: Number>(self, x: T, best: T) -> bool {
        let beyond = if self.largest { x > best } else { x < best };
        beyond | (x.is_nan() & !best.is_nan())
    }
}

impl<T: Number> Fold<T> for Extreme {
    type State = (T, usize);

    #[inline(always)]
    fn start(&self, first: T) -> (T, usize) {
        (first, usize::MAX)
    }

    #[inline(always)]
    fn step(&self, (best, place): (T, usize), x: T, at: usize) -> (T, usize) {
        // A state starts with the value of the first element, but without its position.
        let new = self.replaces(x, best) | ((place == usize::MAX) & !self.replaces(best, x));
        if new { (x, at) } else { (best, place) }
    }

    #[inline(always)]
    fn join(&self, a: (T, usize), b: (T, usize)) -> (T, usize) {
        let second = self.replaces(b.0, a.0) | (!self.replaces(a.0, b.0) & (b.1 < a.1));
        if second { b } else { a }
    }
}

/// The product of the nonzero elements, and the number of zeros.
#[derive(Clone, Copy, Debug)]
pub struct Product;

impl<T: Float> Fold<T> for Product {
    type State = (f64, u32);

    #[inline(always)]
    fn start(&self, _: T) -> (f64, u32) {
        (1.0, 0)
    }

    #[inline(always)]
    fn step(&self, (product, zeros): (f64, u32), x: T, _: usize) -> (f64, u32) {
        let is_zero = x == T::default();
        (product * if is_zero { 1.0 } else { x.wide() }, zeros.saturating_add(u32::from(is_zero)))
    }

    #[inline(always)]
    fn join(&self, a: (f64, u32), b: (f64, u32)) -> (f64, u32) {
        (a.0 * b.0, a.1.saturating_add(b.1))
    }
}

/// The product of integers, which wraps.
#[derive(Clone, Copy, Debug)]
pub struct WholeProduct;

impl Fold<i64> for WholeProduct {
    type State = i64;

    #[inline(always)]
    fn start(&self, _: i64) -> i64 {
        1
    }

    #[inline(always)]
    fn step(&self, product: i64, x: i64, _: usize) -> i64 {
        product.wrapping_mul(x)
    }

    #[inline(always)]
    fn join(&self, a: i64, b: i64) -> i64 {
        a.wrapping_mul(b)
    }
}

/// The largest or smallest element or absolute value, and the number of elements equal to it.
#[derive(Clone, Copy, Debug)]
pub struct Extremes {
    pub largest: bool,
    pub magnitude: bool,
}

impl Extremes {
    /// The value to compare.
    #[inline(always)]
    pub fn of<T: Magnitude>(self, x: T) -> T {
        if self.magnitude { x.magnitude() } else { x }
    }
}

/// A number with an absolute value.
pub trait Magnitude: Number {
    fn magnitude(self) -> Self;
}

macro_rules! magnitude {
    ($($t:ty: $abs:expr),*) => {$(
        impl Magnitude for $t {
            #[inline(always)]
            fn magnitude(self) -> $t {
                $abs(self)
            }
        }
    )*};
}
magnitude!(f32: f32::abs, f64: f64::abs, i64: i64::wrapping_abs);

impl<T: Magnitude> Fold<T> for Extremes {
    type State = (T, u32);

    #[inline(always)]
    fn start(&self, first: T) -> (T, u32) {
        (self.of(first), 0)
    }

    #[inline(always)]
    fn step(&self, state: (T, u32), x: T, _: usize) -> (T, u32) {
        self.join(state, (self.of(x), 1))
    }

    #[inline(always)]
    fn join(&self, (a, a_count): (T, u32), (b, b_count): (T, u32)) -> (T, u32) {
        let order = Extreme { largest: self.largest };
        let best = if order.replaces(b, a) { b } else { a };
        let count = |x: T, count: u32| if x == best || (x.is_nan() && best.is_nan()) { count } else { 0 };
        (best, count(a, a_count).saturating_add(count(b, b_count)))
    }
}

/// The number of nonzero elements.
#[derive(Clone, Copy, Debug)]
pub struct NonZero;

impl<T: Copy + PartialEq + Default> Fold<T> for NonZero {
    type State = i64;

    #[inline(always)]
    fn start(&self, _: T) -> i64 {
        0
    }

    #[inline(always)]
    fn step(&self, count: i64, x: T, _: usize) -> i64 {
        count + i64::from(x != T::default())
    }

    #[inline(always)]
    fn join(&self, a: i64, b: i64) -> i64 {
        a + b
    }
}

/// The count, the sum and the sum of squares of the differences from the first element. These are exact in 64
/// bits for values with 24 bits.
#[derive(Clone, Copy, Debug)]
pub struct Moments;

/// The state of [`Moments`]: the first element, then count, sum and sum of squares.
#[derive(Clone, Copy, Debug)]
pub struct MomentState {
    first: f64,
    count: f64,
    sum: f64,
    squares: f64,
}

impl MomentState {
    /// The sum of squared differences from the mean, divided by the count minus `correction`.
    #[inline(always)]
    pub fn variance(self, correction: f64) -> f64 {
        let around_mean = self.squares - self.sum * self.sum / self.count;
        // As in PyTorch, a negative divisor counts as 0. Rounding may give a negative sum, and infinities
        // give NaN.
        let around_mean = if around_mean < 0.0 { 0.0 } else { around_mean };
        around_mean / (self.count - correction).max(0.0)
    }
}

impl<T: Float> Fold<T> for Moments {
    type State = MomentState;

    #[inline(always)]
    fn start(&self, first: T) -> MomentState {
        MomentState { first: first.wide(), count: 0.0, sum: 0.0, squares: 0.0 }
    }

    #[inline(always)]
    fn step(&self, state: MomentState, x: T, _: usize) -> MomentState {
        let x = x.wide() - state.first;
        MomentState { count: state.count + 1.0, sum: state.sum + x, squares: state.squares + x * x, ..state }
    }

    #[inline(always)]
    fn join(&self, a: MomentState, b: MomentState) -> MomentState {
        // Both states are relative to their first element, which may differ between lanes of one output.
        let shift = b.first - a.first;
        MomentState {
            first: a.first,
            count: a.count + b.count,
            sum: a.sum + b.sum + b.count * shift,
            squares: a.squares + b.squares + (2.0 * b.sum + b.count * shift) * shift,
        }
    }
}

/// The largest element and the sum of exponentials of the differences from it.
#[derive(Clone, Copy, Debug)]
pub struct Exponentials;

impl<T: Float> Fold<T> for Exponentials {
    type State = (T, f64);

    #[inline(always)]
    fn start(&self, _: T) -> (T, f64) {
        (T::LOWEST, 0.0)
    }

    #[inline(always)]
    fn step(&self, state: (T, f64), x: T, _: usize) -> (T, f64) {
        self.join(state, (x, 1.0))
    }

    #[inline(always)]
    fn join(&self, (a, a_sum): (T, f64), (b, b_sum): (T, f64)) -> (T, f64) {
        let largest = if a > b || a.is_nan() { a } else { b };
        // Equal infinities have difference 0.
        let scaled = |x: T, sum: f64| if x == largest { sum } else { sum * (x - largest).exp().wide() };
        (largest, scaled(a, a_sum) + scaled(b, b_sum))
    }
}

/// A norm that is a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// The number of nonzero elements.
    Zero,
    One,
    Two,
    Power(f64),
}

impl Norm {
    /// The norm of order `p`, which must be finite.
    pub fn of(p: f64) -> Norm {
        match p {
            0.0 => Norm::Zero,
            1.0 => Norm::One,
            2.0 => Norm::Two,
            p => Norm::Power(p),
        }
    }

    /// The norm from the state.
    #[inline(always)]
    pub fn finish(self, state: f64) -> f64 {
        match self {
            Norm::Two => state.sqrt(),
            Norm::Power(p) => state.powf(1.0 / p),
            _ => state,
        }
    }
}

/// One norm, selected at compile time.
macro_rules! norms {
    ($($name:ident: |$state:ident, $x:ident| $step:expr, |$a:ident, $b:ident| $join:expr, from $start:expr;)*) => {$(
        #[doc = concat!("What the norm `", stringify!($name), "` keeps.")]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl<T: Float> Fold<T> for $name {
            type State = f64;

            #[inline(always)]
            fn start(&self, _: T) -> f64 {
                $start
            }

            #[inline(always)]
            fn step(&self, $state: f64, x: T, _: usize) -> f64 {
                let $x = x.wide().abs();
                $step
            }

            #[inline(always)]
            fn join(&self, $a: f64, $b: f64) -> f64 {
                $join
            }
        }
    )*};
}
norms! {
    CountOf: |n, x| n + f64::from(u8::from(x != 0.0)), |a, b| a + b, from 0.0;
    SumOf: |sum, x| sum + x, |a, b| a + b, from 0.0;
    SquaresOf: |sum, x| sum + x * x, |a, b| a + b, from 0.0;
}

/// A sum of powers.
#[derive(Clone, Copy, Debug)]
pub struct PowersOf(pub f64);

impl<T: Float> Fold<T> for PowersOf {
    type State = f64;

    #[inline(always)]
    fn start(&self, _: T) -> f64 {
        0.0
    }

    #[inline(always)]
    fn step(&self, sum: f64, x: T, _: usize) -> f64 {
        sum + x.wide().abs().powf(self.0)
    }

    #[inline(always)]
    fn join(&self, a: f64, b: f64) -> f64 {
        a + b
    }
}
