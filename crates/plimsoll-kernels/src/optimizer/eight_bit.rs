//! Block-wise dynamic quantization to 8 bits, as in bitsandbytes (Dettmers and others, 2022).
//!
//! A block of [`BLOCK`] numbers is stored as its largest size and, for each number, the index of the nearest fraction of that size
//! in a fixed map. Each power of ten from 1 down to 10^-6 has twice as many of the map's values as the next smaller one.

use std::sync::LazyLock;

/// Numbers with a common largest size.
pub const BLOCK: usize = 256;

/// The fractions that the codes stand for, in rising order: `create_dynamic_map` of bitsandbytes.
#[derive(Clone, Debug)]
pub struct QuantizationMap {
    /// The fraction of each code.
    pub values: [f32; 256],
    /// A number above the i-th of these has a code above i.
    bounds: [f32; 255],
}

impl QuantizationMap {
    /// The map for numbers of both signs, from -0.993 to 1.
    pub fn signed() -> &'static QuantizationMap {
        static MAP: LazyLock<QuantizationMap> = LazyLock::new(|| QuantizationMap::new(true));
        &MAP
    }

    /// The map for numbers of at least 0, from 0 to 1.
    pub fn unsigned() -> &'static QuantizationMap {
        static MAP: LazyLock<QuantizationMap> = LazyLock::new(|| QuantizationMap::new(false));
        &MAP
    }

    fn new(is_signed: bool) -> QuantizationMap {
        // Each operation is rounded as in PyTorch: `linspace` multiplies and adds with one rounding.
        let mut all = vec![0.0, 1.0];
        for (exponent, scale) in [1e-6f32, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0].into_iter().enumerate() {
            let parts: usize = if is_signed { 1 << exponent } else { 2 << exponent };
            let step = (1.0 - 0.1f32) / parts as f32;
            let boundary = |at: usize| match at < parts.div_ceil(2) {
                true => step.mul_add(at as f32, 0.1),
                false => (-step).mul_add((parts - at) as f32, 1.0),
            };
            for part in 0..parts {
                let value = scale * ((boundary(part) + boundary(part + 1)) / 2.0);
                all.push(value);
                if is_signed {
                    all.push(-value);
                }
            }
        }
        all.sort_by(f32::total_cmp);
        let values: [f32; 256] = std::array::from_fn(|code| all[code]);
        // A number halfway between two values gets the even code, as in the search of bitsandbytes.
        let bounds = std::array::from_fn(|code| {
            let middle = (values[code] + values[code + 1]) * 0.5;
            if code.is_multiple_of(2) { middle } else { middle.next_down() }
        });
        QuantizationMap { values, bounds }
    }

    /// The code of the nearest fraction; 0 for NaN.
    #[inline(always)]
    pub fn code(&self, x: f32) -> u8 {
        let mut at = 0;
        for half in [128, 64, 32, 16, 8, 4, 2, 1] {
            at += if x > self.bounds[at + half - 1] { half } else { 0 };
        }
        at as u8
    }
}

/// The code of a fraction of either sign. A negative one never gets the code of 0, so that its sign is kept.
#[inline(always)]
pub(super) fn signed_code(map: &QuantizationMap, x: f32, value: f32) -> u8 {
    let code = map.code(x);
    match map.values[usize::from(code)].is_sign_negative() == value.is_sign_negative() {
        true => code,
        false if value > 0.0 => code.wrapping_add(1),
        // In a block of zeros, where x is NaN, this wraps around: all codes mean 0 there.
        false => code.wrapping_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    /// `quantize_2D` of bitsandbytes, line by line.
    fn searched(values: &[f32; 256], mut lower: f32, x: f32) -> u8 {
        let (mut pivot, mut upper_pivot, mut lower_pivot, mut upper) = (127, 255, 0, 1.0);
        let mut value = values[127];
        for step in [64, 32, 16, 8, 4, 2, 1] {
            if x > value {
                (lower_pivot, lower) = (pivot, value);
                pivot += step;
            } else {
                (upper_pivot, upper) = (pivot, value);
                pivot -= step;
            }
            value = values[pivot];
        }
        let nearest = if x > value {
            if x > (upper + value) * 0.5 { upper_pivot } else { pivot }
        } else if x < (lower + value) * 0.5 {
            lower_pivot
        } else {
            pivot
        };
        nearest as u8
    }

    #[test]
    fn codes_are_those_of_the_search_in_bitsandbytes() {
        for (map, lower) in [(QuantizationMap::signed(), -1.0), (QuantizationMap::unsigned(), 0.0)] {
            let mut numbers = vec![0.0, -0.0, 1.0, -1.0, f32::NAN, 1e-30, -1e-30, 2.0, -2.0];
            for (i, &value) in map.values.iter().enumerate() {
                let middle = (value + map.values[(i + 1).min(255)]) * 0.5;
                for x in [value, middle] {
                    numbers.extend([x, x.next_up(), x.next_down()]);
                }
            }
            for exponent in 0..8 {
                numbers.extend(random(10_000, exponent).iter().map(|x| x / 10f32.powi(exponent as i32)));
            }
            for x in numbers {
                assert_eq!(map.code(x), searched(&map.values, lower, x), "{x}");
            }
        }
    }

    #[test]
    fn every_value_has_its_own_code() {
        for map in [QuantizationMap::signed(), QuantizationMap::unsigned()] {
            assert!(map.values.is_sorted_by(|a, b| a < b));
            assert!(map.values.iter().enumerate().all(|(i, &value)| usize::from(map.code(value)) == i));
        }
    }

    #[test]
    fn a_negative_number_is_never_stored_as_zero() {
        let map = QuantizationMap::signed();
        assert_eq!(map.values[127], 0.0);
        assert_eq!((signed_code(map, -1e-9, -1e-9), signed_code(map, 1e-9, 1e-9)), (126, 127));
        assert_eq!(signed_code(map, f32::NAN, 0.0), 255);
    }
}
