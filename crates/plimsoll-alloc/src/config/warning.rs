//! Warnings: [`ConfigWarning`] where the author of a string probably meant something other than what PyTorch reads,
//! [`NotApplicable`] for an option that has no effect here.

use std::fmt;

use super::place::Place;

/// A place in a configuration string where the author probably meant something other than what PyTorch reads.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let parsed = Config::parse("max_split_size_mb:4 0 MB")?;
/// assert_eq!(parsed.config.max_split_bytes(), Some(40 << 20));
/// let said: Vec<_> = parsed.warnings.iter().map(|warning| warning.slip().to_string()).collect();
/// assert_eq!(said, ["the white space inside is dropped", "read as 40; the rest is ignored"]);
/// # Ok::<(), plimsoll_alloc::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning {
    pub(super) place: Place,
    pub(super) slip: WarningKind,
}

/// The kind of warning.
///
/// ```
/// # use plimsoll_alloc::{Config, WarningKind};
/// let parsed = Config::parse("garbage_collection_threshold:0.8x")?;
/// assert_eq!(*parsed.warnings[0].slip(), WarningKind::RestIgnored { read: "0.8".into() });
/// # Ok::<(), plimsoll_alloc::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WarningKind {
    /// White space inside a word is dropped: `4 0` is 40.
    SpaceInside,
    /// The number wraps around: `-1` is 2^64 - 1.
    Wrapped {
        /// The value read.
        value: u64,
    },
    /// Text after a number is ignored: `12abc` is 12.
    RestIgnored {
        /// The value read.
        read: String,
    },
    /// The number is above the maximum.
    Capped {
        /// The value read.
        value: u64,
    },
    /// Any separator counts as `:`.
    NotAColon,
    /// Any word counts as `,`, and is ignored.
    NotAComma,
    /// The option was set before; this value replaces it.
    SetAgain,
    /// A reserve that is not a positive number is ignored.
    ReserveIgnored,
    /// Requests above the largest cached size are never rounded.
    RoundsMoreThanItCaches,
    /// `large_segment_size_mb` takes effect wherever it appears, even inside another option's value.
    HeededInsideAValue,
}

impl ConfigWarning {
    /// Byte offset in the string.
    pub fn offset(&self) -> usize {
        self.place.range.start
    }

    /// The kind of warning.
    pub fn slip(&self) -> &WarningKind {
        &self.slip
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = &self.place.text[self.place.range.clone()];
        write!(f, "{}: {}{}", said.escape_debug(), self.slip, self.place)
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpaceInside => f.write_str("the white space inside is dropped"),
            Self::Wrapped { value } => write!(f, "read as {value}"),
            Self::RestIgnored { read } => write!(f, "read as {read}; the rest is ignored"),
            Self::Capped { value } => write!(f, "read as {value}, the maximum"),
            Self::NotAColon => f.write_str("read as the : between an option and its value"),
            Self::NotAComma => f.write_str("read as the , between two options"),
            Self::SetAgain => f.write_str("was set before; this value replaces it"),
            Self::ReserveIgnored => {
                f.write_str("ignored: a reserve is a fraction of the device such as 0.5, or GiB such as 40G")
            }
            Self::RoundsMoreThanItCaches => {
                f.write_str("above pinned_max_cached_size_mb; larger requests are not rounded")
            }
            Self::HeededInsideAValue => {
                f.write_str("sets the option, although it is inside another option's value")
            }
        }
    }
}

/// A valid PyTorch option that has no effect on this allocator.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let parsed = Config::parse("backend:cudaMallocAsync")?;
/// assert_eq!(parsed.not_applicable[0].option(), "backend");
/// assert_eq!(parsed.not_applicable[0].to_string(), "backend has no effect: this is the native allocator");
/// # Ok::<(), plimsoll_alloc::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotApplicable {
    pub(super) option: String,
    pub(super) offset: usize,
    pub(super) because: &'static str,
}

impl NotApplicable {
    /// The option's name, as written.
    pub fn option(&self) -> &str {
        &self.option
    }

    /// Byte offset in the string.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl fmt::Display for NotApplicable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect: {}", self.option, self.because)
    }
}
