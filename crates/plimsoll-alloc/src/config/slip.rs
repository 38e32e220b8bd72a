//! What is accepted, but worth saying: [`ConfigWarning`] where the string surely means something else than
//! PyTorch reads in it, [`NotApplicable`] for an option that has no effect here.

use std::fmt;

use super::Place;

/// A place where a configuration string surely means something else than PyTorch reads in it.
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
    pub(super) slip: Slip,
}

/// What PyTorch reads there.
///
/// ```
/// # use plimsoll_alloc::{Config, Slip};
/// let parsed = Config::parse("garbage_collection_threshold:0.8x")?;
/// assert_eq!(*parsed.warnings[0].slip(), Slip::RestIgnored { read: "0.8".into() });
/// # Ok::<(), plimsoll_alloc::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slip {
    /// White space in the middle of a word is dropped: `4 0` is 40.
    SpaceInside,
    /// A number wraps around: `-1` is 2^64 - 1.
    Wrapped {
        /// What is read.
        value: u64,
    },
    /// What follows a number is ignored: `12abc` is 12.
    RestIgnored {
        /// What is read.
        read: String,
    },
    /// The number is larger than it can be.
    Capped {
        /// What is read.
        value: u64,
    },
    /// Any separator is taken for `:`.
    NotAColon,
    /// Any word is taken for `,`, and is lost.
    NotAComma,
    /// The option was set before, which this overwrites.
    SetAgain,
    /// A reserve that is not a positive number is ignored.
    ReserveIgnored,
    /// Requests above the size that is cached are never rounded.
    RoundsMoreThanItCaches,
    /// `large_segment_size_mb` is heeded wherever it stands.
    HeededInsideAValue,
}

impl ConfigWarning {
    /// Where in the string it begins, bytes.
    pub fn offset(&self) -> usize {
        self.place.range.start
    }

    /// What PyTorch reads there.
    pub fn slip(&self) -> &Slip {
        &self.slip
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = &self.place.text[self.place.range.clone()];
        write!(f, "{}: {}{}", said.escape_debug(), self.slip, self.place)
    }
}

impl fmt::Display for Slip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SpaceInside => f.write_str("the white space inside is dropped"),
            Self::Wrapped { value } => write!(f, "read as {value}"),
            Self::RestIgnored { read } => write!(f, "read as {read}; the rest is ignored"),
            Self::Capped { value } => write!(f, "read as {value}, the most there is"),
            Self::NotAColon => f.write_str("read as the : between an option and its value"),
            Self::NotAComma => f.write_str("read as the , between two options"),
            Self::SetAgain => f.write_str("was set before, which this overwrites"),
            Self::ReserveIgnored => {
                f.write_str("ignored: a reserve is a part of the device as in 0.5, or GiB as in 40G")
            }
            Self::RoundsMoreThanItCaches => {
                f.write_str("more than pinned_max_cached_size_mb, above which nothing is rounded")
            }
            Self::HeededInsideAValue => f.write_str("sets the option, although it stands inside a value"),
        }
    }
}

/// An option that PyTorch knows and whose value it would accept, but that has no effect on this allocator.
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
    /// The option's name as it was written.
    pub fn option(&self) -> &str {
        &self.option
    }

    /// Where in the string it stands, bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }
}

impl fmt::Display for NotApplicable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has no effect: {}", self.option, self.because)
    }
}
