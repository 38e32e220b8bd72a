//! Whether to recommend a setting, and which: [`Advice`]. All commands use this rule.
//!
//! Settings are ranked: those that fit come first, then those with fewer retries, less reserved memory, fewer driver
//! calls. The best setting is compared with the *simulation* of the recorded settings, never with the recording itself.
//! The difference between that simulation and the recording is the error of every row. If a gain is within the error,
//! or invisible after rounding, it is not claimed.

use plimsoll_alloc::Bytes;

use super::{Outcome, Row, WhatIf};

/// The advice about other settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice<'a> {
    /// No request was recorded, so there is nothing to replay.
    NothingRecorded,
    /// The simulation of the recorded settings fits although the recording ran out of memory, or the reverse. So the
    /// rows are not reliable.
    NotReproduced,
    /// A request failed. This setting serves it, and also what the program still needed after the request, as far as
    /// this is known.
    Serves(&'a Row),
    /// A request failed. This setting serves it, but no setting serves what the program still needed after the request.
    ServesOneRequest(&'a Row),
    /// A request failed, and no setting serves it.
    NoneServes,
    /// The setting needs fewer retries.
    FewerRetries(&'a Row),
    /// The setting reserves less memory.
    Saves(&'a Row),
    /// No setting is better by more than the error.
    NothingBetter,
}

impl<'a> Advice<'a> {
    /// The advice in a few words, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::NothingRecorded => "nothing recorded",
            Self::NotReproduced => "not reproduced",
            Self::Serves(_) => "serves",
            Self::ServesOneRequest(_) => "serves one request",
            Self::NoneServes => "none serves",
            Self::FewerRetries(_) => "fewer retries",
            Self::Saves(_) => "saves",
            Self::NothingBetter => "nothing better",
        }
    }

    /// The recommended setting, if any.
    pub fn row(self) -> Option<&'a Row> {
        match self {
            Self::Serves(row) | Self::FewerRetries(row) | Self::Saves(row) => Some(row),
            Self::NothingRecorded
            | Self::NotReproduced
            | Self::ServesOneRequest(_)
            | Self::NoneServes
            | Self::NothingBetter => None,
        }
    }
}

impl WhatIf {
    /// The advice: which setting to recommend, if any.
    pub fn advice(&self) -> Advice<'_> {
        let (recorded, Some((baseline, tried))) = (&self.recorded, self.rows.split_first()) else {
            return Advice::NothingRecorded;
        };
        let baseline = &baseline.outcome;
        if self.requests == 0 {
            return Advice::NothingRecorded;
        }
        if baseline.runs_out() != recorded.runs_out() {
            return Advice::NotReproduced;
        }
        let Some(best) = tried.iter().min_by_key(|row| rank(&row.outcome)) else {
            return Advice::NothingBetter;
        };
        let it = &best.outcome;
        if recorded.runs_out() {
            return match (it.runs_out(), it.fits()) {
                (true, _) => Advice::NoneServes,
                (false, true) => Advice::Serves(best),
                (false, false) => Advice::ServesOneRequest(best),
            };
        }
        let retries_error = baseline.retries.abs_diff(recorded.retries);
        if it.runs_out() || it.retries > baseline.retries {
            Advice::NothingBetter
        } else if baseline.retries - it.retries > retries_error {
            Advice::FewerRetries(best)
        } else if self.is_less(it.peak_reserved_bytes) {
            Advice::Saves(best)
        } else {
            Advice::NothingBetter
        }
    }

    /// The difference between the peaks of reserved memory, simulated and recorded, under the recorded settings, bytes.
    pub fn error_bytes(&self) -> u64 {
        let was = self.recorded.peak_reserved_bytes;
        self.rows.first().map_or(0, |baseline| baseline.outcome.peak_reserved_bytes.abs_diff(was))
    }

    /// Whether this number of bytes is less than the simulated peak of the recorded settings, by more than the error
    /// and visibly after rounding.
    fn is_less(&self, bytes: u64) -> bool {
        let baseline = self.rows.first().map_or(0, |row| row.outcome.peak_reserved_bytes);
        let is_seen = Bytes(bytes).to_string() != Bytes(baseline).to_string();
        baseline.saturating_sub(bytes) > self.error_bytes() && is_seen
    }
}

/// The sort key of the settings; the best setting has the smallest.
fn rank(outcome: &Outcome) -> (bool, bool, usize, u64, usize) {
    (
        outcome.runs_out(),
        !outcome.fits(),
        outcome.retries,
        outcome.peak_reserved_bytes,
        outcome.driver_calls(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn row(setting: &str, mebibytes: u64, retries: usize) -> Row {
        let outcome = Outcome {
            peak_reserved_bytes: mebibytes * MIB,
            retries,
            segment_allocs: 1,
            ..Outcome::default()
        };
        Row { setting: setting.to_owned(), outcome }
    }

    /// A recording that reserved 1000 MiB, with the simulation of its own settings, and of other settings.
    fn what_if(baseline: Row, tried: &[Row]) -> WhatIf {
        WhatIf {
            recorded: Outcome { retries: baseline.outcome.retries, ..row("", 1000, 0).outcome },
            rows: [&[baseline], tried].concat(),
            packed: super::super::PackedPolicy::default(),
            requests: 7,
            packed_bytes: 0,
            capacity_bytes: None,
            capacity_from: None,
            failures: Vec::new(),
        }
    }

    #[test]
    fn a_saving_counts_against_the_simulated_baseline_and_above_its_error() {
        let saves = |baseline, bytes| {
            matches!(what_if(row("", baseline, 0), &[row("a", bytes, 0)]).advice(), Advice::Saves(_))
        };
        assert!(saves(1000, 900));
        assert!(!saves(1000, 1000));
        // The baseline is 100 MiB too low. A setting that is 60 MiB lower may be just as wrong.
        assert!(!saves(900, 840));
        assert!(saves(900, 790));
        // Less than the recording, but more than the simulation of the recorded settings.
        assert!(!saves(900, 950));
    }

    #[test]
    fn what_is_the_same_after_rounding_is_no_saving() {
        let mut tried = row("a", 1 << 20, 0);
        tried.outcome.peak_reserved_bytes -= 512;
        let mut answer = what_if(row("", 1 << 20, 0), &[tried]);
        answer.recorded.peak_reserved_bytes = 1 << 40;
        assert_eq!(answer.advice(), Advice::NothingBetter);
    }

    #[test]
    fn fewest_retries_come_before_least_reserved() {
        let answer =
            what_if(row("", 1000, 3), &[row("small", 700, 2), row("calm", 990, 0), row("wild", 500, 5)]);
        assert_eq!(answer.advice().row().map(|row| row.setting.as_str()), Some("calm"));
        assert_eq!(answer.advice().name(), "fewer retries");
    }

    #[test]
    fn without_a_request_nothing_is_claimed() {
        let mut answer = what_if(row("", 1000, 0), &[row("a", 10, 0)]);
        answer.requests = 0;
        assert_eq!(answer.advice(), Advice::NothingRecorded);
    }

    #[test]
    fn a_failure_that_the_recorded_settings_would_serve_says_nothing_of_others() {
        let mut answer = what_if(row("", 1000, 0), &[row("a", 10, 0)]);
        answer.recorded.serves = vec![false];
        assert_eq!(answer.advice(), Advice::NotReproduced);
        answer.rows[0].outcome.serves = vec![false];
        assert_eq!(answer.advice().row().map(|row| row.setting.as_str()), Some("a"));
        answer.rows[1].outcome.serves = vec![false];
        assert_eq!(answer.advice(), Advice::NoneServes);
    }
}
