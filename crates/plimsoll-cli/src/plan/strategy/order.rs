//! The order of the search: [`Pass::search`]. Savings do not simply add up, so each set is judged by a run.
//!
//! A program that fits unchanged needs no technique. Otherwise the search tries every technique alone, then the
//! useful ones together. The number of checkpointed blocks is computed from two peaks (savings are linear) and then
//! verified. If nothing that keeps the numbers fits, it adds techniques that change the rounding, with bf16 last. To
//! find the cheapest set that fits, `trade.rs` then trades techniques against each other; for the least memory or the
//! fastest step, `polish.rs` adds techniques to the best set or removes them one by one.

use super::super::facts::Ran;
use super::super::goal::Goal;
use super::levels::budgets;
use super::pass::{Missing, Pass};
use crate::techniques::{Alone, Joins, Numbers, Technique, Time};

/// If a set that fits takes more than this multiple of the program's own time, the search also tries other sets.
const SLOW: f64 = 1.3;

impl Pass<'_> {
    /// Runs the search. The first set is the unchanged program. If the unchanged program does not run, no other set is
    /// tried.
    ///
    /// # Errors
    /// If the result of a set is missing.
    pub(super) fn search(&mut self) -> Result<(), Missing> {
        let base = self.base()?;
        let goal = self.goal();
        // No technique helps if memory grows with each step. An inference program that runs out of any memory may still
        // fit without its graphs.
        let has_answer = base.has_peaks() || self.facts.infers;
        let is_hopeless = !has_answer || (self.facts.grows && !base.fit.fits());
        let is_fit = base.fit.fits() && (!base.fit.is_tight() || base.is_caught);
        if is_hopeless || (goal == Goal::Fit && is_fit) {
            return Ok(());
        }
        if self.facts.infers {
            return self.inference();
        }
        // Each trial has to compile, so the technique for compiled programs comes first.
        let compiles = self.facts.compiles && self.facts.wish.numbers >= Numbers::Rounding;
        if compiles && self.budgets()? {
            return Ok(());
        }
        self.alone(&self.first())?;
        if self.is_useful(Technique::CheckpointNested)
            && self.saves_more(Technique::CheckpointNested, Technique::Checkpoint)
        {
            self.blocks = Technique::CheckpointNested;
        }
        self.identical()?;
        if self.facts.wish.numbers >= Numbers::Rounding && !self.is_met() {
            self.rounding(compiles)?;
        }
        if self.chosen().is_none() {
            self.last_resort()?;
        }
        match goal {
            Goal::Fit => {
                self.simplify()?;
                self.trade()
            }
            Goal::Memory | Goal::Speed | Goal::Batch => self.polish(),
        }
    }

    /// The techniques to try alone at the beginning, in this order.
    fn first(&self) -> Vec<Technique> {
        let is_first = |it: &Technique| match it.row().alone {
            Alone::Always => true,
            Alone::NestedBlocks => self.facts.has_nested_blocks,
            Alone::SeveralGpus => self.facts.devices > 1,
            Alone::Optimizer => self.goal() != Goal::Fit,
            Alone::Changed => self.facts.wish.numbers == Numbers::Changed,
            Alone::Offered | Alone::LastResort | Alone::Never => false,
        };
        let mut first: Vec<Technique> =
            Technique::all().filter(|it| self.is_meant(*it)).filter(is_first).collect();
        first.sort_by_key(|it| it.row().alone);
        first
    }

    /// Tries sets that keep the numbers, starting with techniques that cost no time.
    fn identical(&mut self) -> Result<(), Missing> {
        let (has_checkpoint, has_offload) = (self.is_useful(self.blocks), self.is_useful(Technique::Offload));
        let free = self.joined(Joins::Free, None);
        self.level(&free, has_checkpoint, false, false)?;
        let has_price = self.chosen().is_some_and(|it| it.has_room() && it.set.techniques().any(takes_time));
        if self.goal() == Goal::Fit && has_offload && has_price {
            // Copies may take less time than recomputation.
            self.least_offload(&free)?;
            if has_checkpoint && self.is_slow() {
                // With checkpointing as well, fewer bytes need to be moved.
                self.least_offload(&free.with(self.blocks, None))?;
            }
        }
        if !self.is_met() {
            // First the techniques that cost no time, then all techniques.
            let all = self.joined(Joins::Identical, None);
            for set in [all.only(|it| !takes_time(it)), all] {
                if !self.is_met() {
                    self.level(&set, has_checkpoint, has_offload, false)?;
                    self.close_gaps()?;
                }
            }
            if self.lacks_room() {
                self.everything(Numbers::Identical)?;
            }
        }
        Ok(())
    }

    /// Tries sets that round differently, or that change the numbers if that is allowed. If nothing else fits, a
    /// set with bf16 is offered.
    fn rounding(&mut self, compiles: bool) -> Result<(), Missing> {
        let (has_checkpoint, has_offload) = (self.is_useful(self.blocks), self.is_useful(Technique::Offload));
        let optimizers = Technique::all().filter(|it| it.row().alone == Alone::Optimizer);
        self.alone(&optimizers.collect::<Vec<_>>())?;
        let all = self.joined(Joins::Rounding, None);
        let mut rounding = all.only(|it| !takes_time(it));
        if compiles {
            rounding = rounding.with(Technique::MemoryBudget, budgets().last().copied());
        }
        self.level(&rounding, has_checkpoint, has_offload, true)?;
        self.close_gaps()?;
        if all.techniques().any(takes_time) && !self.is_met() {
            self.level(&all, has_checkpoint, has_offload, true)?;
        }
        if self.is_useful(Technique::Fsdp) && !self.is_met() {
            // Sharding gathers and frees complete parameters, which leaves gaps.
            let sharded = self.joined(Joins::Rounding, Some(Technique::Fsdp));
            let sharded = sharded.with(Technique::Fsdp, None).with(Technique::Expandable, None);
            self.level(&sharded, has_checkpoint, false, false)?;
        }
        if self.lacks_room() {
            self.everything(Numbers::Rounding)?;
        }
        if self.chosen().is_none() {
            if compiles {
                self.eager(&self.joined(Joins::Rounding, None))?;
            } else {
                self.compiled(&self.joined(Joins::Rounding, Some(Technique::Compile)))?;
            }
        }
        let may_change = self.facts.wish.numbers == Numbers::Changed;
        let narrow = self.joined(Joins::Changed, None);
        if may_change && !self.is_met() && narrow.numbers() == Numbers::Changed {
            self.level(&narrow, has_checkpoint, false, false)?;
        }
        if may_change || self.chosen().is_none() {
            self.level(&rounding.with(Technique::Bf16, None), has_checkpoint, false, true)?;
        }
        Ok(())
    }

    /// If the host had no room for the saved tensors, tries techniques that need memory neither on the GPU nor on the
    /// host, alone and with the other techniques.
    fn last_resort(&mut self) -> Result<(), Missing> {
        let has_failed = self.seen.iter().any(|it| it.is_alone(Technique::Offload) && it.run == Ran::Failed);
        let last: Vec<Technique> = Technique::all()
            .filter(|it| has_failed && it.row().alone == Alone::LastResort && self.is_meant(*it))
            .collect();
        self.alone(&last)?;
        for technique in last {
            let all = self.joined(Joins::Identical, Some(technique));
            let sets = [all.clone(), all.with(self.blocks, None)];
            for set in sets.iter().take(1 + usize::from(self.is_useful(self.blocks))) {
                if self.is_useful(technique) && self.chosen().is_none() {
                    self.tried(&set.with(technique, None))?;
                }
            }
        }
        Ok(())
    }

    /// Whether no set fits with enough headroom.
    fn lacks_room(&self) -> bool {
        self.chosen().is_none() || (self.goal() == Goal::Fit && !self.has_room())
    }

    /// Whether the chosen set takes much longer than the unchanged program.
    fn is_slow(&self) -> bool {
        let base_s = self.seen.first().map_or(0.0, |it| it.order_s());
        self.chosen().is_some_and(|it| it.order_s() > SLOW * base_s)
    }
}

/// Whether a technique recomputes or copies data.
fn takes_time(technique: Technique) -> bool {
    use Time::{Again, AllAgain, Copies, DiskCopies, NestedAgain, StepCopies};
    matches!(technique.row().time, Again | NestedAgain | AllAgain | Copies | DiskCopies | StepCopies)
}
