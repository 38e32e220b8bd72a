//! How long a search looks for a cheaper set after it has found one that fits: [`Patience`].

use std::time::{Duration, Instant};

/// The longest time.
const MOST: Duration = Duration::from_secs(10);

/// How long to look for a cheaper set: at most as long as the first run of the program took, with its imports, and at
/// most [`MOST`].
#[derive(Default)]
pub(super) struct Patience {
    /// When to stop looking; `None` if the search is not looking for a cheaper set yet.
    until: Option<Instant>,
}

impl Patience {
    /// The time at which the search for a cheaper set ends. The search begins at the first call.
    pub(super) fn until(&mut self, now: Instant, first: Duration) -> Instant {
        *self.until.get_or_insert_with(|| now + first.min(MOST))
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
    fn a_cheaper_set_is_sought_as_long_as_the_first_run_took_but_for_ten_seconds_at_most() {
        let found = Instant::now();
        for (first_s, may_take_s) in [(0, 0), (4, 4), (10, 10), (300, 10)] {
            let mut patience = Patience::default();
            assert!(!patience.is_used());
            let first = Duration::from_secs(first_s);
            let until = found + Duration::from_secs(may_take_s);
            assert_eq!(patience.until(found, first), until);
            // Later calls do not restart the search.
            assert_eq!(patience.until(found + Duration::from_secs(3), first), until);
            assert!(patience.is_used());
        }
    }
}
