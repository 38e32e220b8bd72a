//! A number of bytes, and whether it is measured, derived or assumed: [`Figure`], [`Basis`].

use std::fmt;

/// Where a figure comes from.
///
/// ```
/// use plimsoll_gpu::outside::Basis;
/// assert_eq!(Basis::Derived.to_string(), "derived");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// Measured on a GPU of this kind.
    Measured,
    /// Computed by a formula that fits all measurements.
    Derived,
    /// Given by the user.
    Given,
    /// Taken from another GPU or version, because nobody has measured this one.
    Assumed,
}

impl Basis {
    /// From the most to the least certain.
    pub const ALL: [Basis; 4] = [Basis::Measured, Basis::Derived, Basis::Given, Basis::Assumed];

    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Measured => "measured",
            Basis::Derived => "derived",
            Basis::Given => "given",
            Basis::Assumed => "assumed",
        }
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number of bytes, and where it comes from.
///
/// ```
/// use plimsoll_gpu::outside::{self, Basis, Figure};
/// let gpu = plimsoll_gpu::named("H100")?;
/// assert_eq!(outside::context(gpu), Figure { bytes: 552_402_944, basis: Basis::Measured });
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    /// The number of bytes.
    pub bytes: u64,
    /// Where it comes from.
    pub basis: Basis,
}

impl Figure {
    pub(crate) const fn new(bytes: u64, basis: Basis) -> Figure {
        Figure { bytes, basis }
    }
}
