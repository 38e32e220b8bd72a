//! `--goal batch`: the largest batch that fits, for the job as it is and with techniques.

use plimsoll::fit::Technique;

use super::super::fit::Runs;
use super::super::job::Job;
use super::row::{self, Row};
use super::{PRINTED, Plan, Wish};
use crate::exit::Failure;
use crate::output;

/// Larger batches are not tried.
const MOST: usize = 1 << 20;

/// Adds a row for the largest batch of the job as it is, and rows for the largest batch with techniques. Accumulation is
/// not one of them: with it, a batch can have any size.
pub(super) fn rows(plan: &mut Plan, job: &mut Job, wish: Wish<'_>, way: &[String]) -> Result<(), Failure> {
    let (given, base, bound, gpu) = (job.batch_size, job.techniques, wish.bound(), &wish.gpus.gpu);
    let mut options = job.fit_options(wish.numbers);
    options.techniques.retain(|technique| *technique != Technique::Accumulate);
    let least = Technique::all().filter(|technique| options.adds(*technique));
    let least = least.fold(base, |set, technique| set.with(technique));
    let mut batches = Vec::new();
    for techniques in [base, least] {
        job.techniques = techniques;
        let found = largest(job, wish)?;
        job.techniques = base;
        let Some(batch) = found.filter(|batch| !batches.contains(batch)) else { continue };
        batches.push(batch);
        job.batch_size = batch;
        let mut runs = Runs::default();
        let way = of_batch(way, batch);
        let all: Vec<Row> = if techniques == base {
            let takes = runs.within(job, gpu, bound)?;
            takes.map(|takes| Row::new(&way, job, base, takes, bound)).into_iter().collect()
        } else {
            let Some(free) = runs.run(job, gpu, None)? else { continue };
            let limit = bound.saturating_sub(free.outside_bytes);
            let searched = runs.search_of(job, gpu, limit, &options)?;
            let tried = searched.tried.iter();
            tried.map(|it| Row::new(&way, job, it.techniques, it.takes, bound)).collect()
        };
        if techniques != base {
            plan.tried.extend(all.clone());
        }
        plan.rows.extend(row::worth_printing(&all, if wish.gpus.is_one() { PRINTED } else { 1 }));
    }
    if batches.is_empty() {
        // Not even one sample for each rank fits.
        (job.batch_size, job.techniques) = (wish.gpus.count, least);
        if let Some(takes) = Runs::default().run(job, gpu, None)? {
            job.techniques = base;
            plan.rows.push(Row::new(&of_batch(way, job.batch_size), job, least, takes, bound));
        }
    }
    (job.batch_size, job.techniques) = (given, base);
    Ok(())
}

fn of_batch(way: &[String], batch: usize) -> Vec<String> {
    way.iter().cloned().chain([format!("--batch-size {batch}")]).collect()
}

/// The largest batch with which the job fits; `None` if not even one sample for each rank does. Batches have equally many
/// samples for each rank.
fn largest(job: &mut Job, wish: Wish<'_>) -> Result<Option<usize>, Failure> {
    let unit = wish.gpus.count;
    let samples = job.task.training(1, job.seed)?.dataset().len();
    let most = (samples.min(MOST) / unit).max(1);
    let start = (job.batch_size / unit).clamp(1, most);
    let mut fits = |each: usize| -> Result<bool, Failure> {
        job.batch_size = each * unit;
        output::progress(&format!("trying --batch-size {}", job.batch_size));
        Ok(Runs::default().within(job, &wish.gpus.gpu, wish.bound())?.is_some())
    };
    let (mut low, mut high) = (0, start);
    while fits(high)? {
        if high == most {
            return Ok(Some(high * unit));
        }
        (low, high) = (high, (2 * high).min(most));
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok((low > 0).then_some(low * unit))
}
