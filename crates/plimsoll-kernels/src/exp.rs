//! The exponential function and the hyperbolic tangent in plain arithmetic, so that loops over them are
//! vectorised.
//!
//! The library's versions need a call per element. The polynomials are those of Cephes (expf.c, tanhf.c);
//! products and sums are not fused, so results are the same bits on every machine.

/// `e^x`, accurate to 2 units in the last place (see the test below), including subnormal results.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4; // few enough bits that its products with integers are exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Below -104 the result is 0, above 89 infinite. Zeros are selected rather than computed, since
    // underflow is slow.
    let vanishes = x < -104.0;
    let x = if vanishes || x > 89.0 { 89.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let terms = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_66, 0.5];
    let near = polynomial(r, terms) * r * r + r + 1.0;
    // Multiplies by two factors: 2^n alone may be outside the normal range even if the result is not.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned());
    if vanishes { 0.0 } else { near * power(n >> 1) * power(n.wrapping_sub(n >> 1)) }
}

/// The hyperbolic tangent, accurate to 2 units in the last place (see the test below).
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let square = x * x;
    let terms = [-5.704_988_6e-3, 2.063_908_8e-2, -5.373_971_4e-2, 0.133_314_42, -0.333_332_8];
    let near = polynomial(square, terms) * square * x + x;
    let far = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// Evaluates a polynomial; `terms` has the coefficient of the highest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, terms: [f32; N]) -> f32 {
    let mut sum = terms[0];
    for term in &terms[1..] {
        sum = sum * x + term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every 997th float with double precision: `f` differs by at most 2 units in the last place.
    fn check(f: fn(f32) -> f32, exact: fn(f64) -> f64) {
        for x in (0..=u32::MAX).step_by(997).map(f32::from_bits).filter(|x| x.is_finite()) {
            let (found, expected) = (f(x), exact(f64::from(x)) as f32);
            let apart = found.to_bits().abs_diff(expected.to_bits());
            assert!(apart <= 2, "at {x:e}: {found:e} where {expected:e} is expected");
        }
    }

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        check(exp, f64::exp);
        assert_eq!([exp(f32::NEG_INFINITY), exp(0.0), exp(f32::INFINITY)], [0.0, 1.0, f32::INFINITY]);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_two_units_of_the_last_place() {
        check(tanh, f64::tanh);
        assert_eq!([tanh(f32::NEG_INFINITY), tanh(0.0), tanh(f32::INFINITY)], [-1.0, 0.0, 1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }
}
