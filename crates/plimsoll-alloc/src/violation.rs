//! A broken invariant: [`Violation`], which every consistency check returns.

use std::fmt;

use crate::request::Addr;

/// A broken invariant: a bug in this crate, never the caller's fault.
///
/// ```
/// # use plimsoll_alloc::Violation;
/// let broken = Violation { rule: "reserved is the sum of the segments", expected: 2, found: 1, at: None };
/// assert_eq!(broken.to_string(), "broken rule: reserved is the sum of the segments: expected 2, found 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant.
    pub rule: &'static str,
    /// The expected value of the quantity that `rule` names.
    pub expected: i128,
    /// The value found.
    pub found: i128,
    /// The address of the block, if one block breaks it.
    pub at: Option<Addr>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broken rule: {}: expected {}, found {}", self.rule, self.expected, self.found)?;
        match self.at {
            Some(addr) => write!(f, " (at {addr})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Violation {}

/// Checks that two values are equal.
pub(crate) fn equal(
    rule: &'static str,
    at: Option<Addr>,
    expected: impl Into<i128>,
    found: impl Into<i128>,
) -> Result<(), Violation> {
    let (expected, found) = (expected.into(), found.into());
    if expected == found { Ok(()) } else { Err(Violation { rule, expected, found, at }) }
}

/// A count, as the type that [`equal`] takes.
pub(crate) fn count(number: usize) -> i128 {
    number as i128
}
