//! The largest batch of a set: [`Largest`].

use crate::predict::trial::Trial;
use crate::techniques::Set;

/// The largest batch that fits with a set of techniques.
#[derive(Debug, Clone)]
pub(super) struct Largest {
    pub(super) set: Set,
    /// The batches that were searched.
    pub(super) range: (u64, u64),
    /// The largest of these batches that fits; `None` if none fits.
    pub(super) batch: Option<u64>,
    /// The trial of the largest batch.
    pub(super) trial: Option<Trial>,
    /// Whether the user ended the search.
    pub(super) is_interrupted: bool,
}

impl Largest {
    /// The result as a sentence.
    pub(super) fn sentence(&self) -> String {
        let (label, (from, to)) = (label(&self.set), self.range);
        match self.batch {
            Some(batch) if self.is_interrupted => format!("{label}, batch {batch} fits"),
            None if self.is_interrupted => format!("{label}, no batch is known to fit"),
            Some(batch) if batch == to && from < to => {
                format!("{label}, the largest batch is at least {to} (no larger one was tried)")
            }
            Some(batch) => format!("{label}, the largest batch is {batch}"),
            None => format!("{label}, no batch from {from} to {to} fits"),
        }
    }
}

/// The name of the set, as the beginning of a sentence.
pub(super) fn label(set: &Set) -> String {
    if set.is_empty() { "as it is".to_owned() } else { format!("with {set}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_batch_is_a_sentence() {
        let said = |batch, range| {
            Largest { set: Set::default(), range, batch, trial: None, is_interrupted: false }.sentence()
        };
        assert_eq!(said(Some(37), (1, 512)), "as it is, the largest batch is 37");
        assert!(said(Some(512), (1, 512)).contains("at least 512"));
        assert!(said(None, (1, 512)).contains("no batch from 1 to 512 fits"));
    }
}
