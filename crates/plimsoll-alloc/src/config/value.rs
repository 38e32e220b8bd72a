//! Option values that are neither numbers nor booleans.

use std::fmt;

pub(super) const MIB: u64 = 1 << 20;

/// The number of entries of `Config::roundup_power2_divisions`. Entry `i` is for sizes from 2^(20+i) to 2^(21+i) bytes;
/// the first also covers all smaller sizes, the last all larger ones.
pub(super) const ROUNDUP_ENTRIES: usize = 16;

/// Which of two cached blocks of the same stream and size serves a request.
///
/// ```
/// # use plimsoll_alloc::{Config, TieOrder};
/// let replay = Config::default().with_tie_order(TieOrder::Address);
/// assert_ne!(replay.tie_order(), Config::default().tie_order());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TieOrder {
    /// The block in the older segment; in the same segment, the one at the lower address. Like PyTorch 2.15.
    #[default]
    RegistrationCounter,
    /// The block at the lower address. Like PyTorch up to about 2.12; needed to replay its recordings.
    Address,
}

/// When a capture counts as being in progress.
///
/// ```
/// # use plimsoll_alloc::{CaptureTest, Config};
/// let older = Config::default().with_capture_test(CaptureTest::AnyRedirection);
/// assert_ne!(older.capture_test(), Config::default().capture_test());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CaptureTest {
    /// A capture that has begun and not ended. Like PyTorch from about 2.13.
    #[default]
    Capture,
    /// A capture, or any private pool that requests are sent to. Like PyTorch before about 2.13.
    AnyRedirection,
}

/// Which entries `>` sets in a list of `roundup_power2_divisions`.
///
/// ```
/// # use plimsoll_alloc::{Config, RoundupRest};
/// let text = "roundup_power2_divisions:[1:2,>:4]";
/// let older = Config::default().with_roundup_rest(RoundupRest::FromLast).apply(text)?.config;
/// assert_eq!(older.roundup_power2_divisions()[..2], [4, 4]);
/// assert_eq!(Config::parse(text)?.config.roundup_power2_divisions()[..2], [2, 4]);
/// # Ok::<(), plimsoll_alloc::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RoundupRest {
    /// The entries above the one listed before `>`. Like PyTorch 2.15.
    #[default]
    AfterLast,
    /// The entry listed before `>`, and those above it. Like PyTorch before its allocator settings were shared between
    /// accelerators.
    FromLast,
}

/// How much address space an expandable segment reserves.
///
/// ```
/// # use plimsoll_alloc::Reserve;
/// assert_eq!(Reserve::Fraction(0.25).bytes(80 << 30), 20 << 30);
/// assert_eq!(Reserve::Gibibytes(400.0).bytes(80 << 30), 90 << 30); // capped
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reserve {
    /// A fraction of the device's memory; `0.5` in the configuration string.
    Fraction(f64),
    /// A number of GiB; `40G` in the configuration string.
    Gibibytes(f64),
}

impl Reserve {
    /// The bytes to reserve on a device of `device_bytes`: at most 9/8 of the device.
    pub fn bytes(self, device_bytes: u64) -> u64 {
        let bytes = match self {
            Self::Fraction(fraction) => fraction * device_bytes as f64,
            Self::Gibibytes(gibibytes) => gibibytes * (1u64 << 30) as f64,
        };
        (bytes as u64).min(device_bytes.saturating_add(device_bytes / 8)) // `as` saturates, as PyTorch does
    }

    /// Whether it is positive and finite.
    pub(crate) fn is_valid(self) -> bool {
        let (Self::Fraction(value) | Self::Gibibytes(value)) = self;
        value > 0.0 && value.is_finite()
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(f, "{}", Shortest(*fraction)),
            Self::Gibibytes(gibibytes) => write!(f, "{}G", Shortest(*gibibytes)),
        }
    }
}

/// The shorter of two notations, `0.5` or `5e-10`, that parses to the same number.
pub(super) struct Shortest(pub(super) f64);

impl fmt::Display for Shortest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plain, scientific) = (self.0.to_string(), format!("{:e}", self.0));
        f.write_str(if plain.len() <= scientific.len() { &plain } else { &scientific })
    }
}
