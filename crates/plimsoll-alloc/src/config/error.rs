//! Errors: an invalid option value ([`InvalidOption`]), a malformed configuration string ([`ConfigError`]).

use std::fmt;

use super::place::Place;
use super::value::Reserve;
use crate::bytes::Bytes;

/// Why a value is invalid for an option.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let why = Config::default().with_max_split_bytes(Some(10 << 20)).unwrap_err();
/// assert_eq!(why.to_string(), "must be at least the size of a large segment, 20.00 MiB, not 10.00 MiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InvalidOption {
    /// Sizes must be a whole number of MiB, as in PyTorch's configuration string.
    NotWholeMebibytes {
        /// The requested value, bytes.
        bytes: u64,
    },
    /// A large segment must be more than 10 MiB.
    LargeSegmentTooSmall {
        /// The requested value, bytes.
        bytes: u64,
    },
    /// `max_split_size` must be at least a large segment.
    BelowLargeSegment {
        /// The requested value, bytes.
        bytes: u64,
        /// The size of a large segment, bytes.
        at_least_bytes: u64,
    },
    /// Divisions are powers of two.
    NotAPowerOfTwo {
        /// The requested value.
        value: u64,
    },
    /// The garbage collection threshold must lie between 0 and 1.
    ThresholdOutOfRange {
        /// The requested value.
        threshold: f64,
    },
    /// A memory fraction must lie between 0 and 1.
    FractionOutOfRange {
        /// The requested value.
        fraction: f64,
    },
    /// A reserve must be positive and finite.
    ReserveOutOfRange {
        /// The requested value.
        reserve: Reserve,
    },
    /// The number of threads that register pinned memory must be a power of two up to 128.
    RegisterThreads {
        /// The requested value.
        threads: u64,
    },
}

impl fmt::Display for InvalidOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotWholeMebibytes { bytes } => {
                write!(f, "must be a whole number of MiB, not {bytes} bytes")
            }
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
                write!(f, "must be positive and finite, not {reserve}")
            }
            Self::RegisterThreads { threads } => {
                write!(f, "must be a power of two from 1 to 128, not {threads}")
            }
        }
    }
}

impl std::error::Error for InvalidOption {}

/// A configuration string that PyTorch rejects, and where. No part of it was applied.
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

/// The problem with a configuration string.
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
        /// The closest option name.
        nearest: Option<&'static str>,
    },
    /// The string ends before the value does.
    NoValue,
    /// A list has no `]`.
    ListNotClosed,
    /// A boolean must be exactly `True` or `False`.
    NotASwitch,
    /// The value does not start with a number.
    NotANumber,
    /// The number does not fit in 64 bits.
    NumberOutOfRange,
    /// The number is zero.
    Zero,
    /// The backend must be `native` or `cudaMallocAsync`.
    UnknownBackend,
    /// The backend cannot change after startup.
    BackendChanged,
    /// The value is invalid for this option.
    Invalid(InvalidOption),
}

impl ConfigError {
    /// Byte offset of the problem; the length of the string if something is missing at the end.
    pub fn offset(&self) -> usize {
        self.place.range.start
    }

    /// The option's name, as written.
    pub fn option(&self) -> &str {
        &self.option
    }

    /// The reason.
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
            Self::UnknownOption { nearest: None } => f.write_str("is not an option of the allocator"),
            Self::UnknownOption { nearest: Some(nearest) } => {
                write!(f, "is not an option of the allocator; did you mean {nearest}?")
            }
            Self::NoValue => f.write_str("needs a value, but the string ends here"),
            Self::ListNotClosed => f.write_str("has a list without a closing ]"),
            Self::NotASwitch => f.write_str("must be True or False (case-sensitive)"),
            Self::NotANumber => f.write_str("must be a number"),
            Self::NumberOutOfRange => f.write_str("must be a number that fits in 64 bits"),
            Self::Zero => f.write_str("must be more than 0"),
            Self::UnknownBackend => f.write_str("must be native or cudaMallocAsync"),
            Self::BackendChanged => f.write_str("cannot be changed after the process starts"),
            Self::Invalid(why) => why.fmt(f),
        }
    }
}
