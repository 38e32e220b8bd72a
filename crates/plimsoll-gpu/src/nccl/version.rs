//! NCCL's version: [`Version`].

use std::fmt;

/// An NCCL version, such as 2.28.9.
///
/// ```
/// use plimsoll_gpu::nccl::Version;
/// let version = Version::from_code(22_809);
/// assert_eq!(version.to_string(), "2.28.9");
/// assert!(version >= Version::new(2, 22, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    /// The version that we measured on GPUs. PyTorch 2.11 uses it.
    pub const MEASURED: Version = Version::new(2, 28, 9);

    /// The version with these numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    /// Decodes a version code of `ncclGetVersion`: 22809 is 2.28.9. Codes before 2.9 have one digit fewer.
    pub const fn from_code(code: u32) -> Version {
        let major = if code < 10_000 { code / 1000 } else { code / 10_000 };
        let minor = if code < 10_000 { code / 100 % 10 } else { code / 100 % 100 };
        Version::new(major, minor, code % 100)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { major, minor, patch } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_forms_are_read() {
        assert_eq!(Version::from_code(22_809), Version::MEASURED);
        assert_eq!(Version::from_code(2_804), Version::new(2, 8, 4));
        assert!(Version::from_code(22_105) < Version::new(2, 22, 0));
    }
}
