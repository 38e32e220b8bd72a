//! The search for inference programs. It first tries to run without a graph, then to move results and weights to the
//! host, then to divide the batch. 16-bit weights change the numbers, so they are offered only if nothing else fits.

use super::super::goal::Goal;
use super::pass::{Missing, Pass};
use crate::techniques::{Alone, Joins, Numbers, Set, Technique};

impl Pass<'_> {
    /// Tries each technique alone, starting with the techniques that cost nothing. Then tries the useful techniques
    /// together, starting with those that change the program least.
    pub(super) fn inference(&mut self) -> Result<(), Missing> {
        let is_alone = |it: &Technique| it.row().alone < Alone::Offered && self.is_meant(*it);
        let alone: Vec<Technique> = Technique::all().filter(is_alone).collect();
        let (free, others): (Vec<Technique>, Vec<Technique>) =
            alone.iter().partition(|it| it.row().joins == Joins::Free);
        self.alone(&free)?;
        // Results on the host, for instance, use the machine's own memory and time.
        if !self.is_met() {
            self.alone(&others)?;
        }
        let mut all = Set::default();
        for joins in [Joins::Free, Joins::Identical, Joins::Rounding, Joins::Changed] {
            all = self.joined(joins, None);
            if !all.is_empty() && !self.is_met() {
                self.tried(&all)?;
            }
        }
        if self.facts.wish.numbers >= Numbers::Rounding && !self.is_met() {
            self.parts(&all, Technique::Split)?;
        }
        if self.chosen().is_none() {
            let free = self.joined(Joins::Free, None);
            let narrow = alone.iter().filter(|it| it.row().numbers == Numbers::Changed);
            let sets: Vec<Set> = narrow.map(|&it| free.with(it, None)).collect();
            self.announce(sets.clone());
            for set in sets {
                self.tried(&set)?;
            }
        }
        match self.goal() {
            Goal::Fit => self.simplify(),
            Goal::Memory | Goal::Speed | Goal::Batch => self.polish(),
        }
    }
}
