//! What the reductions keep: extremes with their places, products, counts, moments, norms.

use super::fold::Fold;

/// The largest or smallest element and the place of the first of equals; the first that is not a number wins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extreme {
    pub(crate) largest: bool,
}

/// A number to compare: `f32`, `f64` and the integers.
pub(crate) trait Compare: Copy + PartialOrd {
    /// Whether it is not a number.
    #[inline(always)]
    fn is_not_a_number(self) -> bool {
        self.partial_cmp(&self).is_none()
    }
}

impl<T: Copy + PartialOrd> Compare for T {}

impl Extreme {
    /// Whether `x` takes the place of `best`, which came before it.
    #[inline(always)]
    fn replaces<T: Compare>(self, x: T, best: T) -> bool {
        let beyond = if self.largest { x > best } else { x < best };
        beyond | (x.is_not_a_number() & !best.is_not_a_number())
    }
}

impl<T: Compare + Send> Fold<T> for Extreme {
    type State = (T, usize);

    #[inline(always)]
    fn start(&self, first: T) -> (T, usize) {
        (first, usize::MAX)
    }

    #[inline(always)]
    fn step(&self, (best, place): (T, usize), x: T, at: usize) -> (T, usize) {
        // The first element is where a state starts: its place is still missing.
        let new = self.replaces(x, best) | ((place == usize::MAX) & !self.replaces(best, x));
        if new { (x, at) } else { (best, place) }
    }

    #[inline(always)]
    fn join(&self, a: (T, usize), b: (T, usize)) -> (T, usize) {
        let second = self.replaces(b.0, a.0) | (!self.replaces(a.0, b.0) & (b.1 < a.1));
        if second { b } else { a }
    }
}

/// The product of the elements that are not zero, and how many are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product;

impl Fold<f32> for Product {
    type State = (f64, u32);

    #[inline(always)]
    fn start(&self, _: f32) -> (f64, u32) {
        (1.0, 0)
    }

    #[inline(always)]
    fn step(&self, (product, zeros): (f64, u32), x: f32, _: usize) -> (f64, u32) {
        let is_zero = x == 0.0;
        (product * if is_zero { 1.0 } else { f64::from(x) }, zeros.saturating_add(u32::from(is_zero)))
    }

    #[inline(always)]
    fn join(&self, a: (f64, u32), b: (f64, u32)) -> (f64, u32) {
        (a.0 * b.0, a.1.saturating_add(b.1))
    }
}

/// The largest or smallest element or magnitude, and how many there are of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extremes {
    pub(crate) largest: bool,
    pub(crate) magnitude: bool,
}

impl Extremes {
    /// What is compared.
    #[inline(always)]
    pub(crate) fn of(self, x: f32) -> f32 {
        if self.magnitude { x.abs() } else { x }
    }
}

impl Fold<f32> for Extremes {
    type State = (f32, u32);

    #[inline(always)]
    fn start(&self, first: f32) -> (f32, u32) {
        (self.of(first), 0)
    }

    #[inline(always)]
    fn step(&self, state: (f32, u32), x: f32, _: usize) -> (f32, u32) {
        self.join(state, (self.of(x), 1))
    }

    #[inline(always)]
    fn join(&self, (a, a_count): (f32, u32), (b, b_count): (f32, u32)) -> (f32, u32) {
        let order = Extreme { largest: self.largest };
        let best = if order.replaces(b, a) { b } else { a };
        let count = |x: f32, count: u32| if x == best || (x.is_nan() && best.is_nan()) { count } else { 0 };
        (best, count(a, a_count).saturating_add(count(b, b_count)))
    }
}

/// How many elements are not zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NonZero;

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

/// Number, sum and sum of squares of the distances from the first element: exact in 64 bits for values of 24.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments;

/// What [`Moments`] keeps: the first element, then number, sum and sum of squares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MomentState {
    first: f64,
    count: f64,
    sum: f64,
    squares: f64,
}

impl MomentState {
    /// The sum of squared distances from the mean, over the count less `correction`.
    #[inline(always)]
    pub(crate) fn variance(self, correction: f64) -> f64 {
        let around_mean = (self.squares - self.sum * self.sum / self.count).max(0.0);
        // As PyTorch: a divisor below 0 counts as 0.
        let around_mean = if self.squares.is_nan() { f64::NAN } else { around_mean };
        around_mean / (self.count - correction).max(0.0)
    }
}

impl Fold<f32> for Moments {
    type State = MomentState;

    #[inline(always)]
    fn start(&self, first: f32) -> MomentState {
        MomentState { first: f64::from(first), count: 0.0, sum: 0.0, squares: 0.0 }
    }

    #[inline(always)]
    fn step(&self, state: MomentState, x: f32, _: usize) -> MomentState {
        let x = f64::from(x) - state.first;
        MomentState { count: state.count + 1.0, sum: state.sum + x, squares: state.squares + x * x, ..state }
    }

    #[inline(always)]
    fn join(&self, a: MomentState, b: MomentState) -> MomentState {
        // Both measure from their first element; lanes of one output may have different ones.
        let shift = b.first - a.first;
        MomentState {
            first: a.first,
            count: a.count + b.count,
            sum: a.sum + b.sum + b.count * shift,
            squares: a.squares + b.squares + (2.0 * b.sum + b.count * shift) * shift,
        }
    }
}

/// The largest element and the sum of exponentials of the distances to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exponentials;

impl Fold<f32> for Exponentials {
    type State = (f32, f64);

    #[inline(always)]
    fn start(&self, _: f32) -> (f32, f64) {
        (f32::NEG_INFINITY, 0.0)
    }

    #[inline(always)]
    fn step(&self, state: (f32, f64), x: f32, _: usize) -> (f32, f64) {
        self.join(state, (x, 1.0))
    }

    #[inline(always)]
    fn join(&self, (a, a_sum): (f32, f64), (b, b_sum): (f32, f64)) -> (f32, f64) {
        let largest = if a > b || a.is_nan() { a } else { b };
        // Infinities are at distance 0 from each other.
        let scaled =
            |x: f32, sum: f64| if x == largest { sum } else { sum * f64::from(super::exp::exp(x - largest)) };
        (largest, scaled(a, a_sum) + scaled(b, b_sum))
    }
}

/// Which norm that adds something up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Norm {
    /// How many are not zero.
    Zero,
    One,
    Two,
    Power(f64),
}

impl Norm {
    /// The norm of order `p`, which is finite.
    pub(crate) fn of(p: f64) -> Norm {
        match p {
            0.0 => Norm::Zero,
            1.0 => Norm::One,
            2.0 => Norm::Two,
            p => Norm::Power(p),
        }
    }

    /// From what was kept.
    #[inline(always)]
    pub(crate) fn finish(self, state: f64) -> f64 {
        match self {
            Norm::Two => state.sqrt(),
            Norm::Power(p) => state.powf(1.0 / p),
            _ => state,
        }
    }
}

/// One norm, chosen when compiled.
macro_rules! norms {
    ($($name:ident: |$state:ident, $x:ident| $step:expr, |$a:ident, $b:ident| $join:expr, from $start:expr;)*) => {$(
        #[doc = concat!("What the norm `", stringify!($name), "` keeps.")]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl Fold<f32> for $name {
            type State = f64;

            #[inline(always)]
            fn start(&self, _: f32) -> f64 {
                $start
            }

            #[inline(always)]
            fn step(&self, $state: f64, x: f32, _: usize) -> f64 {
                let $x = f64::from(x).abs();
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
pub(crate) struct PowersOf(pub(crate) f64);

impl Fold<f32> for PowersOf {
    type State = f64;

    #[inline(always)]
    fn start(&self, _: f32) -> f64 {
        0.0
    }

    #[inline(always)]
    fn step(&self, sum: f64, x: f32, _: usize) -> f64 {
        sum + f64::from(x).abs().powf(self.0)
    }

    #[inline(always)]
    fn join(&self, a: f64, b: f64) -> f64 {
        a + b
    }
}
