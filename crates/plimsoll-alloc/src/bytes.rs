//! Human-readable sizes: [`Bytes`].

use std::fmt;

/// A number of bytes that displays as PyTorch's messages do: whole bytes up to 1,024, then two decimals of
/// KiB, MiB or GiB (`format_size` in `CUDACachingAllocator.cpp`).
///
/// ```
/// # use plimsoll_alloc::Bytes;
/// assert_eq!(Bytes(512).to_string(), "512 bytes");
/// assert_eq!(Bytes(20 << 20).to_string(), "20.00 MiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// The exact number with a unit, as options of the command line take it.
    ///
    /// ```
    /// # use plimsoll_alloc::Bytes;
    /// assert_eq!(Bytes(8 << 30).exact(), "8GiB");
    /// assert_eq!(Bytes(845_000_000).exact(), "845000000B");
    /// ```
    pub fn exact(self) -> String {
        let units = [(30, "GiB"), (20, "MiB")];
        let whole = units.into_iter().find(|(shift, _)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        whole.map_or_else(|| format!("{}B", self.0), |(shift, unit)| format!("{}{unit}", self.0 >> shift))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        let (unit, name) = match self.0 {
            bytes if bytes <= KIB => return write!(f, "{bytes} bytes"),
            bytes if bytes <= MIB => (KIB, "KiB"),
            bytes if bytes <= GIB => (MIB, "MiB"),
            _ => (GIB, "GiB"),
        };
        write!(f, "{:.2} {name}", self.0 as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn a_unit_starts_just_above_its_own_size() {
        let check = |bytes, expected: &str| assert_eq!(Bytes(bytes).to_string(), expected);
        check(0, "0 bytes");
        check(1024, "1024 bytes");
        check(1025, "1.00 KiB");
        check(1 << 20, "1024.00 KiB");
        check((3 << 20) / 2, "1.50 MiB");
        check(1 << 30, "1024.00 MiB");
        check(3 << 30, "3.00 GiB");
        check(1 << 50, "1048576.00 GiB");
    }
}
