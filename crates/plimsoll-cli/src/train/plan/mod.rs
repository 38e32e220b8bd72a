//! `--plan NxGPU`: simulates one rank of each way to share the work, and prints the fastest that fits.
//!
//! A row is a run of the job itself, a few steps long, on a simulated GPU without a limit: its peak, the memory outside the
//! allocator and the estimated time of a step. All ranks make the same requests, so one rank represents all. A way that does
//! not fit by itself is combined with techniques that save memory, by the search of `--fit`.
//!
//! `row.rs` has the rows and the command of each, `largest.rs` looks for the largest batch, and `report.rs` prints.

mod largest;
mod report;
mod row;

use std::iter::successors;
use std::str::FromStr;

use clap::ValueEnum;
use plimsoll::fit::Numbers;
use plimsoll::parallel::Shard;
use plimsoll::{ProcessGroup, SimConfig};

use self::row::Row;
use super::fit::Runs;
use super::job::Job;
use super::parallel::divides;
use crate::exit::{Answer, Exit, Failure};
use crate::output;

/// The GPUs to plan for: `16xH200`.
#[derive(Clone, Debug)]
pub(super) struct Gpus {
    count: usize,
    gpu: Box<SimConfig>,
}

impl Gpus {
    /// Whether there is only one.
    pub(super) fn is_one(&self) -> bool {
        self.count == 1
    }
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Gpus, String> {
        let (count, gpu) =
            text.split_once('x').ok_or("give a number of GPUs and their name, such as 16xH200")?;
        let count = count.parse().ok().filter(|count| (1..=1_000_000).contains(count));
        let count =
            count.ok_or_else(|| format!("`{text}` does not begin with a number of GPUs, such as 16x"))?;
        let gpu = SimConfig::like(gpu).map_err(|why| why.to_string())?;
        Ok(Gpus { count, gpu: Box::new(gpu) })
    }
}

/// What a plan looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Goal {
    /// The fastest way that fits
    Fit,
    /// The largest --batch-size that fits, and the fastest way with it
    Batch,
}

/// What to plan.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) gpus: &'a Gpus,
    pub(super) memory_limit: Option<u64>,
    pub(super) goal: Goal,
    /// How much techniques may change losses and parameters.
    pub(super) numbers: Numbers,
    pub(super) as_json: bool,
}

impl Wish<'_> {
    /// The memory of each GPU that the job may use.
    fn bound(&self) -> u64 {
        let capacity = self.gpus.gpu.capacity_bytes;
        self.memory_limit.unwrap_or(capacity).min(capacity)
    }
}

/// The number of GPUs of a host, over which a model is sharded if there are several hosts.
const GPUS_OF_A_HOST: usize = 8;

/// The ways to share a model among several ranks.
const WAYS: [(Shard, &[&str]); 4] = [
    (Shard::Nothing, &["--parallel ddp"]),
    (Shard::OptimizerState, &["--parallel shard", "--shard optimizer-state"]),
    (Shard::Gradients, &["--parallel shard", "--shard gradients"]),
    (Shard::Parameters, &["--parallel shard"]),
];

/// The numbers of ranks that can share each layer: at most the GPUs of one host, and only divisors of these sizes of
/// the network.
fn tensor_ranks(gpus: usize, sizes: Option<[(&'static str, usize); 2]>) -> Vec<usize> {
    let Some(sizes) = sizes else { return Vec::new() };
    let all = successors(Some(2_usize), |ranks| ranks.checked_mul(2));
    all.take_while(|ranks| *ranks <= GPUS_OF_A_HOST.min(gpus))
        .filter(|ranks| {
            gpus.is_multiple_of(*ranks) && sizes.iter().all(|(_, size)| size.is_multiple_of(*ranks))
        })
        .collect()
}

/// The rows of a plan.
#[derive(Default)]
struct Plan {
    /// Each way as it is, and with the techniques that are worth printing.
    rows: Vec<Row>,
    /// Each way with each set of techniques that was tried.
    tried: Vec<Row>,
}

/// Tries all ways. `jobs` contains the job as given and, if there is one, the same job with an option that saves
/// memory. The number of ranks that share layers must divide the sizes in `shared`; there are none if the network has
/// no such layers.
pub(super) fn run(
    wish: Wish<'_>,
    mut jobs: Vec<(Option<&'static str>, Job)>,
    shared: Option<[(&'static str, usize); 2]>,
) -> Result<Answer, Failure> {
    if wish.goal == Goal::Batch {
        jobs.truncate(1); // budgets are better than an option for all blocks
    }
    let count = wish.gpus.count;
    let ways = if count == 1 { &[(Shard::Nothing, &[][..])][..] } else { &WAYS[..] };
    let tries = jobs.len() * ways.len();
    let (mut plan, mut first, mut tried) = (Plan::default(), None, 0);
    for (option, mut job) in jobs {
        if wish.goal == Goal::Fit {
            divides(job.batch_size, count)?;
        }
        job.group = ProcessGroup::simulated(0, count);
        for (shard, options) in ways {
            tried += 1;
            output::progress(&format!("simulating {tried} of {tries}"));
            job.shard = *shard;
            let options: Vec<String> = options.iter().copied().chain(option).map(str::to_owned).collect();
            match wish.goal {
                Goal::Fit => plan.way(&mut job, wish, &options, option.is_none())?,
                Goal::Batch => largest::rows(&mut plan, &mut job, wish, &options)?,
            }
        }
        if wish.goal == Goal::Fit {
            plan.groups(&mut job, wish, option)?;
            plan.shared_layers(&mut job, wish, option, shared)?;
        }
        first.get_or_insert(job);
    }
    row::sort(&mut plan.rows);
    row::sort(&mut plan.tried);
    let Some(job) = first else { unreachable!("there is a job") };
    let exit = if plan.rows.first().is_some_and(|row| row.fits) { Exit::Done } else { Exit::OutOfMemory };
    let text = if wish.as_json { report::json(wish, &plan, &job) } else { report::text(wish, &plan, &job) };
    Ok(Answer { text, exit })
}

impl Plan {
    /// Adds a way as it is and, if that does not fit, with techniques.
    fn way(&mut self, job: &mut Job, wish: Wish<'_>, way: &[String], searches: bool) -> Result<(), Failure> {
        let (mut runs, gpu, bound) = (Runs::default(), &wish.gpus.gpu, wish.bound());
        let takes = match runs.within(job, gpu, bound)? {
            Some(takes) => Some(takes),
            None => runs.run(job, gpu, None)?,
        };
        let Some(takes) = takes else { return Ok(()) };
        let own = Row::new(way, job, job.techniques, takes, bound);
        if searches && !own.fits {
            let limit = bound.saturating_sub(takes.outside_bytes);
            let searched = runs.search(job, gpu, limit, wish.numbers)?;
            let tried = searched.tried.iter().filter(|tried| tried.techniques != job.techniques);
            let tried: Vec<Row> =
                tried.map(|tried| Row::new(way, job, tried.techniques, tried.takes, bound)).collect();
            self.rows.extend(row::worth_printing(&tried, if wish.gpus.is_one() { PRINTED } else { 1 }));
            self.tried.extend(tried);
        }
        self.rows.push(own);
        Ok(())
    }

    /// Adds the way that shards over as few hosts as needed.
    fn groups(&mut self, job: &mut Job, wish: Wish<'_>, option: Option<&str>) -> Result<(), Failure> {
        let count = wish.gpus.count;
        let sizes = successors(Some(GPUS_OF_A_HOST), |size| size.checked_mul(2));
        job.shard = Shard::Parameters;
        for size in sizes.take_while(|size| *size < count && count.is_multiple_of(*size)) {
            output::progress(&format!("simulating {}: groups of {size}", self.rows.len() + 1));
            job.replicate = count / size;
            let way = format!("--parallel replicate={},shard={size}", job.replicate);
            let way: Vec<String> = [way].into_iter().chain(option.map(str::to_owned)).collect();
            self.way(job, wish, &way, false)?;
            if self.rows.last().is_some_and(|row| row.fits) {
                break;
            }
        }
        (job.shard, job.replicate) = (Shard::Nothing, 1);
        Ok(())
    }

    /// Adds the ways in which ranks share layers.
    fn shared_layers(
        &mut self,
        job: &mut Job,
        wish: Wish<'_>,
        option: Option<&str>,
        sizes: Option<[(&'static str, usize); 2]>,
    ) -> Result<(), Failure> {
        let count = wish.gpus.count;
        for ranks in tensor_ranks(count, sizes) {
            output::progress(&format!("simulating {}: {ranks} ranks that share layers", self.rows.len() + 1));
            job.tensor = ranks;
            let way = match count / ranks {
                1 => format!("--parallel tp={ranks}"),
                data => format!("--parallel dp={data},tp={ranks}"),
            };
            let way: Vec<String> = [way].into_iter().chain(option.map(str::to_owned)).collect();
            self.way(job, wish, &way, false)?;
        }
        job.tensor = 1;
        Ok(())
    }
}

/// On one GPU, the most rows with techniques that are printed. JSON has all.
const PRINTED: usize = 8;
