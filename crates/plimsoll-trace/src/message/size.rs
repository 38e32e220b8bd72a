//! Sizes as PyTorch writes them: `20.00 MiB`, `0 bytes`, and `5.00 GB`, where 1 GB is 1,024 MB.

/// Parses the size at the beginning of a text. Returns the size with the rest of the text. A number with two decimals
/// may be off by half a unit of the last decimal.
pub(super) fn leading(text: &str) -> Option<(u64, &str)> {
    let text = text.trim_start();
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.' && char != ',')?;
    let number = number(&text[..end])?;
    let rest = text[end..].trim_start();
    let (unit, bytes_per_unit) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
    let rest = &rest[unit.len()..];
    if rest.starts_with(|char: char| char.is_ascii_alphabetic()) {
        return None;
    }
    let bytes = number * bytes_per_unit;
    // Casting a float to an integer clamps it to the integer's range.
    (bytes < MOST_BYTES).then_some((bytes.round() as u64, rest))
}

/// Parses `1,024.50`, `2,048`, and with a decimal comma `2,00`, `1.024,50`. A comma before three digits separates
/// thousands, unless the digits before it contain a point or are a single zero.
fn number(digits: &str) -> Option<f64> {
    let digits = digits.trim_end_matches(['.', ',']);
    let is_decimal = |whole: &str, rest: &str| {
        !rest.contains('.') && (rest.len() != 3 || whole == "0" || whole.contains('.'))
    };
    let plain = match digits.rsplit_once(',') {
        Some((whole, rest)) if is_decimal(whole, rest) => format!("{}.{rest}", whole.replace(['.', ','], "")),
        _ => digits.replace(',', ""),
    };
    plain.parse().ok()
}

/// More bytes than any machine has.
const MOST_BYTES: f64 = (1u64 << 60) as f64;

/// All units are powers of 1,024, including the `MB` of PyTorch's Metal allocator. If one unit is the
/// beginning of another unit, the longer unit comes first.
const UNITS: [(&str, f64); 15] = [
    ("bytes", 1.0),
    ("byte", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
    ("PiB", 1125899906842624.0),
    ("KB", 1024.0),
    ("kB", 1024.0),
    ("MB", 1048576.0),
    ("GB", 1073741824.0),
    ("TB", 1099511627776.0),
    ("PB", 1125899906842624.0),
    ("B", 1.0),
    ("b", 1.0),
];

#[cfg(test)]
mod tests {
    use super::leading;

    #[test]
    fn sizes_are_powers_of_1024_and_may_be_bytes() {
        for (text, expected) in [
            ("20.00 MiB (GPU 0", Some((20 << 20, " (GPU 0"))),
            (" 0 bytes free", Some((0, " free"))),
            ("1.50 GB, other", Some((3 << 29, ", other"))),
            ("4000000000 bytes.", Some((4_000_000_000, "."))),
            ("1,024 KiB", Some((1 << 20, ""))),
            ("2,048 MiB", Some((2 << 30, ""))),
            ("1,024.50 KiB", Some((1_049_088, ""))),
            ("2,00 GiB. GPU 0", Some((2 << 30, ". GPU 0"))),
            ("1,5 GiB frei", Some((3 << 29, " frei"))),
            ("0,125 GiB", Some((1 << 27, ""))),
            ("1.024,50 KiB", Some((1_049_088, ""))),
            ("1,048,576 KiB", Some((1 << 30, ""))),
            ("12 apples", None),
            ("MiB", None),
            ("9999999999999 PiB", None),
        ] {
            assert_eq!(leading(text), expected, "{text}");
        }
    }
}
