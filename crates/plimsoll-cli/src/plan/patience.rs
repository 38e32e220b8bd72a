//! How long a search looks for a cheaper set after it has found one that fits: [`Patience`].

use std::time::{Duration, Instant};

/// The longest time.
const MOST: Duration = Duration::from_secs(10);

/// The time limit of a search. It looks for a cheaper set for at most as long as it took to find one that fits,
/// and for at most [`MOST`].
pub(super) struct Patience {
    begun: Instant,
    /// `None` if it is not looking for a cheaper set yet.
    until: Option<Instant>,
}

impl Patience {
    /// Starts at `now`.
    pub(super) fn new(now: Instant) -> Patience {
        Patience { begun: now, until: None }
    }

    /// When the search for a cheaper set ends. It begins at the first call.
    pub(super) fn until(&mut self, now: Instant) -> Instant {
        let before = now.saturating_duration_since(self.begun);
        *self.until.get_or_insert_with(|| now + before.min(MOST))
    }

    /// Whether the search for a cheaper set has begun.
    pub(super) fn is_used(&self) -> bool {
        self.until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cheaper_set_is_sought_as_long_as_one_that_fits_but_for_ten_seconds_at_most() {
        let begun = Instant::now();
        for (before_s, may_take_s) in [(0, 0), (4, 4), (10, 10), (300, 10)] {
            let mut patience = Patience::new(begun);
            assert!(!patience.is_used());
            let found = begun + Duration::from_secs(before_s);
            let until = found + Duration::from_secs(may_take_s);
            assert_eq!(patience.until(found), until);
            // Later calls do not restart it.
            assert_eq!(patience.until(found + Duration::from_secs(3)), until);
            assert!(patience.is_used());
        }
    }
}
