//! What is wrong with an option's value ([`InvalidOption`]) or with a configuration string ([`ConfigError`]).

use std::fmt;

use super::{Place, Reserve};
use crate::bytes::Bytes;

/// Why an option cannot have a value.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let why = Config::default().with_max_split_bytes(Some(10 << 20)).unwrap_err();
/// assert_eq!(why.to_string(), "must be at least the size of a large segment, 20.00 MiB, not 10.00 MiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InvalidOption {
    /// Sizes are set in whole MiB, as in PyTorch's configuration string.
    NotWholeMebibytes {
        /// What was asked for, bytes.
        bytes: u64,
    },
    /// A large segment must be more than 10 MiB.
    LargeSegmentTooSmall {
        /// What was asked for, bytes.
        bytes: u64,
    },
    /// A bound on splitting must be at least a large segment.
    BelowLargeSegment {
        /// What was asked for, bytes.
        bytes: u64,
        /// The size of a large segment, bytes.
        at_least_bytes: u64,
    },
    /// Divisions are powers of two.
    NotAPowerOfTwo {
        /// What was asked for.
        value: u64,
    },
    /// The garbage collection threshold must lie between 0 and 1.
    ThresholdOutOfRange {
        /// What was asked for.
        threshold: f64,
    },
    /// A memory fraction must lie between 0 and 1.
    FractionOutOfRange {
        /// What was asked for.
        fraction: f64,
    },
    /// A reserve must be more than nothing.
    ReserveOutOfRange {
        /// What was asked for.
        reserve: Reserve,
    },
    /// The threads that register pinned memory are a power of two up to 128.
    RegisterThreads {
        /// What was asked for.
        threads: u64,
    },
}

impl fmt::Display for InvalidOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotWholeMebibytes { bytes } => write!(f, "must be whole MiB, not {bytes} bytes"),
            Self::LargeSegmentTooSmall { bytes } => {
                write!(f, "must be more than 10 MiB, not {}", Bytes(bytes))
            }
            Self::BelowLargeSegment { bytes, at_least_bytes } => {
                let (bytes, least) = (Bytes(bytes), Bytes(at_least_bytes));
                write!(f, "must be at least the size of a large segment, {least}, not {bytes}")
            }
            Self::NotAPowerOfTwo { value } => write!(f, "must be a power of two, not {value}"),
            Self::ThresholdOutOfRange { threshold } => {
                write!(f, "must be more than 0 and less than 1, not {threshold}")
            }
            Self::FractionOutOfRange { fraction } => write!(f, "must be between 0 and 1, not {fraction}"),
            Self::ReserveOutOfRange { reserve } => {
                write!(f, "must be more than nothing and finite, not {reserve}")
            }
            Self::RegisterThreads { threads } => {
                write!(f, "must be a power of two from 1 to 128, not {threads}")
            }
        }
    }
}

impl std::error::Error for InvalidOption {}

/// A configuration string that PyTorch refuses, and where. Nothing of it was applied.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let why = Config::parse("expandable_segments:True, max_split_size_mb:12").unwrap_err();
/// assert_eq!(why.offset(), 44);
/// assert_eq!(
///     why.to_string(),
///     "max_split_size_mb must be at least the size of a large segment, 20.00 MiB, not 12.00 MiB\n\
///      \x20 expandable_segments:True, max_split_size_mb:12\n\
///      \x20                                             ^^"
/// );
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError {
    pub(super) place: Place,
    pub(super) option: String,
    pub(super) problem: ConfigProblem,
}

/// What is wrong at that place.
///
/// ```
/// # use plimsoll_alloc::{Config, ConfigProblem};
/// let why = Config::parse("expandable_segments:true").unwrap_err();
/// assert_eq!(why.problem(), ConfigProblem::NotASwitch);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ConfigProblem {
    /// PyTorch has no such option.
    UnknownOption {
        /// The option that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The string ends before the value does.
    NoValue,
    /// A list has no `]`.
    ListNotClosed,
    /// A switch is `True` or `False`, exactly.
    NotASwitch,
    /// The value does not begin with a number.
    NotANumber,
    /// The number has no place in 64 bits.
    NumberOutOfRange,
    /// The number is zero.
    Zero,
    /// A backend is `native` or `cudaMallocAsync`.
    UnknownBackend,
    /// The backend is chosen at the start, once.
    BackendChanged,
    /// The option cannot have this value.
    Invalid(InvalidOption),
}

impl ConfigError {
    /// Where in the string the problem begins, bytes; its length if something is missing at the end.
    pub fn offset(&self) -> usize {
        self.place.range.start
    }

    /// The option's name as it was written.
    pub fn option(&self) -> &str {
        &self.option
    }

    /// What is wrong.
    pub fn problem(&self) -> ConfigProblem {
        self.problem
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.option.escape_debug(), self.problem, self.place)
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownOption { nearest: None } => f.write_str("is no option of the allocator"),
            Self::UnknownOption { nearest: Some(nearest) } => {
                write!(f, "is no option of the allocator; {nearest} is one")
            }
            Self::NoValue => f.write_str("needs a value, but the string ends here"),
            Self::ListNotClosed => f.write_str("has a list without its ]"),
            Self::NotASwitch => f.write_str("must be True or False, written so"),
            Self::NotANumber => f.write_str("must be a number"),
            Self::NumberOutOfRange => f.write_str("must be a number that fits in 64 bits"),
            Self::Zero => f.write_str("must be more than 0"),
            Self::UnknownBackend => f.write_str("must be native or cudaMallocAsync"),
            Self::BackendChanged => f.write_str("is chosen once, when the process starts"),
            Self::Invalid(why) => why.fmt(f),
        }
    }
}
