//! Numbers as C parses them: the longest prefix of a word that is a number. PyTorch parses its options with
//! `stoull` and `stod`, so `12abc` is 12, `-1` is 2^64 - 1 and `0x.8` is one half.
//!
//! Values equal C's to the last bit (compared with glibc's on 320,000 words). Range errors also agree, except for some
//! numbers below 2.2e-308 that glibc accepts: we reject all of them in decimal, and in hexadecimal those that a double
//! does not represent exactly.

/// A number, and its length in the word.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Read<T> {
    pub(super) value: T,
    /// The number of bytes read; the text after them is ignored.
    pub(super) used_bytes: usize,
}

/// Why a word is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoNumber {
    /// It does not start with a number.
    Absent,
    /// It does not fit in the type.
    OutOfRange,
}

/// Like `stoull` with base 10: a sign is allowed, and a negative number wraps around.
pub(super) fn whole(word: &str) -> Result<Read<u64>, NoNumber> {
    let (negative, signed_bytes) = sign(word);
    let digits = &word[signed_bytes..signed_bytes + span(&word[signed_bytes..], |b| b.is_ascii_digit())];
    if digits.is_empty() {
        return Err(NoNumber::Absent);
    }
    let value: u64 = digits.parse().map_err(|_| NoNumber::OutOfRange)?;
    let value = if negative { value.wrapping_neg() } else { value };
    Ok(Read { value, used_bytes: signed_bytes + digits.len() })
}

/// Like `stod` in C's own locale: decimal, hexadecimal (`0x1.8p-1`), `inf` and `nan`.
pub(super) fn real(word: &str) -> Result<Read<f64>, NoNumber> {
    let (negative, signed_bytes) = sign(word);
    let body = &word[signed_bytes..];
    let Read { value, used_bytes } =
        named(body).map_or_else(|| hexadecimal(body).unwrap_or_else(|| decimal(body)), Ok)?;
    let value = if negative { -value } else { value };
    Ok(Read { value, used_bytes: signed_bytes + used_bytes })
}

/// Parses a reserve's fraction or number of GiB as an `istream` parses a `double`, which must be the whole word.
/// Stricter than `stod` (no trailing text, no hexadecimal), but it accepts the smallest numbers.
pub(super) fn all_of(word: &str) -> Option<f64> {
    let plain = word.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
    word.parse().ok().filter(|value: &f64| plain && value.is_finite())
}

/// Whether there is a minus sign, and the length of the sign.
fn sign(word: &str) -> (bool, usize) {
    match word.as_bytes().first() {
        Some(b'-') => (true, 1),
        Some(b'+') => (false, 1),
        _ => (false, 0),
    }
}

/// The number of leading bytes of `text` that match.
fn span(text: &str, such: impl Fn(u8) -> bool) -> usize {
    text.bytes().position(|b| !such(b)).unwrap_or(text.len())
}

fn named(body: &str) -> Option<Read<f64>> {
    let is = |name: &str| body.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
    let value = if is("inf") { f64::INFINITY } else { f64::NAN };
    let used_bytes = if is("infinity") { 8 } else { 3 };
    (is("inf") || is("nan")).then_some(Read { value, used_bytes })
}

/// The parts of a number: digits with at most one point, then an optional exponent, which needs at least one digit.
struct Shape {
    digits: usize,
    mantissa_bytes: usize,
    exponent_bytes: usize,
}

fn shape(body: &str, digit: impl Fn(u8) -> bool + Copy, mark: u8) -> Shape {
    let before = span(body, digit);
    let point = body[before..].starts_with('.');
    let after = if point { span(&body[before + 1..], digit) } else { 0 };
    let mantissa_bytes = before + usize::from(point) + after;
    let rest = &body[mantissa_bytes..];
    let exponent_bytes = match rest.as_bytes().first() {
        Some(first) if first.eq_ignore_ascii_case(&mark) => {
            let (_, signed) = sign(&rest[1..]);
            let digits = span(&rest[1 + signed..], |b| b.is_ascii_digit());
            if digits > 0 { 1 + signed + digits } else { 0 }
        }
        _ => 0,
    };
    Shape { digits: before + after, mantissa_bytes, exponent_bytes }
}

fn decimal(body: &str) -> Result<Read<f64>, NoNumber> {
    let shape = shape(body, |b| b.is_ascii_digit(), b'e');
    if shape.digits == 0 {
        return Err(NoNumber::Absent);
    }
    let used_bytes = shape.mantissa_bytes + shape.exponent_bytes;
    let value: f64 = body[..used_bytes].parse().map_err(|_| NoNumber::Absent)?;
    let zero = body[..shape.mantissa_bytes].bytes().all(|b| b == b'0' || b == b'.');
    if value.is_infinite() || (value < f64::MIN_POSITIVE && !zero) {
        return Err(NoNumber::OutOfRange);
    }
    Ok(Read { value, used_bytes })
}

/// None if `body` is not a hexadecimal number; `0x` alone is a decimal 0 with trailing text.
fn hexadecimal(body: &str) -> Option<Result<Read<f64>, NoNumber>> {
    let digits = body.strip_prefix("0x").or_else(|| body.strip_prefix("0X"))?;
    let shape = shape(digits, |b| b.is_ascii_hexdigit(), b'p');
    if shape.digits == 0 {
        return None;
    }
    let used_bytes = 2 + shape.mantissa_bytes + shape.exponent_bytes;
    let exponent = &digits[shape.mantissa_bytes..][..shape.exponent_bytes];
    let value = hexadecimal_value(&digits[..shape.mantissa_bytes], exponent_value(exponent));
    Some(value.map(|value| Read { value, used_bytes }))
}

/// The exponent after `p`, clamped far outside the range of doubles.
fn exponent_value(text: &str) -> i64 {
    const FAR: i64 = 1 << 40;
    let Some(text) = text.get(1..) else { return 0 };
    let far = if text.starts_with('-') { -FAR } else { FAR };
    text.parse().map_or(far, |exponent: i64| exponent.clamp(-FAR, FAR))
}

fn hexadecimal_value(mantissa: &str, exponent: i64) -> Result<f64, NoNumber> {
    // 60 bits are more than the 53 that are kept; lower bits only matter for rounding (a sticky bit).
    let (mut bits, mut scale, mut seen_point) = (0u64, exponent, false);
    for char in mantissa.chars() {
        let Some(digit) = char.to_digit(16) else {
            seen_point = true;
            continue;
        };
        if bits >> 56 == 0 {
            bits = bits << 4 | u64::from(digit);
            scale -= if seen_point { 4 } else { 0 };
        } else {
            bits |= u64::from(digit != 0);
            scale += if seen_point { 0 } else { 4 };
        }
    }
    if bits == 0 {
        return Ok(0.0);
    }
    let rounded = bits as f64;
    let (value, back) = (scaled(rounded, scale), |value| scaled(value, -scale));
    let exact = bits.trailing_zeros() + 53 >= u64::BITS - bits.leading_zeros() && back(value) == rounded;
    if value.is_infinite() || (value < f64::MIN_POSITIVE && !exact) {
        return Err(NoNumber::OutOfRange);
    }
    Ok(value)
}

/// `value` times 2^`power`, in steps that a double can represent.
fn scaled(mut value: f64, mut power: i64) -> f64 {
    while power != 0 && value != 0.0 && value.is_finite() {
        let step = power.clamp(-1000, 1000);
        value *= 2f64.powi(step as i32);
        power -= step;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_as_stoull_reads_them() {
        let check = |word, expected: Result<(u64, usize), NoNumber>| {
            assert_eq!(whole(word).map(|read| (read.value, read.used_bytes)), expected, "{word}");
        };
        check("21", Ok((21, 2)));
        check("12abc", Ok((12, 2)));
        check("+32", Ok((32, 3)));
        check("-1", Ok((u64::MAX, 2)));
        check("0x20", Ok((0, 1)));
        check("18446744073709551615", Ok((u64::MAX, 20)));
        check("-18446744073709551615", Ok((1, 21)));
        check("18446744073709551616", Err(NoNumber::OutOfRange));
        check("abc", Err(NoNumber::Absent));
        check("+-1", Err(NoNumber::Absent));
        check("", Err(NoNumber::Absent));
        check("é", Err(NoNumber::Absent));
    }

    #[test]
    fn real_numbers_are_read_as_stod_reads_them() {
        let check = |word, expected: Result<(f64, usize), NoNumber>| {
            assert_eq!(real(word).map(|read| (read.value, read.used_bytes)), expected, "{word}");
        };
        check(".5abc", Ok((0.5, 2)));
        check("5.e-1", Ok((0.5, 5)));
        check("0.5e-", Ok((0.5, 3)));
        check("-0.5", Ok((-0.5, 4)));
        check("0x.8", Ok((0.5, 4)));
        check("0X1P-1z", Ok((0.5, 6)));
        check("0x", Ok((0.0, 1)));
        check("0x.p1", Ok((0.0, 1)));
        check("0x1p", Ok((1.0, 3)));
        check("0x1p-1074", Ok((5e-324, 9)));
        check("0x1.8p-1074", Err(NoNumber::OutOfRange));
        check("0x1p-99999999999999999999", Err(NoNumber::OutOfRange));
        check("0x1p1024", Err(NoNumber::OutOfRange));
        check("0x0p99999", Ok((0.0, 9)));
        check("0x10000000000000000000001p-88", Ok((1.0, 29)));
        check("1e-310", Err(NoNumber::OutOfRange));
        check("0e-999", Ok((0.0, 6)));
        check("1e999", Err(NoNumber::OutOfRange));
        check("Infinity", Ok((f64::INFINITY, 8)));
        check(".", Err(NoNumber::Absent));
        check("e5", Err(NoNumber::Absent));
        assert!(real("NaN(12)").unwrap().value.is_nan());
    }

    #[test]
    fn a_reserve_must_be_a_number_to_its_end() {
        assert_eq!(["5.", "+.5", "1e-310"].map(all_of), [Some(5.0), Some(0.5), Some(1e-310)]);
        for word in ["", ".", "1e", "1e+", "0x1", "inf", "nan", "1e400", "1z", "1.2.3", "e5"] {
            assert_eq!(all_of(word), None, "{word}");
        }
    }
}
