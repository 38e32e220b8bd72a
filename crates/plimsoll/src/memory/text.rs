//! A [`Report`] as text.

use std::fmt;

use plimsoll_tensor::Bytes;

use super::Report;

/// The number of owners that have a row; all others share one.
const OWNERS: usize = 8;

/// The peak in one line, then its bytes by category and by owner. Each table sums to the peak.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = if self.limit_bytes.is_some() { "the limit of" } else { "this device's" };
        let (peak, reserved) = (self.peak_allocated_bytes, self.peak_reserved_bytes);
        write!(
            f,
            "at most {} allocated and {} reserved of {bound} {}",
            Bytes(peak),
            Bytes(reserved),
            Bytes(self.bound_bytes())
        )?;
        let mut row = |name: &str, bytes: u64| {
            let share = if peak == 0 { 0.0 } else { 100.0 * bytes as f64 / peak as f64 };
            write!(f, "\n  {:>12} {share:>6.2} %  {name}", Bytes(bytes).to_string())
        };
        for share in self.by_category.iter().filter(|share| share.bytes > 0) {
            row(share.category.plural(), share.bytes)?;
        }
        let (named, others) = self.owners.split_at(self.owners.len().min(OWNERS));
        for owner in named {
            row(&format!("{} ({})", owner.label, owner.category.name()), owner.bytes)?;
        }
        match others {
            [] => Ok(()),
            _ => row(&format!("{} other owners", others.len()), others.iter().map(|owner| owner.bytes).sum()),
        }
    }
}
