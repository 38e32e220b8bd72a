//! Sizes as users type them (`64MiB`, `1.5 GiB`, `80GB`, plain bytes), and as the program prints them.

use plimsoll_alloc::Bytes;
use plimsoll_trace::render::words;

/// Reads a size. `K`, `M`, `G`, `T` and the `iB` forms are powers of 1,024; `kB`, `MB`, `GB`, `TB` powers
/// of 1,000. Case does not matter.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = (text[..split].replace('_', ""), text[split..].trim().to_ascii_lowercase());
    let scale: u64 = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("`{unit}` is not a unit; use B, KiB, MiB, GiB or TiB")),
    };
    let out_of_range = || "more than 2^63 - 1 bytes".to_owned();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).filter(|&b| i64::try_from(b).is_ok()).ok_or_else(out_of_range);
    }
    let value: f64 = number.parse().map_err(|_| "not a size; write for example 64MiB".to_owned())?;
    let bytes = value * scale as f64;
    if bytes >= i64::MAX as f64 { Err(out_of_range()) } else { Ok(bytes as u64) }
}

/// Like [`parse`], but rejects zero: a limit or capacity of 0 is surely a mistake.
pub(crate) fn parse_positive(text: &str) -> Result<u64, String> {
    parse(text).and_then(|bytes| if bytes == 0 { Err("must be more than 0".to_owned()) } else { Ok(bytes) })
}

/// A size for printing: in bytes if `whole`, otherwise as [`Bytes`].
pub(crate) fn shown(bytes: u64, whole: bool) -> String {
    if whole { format!("{bytes} B") } else { Bytes(bytes).to_string() }
}

/// `1,390`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The change of a size, with its sign.
pub(crate) fn change(bytes: i128, whole: bool) -> String {
    words::change(bytes, |bytes| shown(bytes, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_size_is_read_back() {
        for (bytes, text) in [(8 << 30, "8GiB"), (3 << 19, "1572864B"), (5 << 20, "5MiB"), (0, "0B")] {
            assert_eq!((Bytes(bytes).exact().as_str(), parse(text)), (text, Ok(bytes)));
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            (" 1.5 GiB", 3 << 29),
            ("2097152", 2 << 20),
            ("80GB", 80_000_000_000),
            ("1_024", 1024),
            ("512k", 512 << 10),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn changes_have_a_sign_unless_there_is_none() {
        for (bytes, text, whole) in [(3 << 20, "+3.00 MiB", "+3145728 B"), (-512, "-512 bytes", "-512 B")] {
            assert_eq!((change(bytes, false), change(bytes, true)), (text.to_owned(), whole.to_owned()));
        }
        assert_eq!(change(0, false), "0 bytes");
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "MiB", "12 parsecs", "-1", "1.2.3", "99999999TiB", "9223372036854775808", "1e9"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse_positive("0").is_err());
    }
}
