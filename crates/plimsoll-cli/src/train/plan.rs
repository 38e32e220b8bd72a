//! `--plan NxGPU`: simulates one rank of each way to share the work, and prints the fastest that fits.
//!
//! A row is a run of the job itself, a few steps long, on a simulated GPU without a limit: its peak, the memory outside the
//! allocator and the estimated time of a step. All ranks make the same requests, so one rank represents all.

use std::fmt::Write;
use std::iter::successors;
use std::path::Path;
use std::str::FromStr;

use plimsoll::fit::{Fitted, Simulated};
use plimsoll::parallel::Shard;
use plimsoll::{Bytes, ProcessGroup, SimConfig};
use plimsoll_trace::render::words::counted;
use serde_json::{Value, json};

use super::fit;
use super::job::Job;
use super::json::pretty;
use super::parallel::divides;
use super::progress;
use super::simulated::simulated;
use super::techniques;
use crate::exit::{Answer, Exit, Failure};
use crate::output::{self, BOLD, RESET};
use crate::page::quoted;

/// The schema of a plan. Changes of meaning raise the version; new fields do not.
const SCHEMA: &str = "plimsoll.train.plan/1";

/// The GPUs to plan for: `16xH200`.
#[derive(Clone, Debug)]
pub(super) struct Gpus {
    count: usize,
    gpu: Box<SimConfig>,
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

/// A way to share the work, with its memory and time.
struct Row {
    /// The options that choose this way of training.
    options: Vec<String>,
    allocated_bytes: u64,
    reserved_bytes: u64,
    outside_bytes: u64,
    step_s: f64,
    fits: bool,
}

impl Row {
    fn total_bytes(&self) -> u64 {
        self.reserved_bytes + self.outside_bytes
    }

    fn shown(&self) -> String {
        if self.options.is_empty() { "one GPU".to_owned() } else { self.options.join(" ") }
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

/// Tries all ways. `jobs` contains the job as given and, if there is one, the same job with an option that saves
/// memory. The number of ranks that share layers must divide the sizes in `shared`; there are none if the network has
/// no such layers.
pub(super) fn run(
    gpus: &Gpus,
    memory_limit: Option<u64>,
    as_json: bool,
    jobs: Vec<(Option<&'static str>, Job)>,
    shared: Option<[(&'static str, usize); 2]>,
) -> Result<Answer, Failure> {
    let bound = memory_limit.unwrap_or(gpus.gpu.capacity_bytes).min(gpus.gpu.capacity_bytes);
    let ways = if gpus.count == 1 { &[(Shard::Nothing, &[][..])][..] } else { &WAYS[..] };
    let tries = jobs.len() * ways.len();
    let (mut rows, mut first, mut tried) = (Vec::new(), None, 0);
    for (option, mut job) in jobs {
        divides(job.batch_size, gpus.count)?;
        job.group = ProcessGroup::simulated(0, gpus.count);
        for (shard, options) in ways {
            tried += 1;
            output::progress(&format!("simulating {tried} of {tries}"));
            job.shard = *shard;
            let options: Vec<String> = options.iter().copied().chain(option).map(str::to_owned).collect();
            let own = row(&mut job, gpus, bound, options.clone())?;
            if let (false, None) = (own.fits, option) {
                rows.extend(made_to_fit(&mut job, gpus, bound, &own)?);
            }
            rows.push(own);
        }
        // Sharded over as few hosts as needed.
        let sizes = successors(Some(GPUS_OF_A_HOST), |size| size.checked_mul(2));
        let sizes = sizes.take_while(|size| *size < gpus.count && gpus.count.is_multiple_of(*size));
        job.shard = Shard::Parameters;
        for size in sizes {
            output::progress(&format!("simulating {}: groups of {size}", rows.len() + 1));
            job.replicate = gpus.count / size;
            let way = format!("--parallel replicate={},shard={size}", job.replicate);
            let options = [way].into_iter().chain(option.map(str::to_owned)).collect();
            rows.push(row(&mut job, gpus, bound, options)?);
            if rows.last().is_some_and(|row| row.fits) {
                break;
            }
        }
        // Layers that ranks share.
        (job.shard, job.replicate) = (Shard::Nothing, 1);
        for ranks in tensor_ranks(gpus.count, shared) {
            output::progress(&format!("simulating {}: {ranks} ranks that share layers", rows.len() + 1));
            job.tensor = ranks;
            let way = match gpus.count / ranks {
                1 => format!("--parallel tp={ranks}"),
                data => format!("--parallel dp={data},tp={ranks}"),
            };
            let options = [way].into_iter().chain(option.map(str::to_owned)).collect();
            rows.push(row(&mut job, gpus, bound, options)?);
        }
        job.tensor = 1;
        first.get_or_insert(job);
    }
    // The fastest that fits comes first; of equally fast ones, the smallest. Ways that do not fit follow, sorted by the
    // memory that they need.
    rows.sort_by(|a, b| {
        let fast = |row: &Row| if row.fits { (row.step_s * 1e4).round() } else { 0.0 };
        (!a.fits).cmp(&!b.fits).then(fast(a).total_cmp(&fast(b))).then(a.total_bytes().cmp(&b.total_bytes()))
    });
    let exit = if rows[0].fits { Exit::Done } else { Exit::OutOfMemory };
    let Some(job) = first else { unreachable!("there is a job") };
    let text = if as_json { of_json(gpus, bound, &rows, &job) } else { of_text(gpus, bound, &rows, &job) };
    Ok(Answer { text, exit })
}

/// For a way that does not fit by itself: the fastest techniques with which it fits.
fn made_to_fit(job: &mut Job, gpus: &Gpus, bound: u64, own: &Row) -> Result<Option<Row>, Failure> {
    let found = fit::search(job, &gpus.gpu, bound.saturating_sub(own.outside_bytes))?;
    Ok(found.map(|Fitted { techniques, takes, .. }| Row {
        options: own.options.iter().cloned().chain(techniques::options(&techniques)).collect(),
        allocated_bytes: takes.allocated_bytes,
        reserved_bytes: takes.reserved_bytes,
        outside_bytes: takes.outside_bytes,
        step_s: takes.seconds,
        fits: takes.reserved_bytes + takes.outside_bytes <= bound,
    }))
}

/// Runs the job on a GPU of unlimited size.
fn row(job: &mut Job, gpus: &Gpus, bound: u64, options: Vec<String>) -> Result<Row, Failure> {
    let Simulated { allocated_bytes, reserved_bytes, outside_bytes, seconds: step_s } =
        simulated(job, &gpus.gpu, None)?;
    let row = Row { options, allocated_bytes, reserved_bytes, outside_bytes, step_s, fits: false };
    Ok(Row { fits: row.total_bytes() <= bound, ..row })
}

/// The command that trains in this way: the one that was given, with other options.
fn command(gpus: &Gpus, row: &Row) -> String {
    // Before `train` are the words of `plimsoll plan`, if the plan is made by it.
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let mut words = words.skip_while(|word| word != "train");
    let mut kept = vec!["plimsoll".to_owned()];
    while let Some(word) = words.next() {
        match word.as_str() {
            "--plan" => drop(words.next()),
            "--json" | "--checkpoint" => {}
            _ if word.starts_with("--plan=") => {}
            _ => kept.push(quoted(Path::new(&word))),
        }
    }
    let ranks = if gpus.count == 1 { String::new() } else { format!(" --ranks {}", gpus.count) };
    let plan = format!("{} --device cuda {}", kept.join(" "), row.options.join(" "));
    match gpus.count {
        0..=8 => format!("{}{ranks}", plan.trim_end()),
        _ => format!("srun --ntasks {} {plan}", gpus.count),
    }
}

fn of_text(gpus: &Gpus, bound: u64, rows: &[Row], job: &Job) -> String {
    let (best, unit) = (&rows[0], job.task.unit());
    let rate =
        |row: &Row| progress::rate((job.batch_size * unit.per_sample as usize) as f64 / row.step_s, unit);
    let each = counted(gpus.count as u64, "GPU");
    let name = gpus.gpu.name.trim_start_matches("sim:");
    let mut out = if best.fits {
        format!(
            "{BOLD}{}: about {:.1} ms a step, {}, {} of {} on each of {each} ({name}){RESET}\nNext: {}\n",
            best.shown(),
            best.step_s * 1e3,
            rate(best),
            Bytes(best.total_bytes()),
            Bytes(bound),
            command(gpus, best)
        )
    } else {
        format!(
            "{BOLD}does not fit: at least {} on each of {each} ({name}), {} more than {}{RESET}\nTry a smaller --batch-size, or more GPUs\n",
            Bytes(best.total_bytes()),
            Bytes(best.total_bytes() - bound),
            Bytes(bound)
        )
    };
    let width = rows.iter().map(|row| row.shown().len()).max().unwrap_or(0).max(46);
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "\n{:<width$} {:>10} {:>11} {:>11} {:>11}",
        "", "a step", "allocated", "reserved", "with NCCL"
    );
    for row in rows {
        let _ = writeln!(
            out,
            "{:<width$} {:>7.1} ms {:>11} {:>11} {:>11}{}",
            row.shown(),
            row.step_s * 1e3,
            Bytes(row.allocated_bytes).to_string(),
            Bytes(row.reserved_bytes).to_string(),
            Bytes(row.total_bytes()).to_string(),
            if row.fits { "" } else { "  does not fit" }
        );
    }
    out.push_str("\nEach row was simulated. Times are estimates for hosts that keep up with their GPUs.\n");
    out
}

fn of_json(gpus: &Gpus, bound: u64, rows: &[Row], job: &Job) -> String {
    let each = rows.iter().map(|row| {
        json!({
            "options": row.options,
            "fits": row.fits,
            "estimated_step_ms": row.step_s * 1e3,
            "allocated_bytes": row.allocated_bytes,
            "reserved_bytes": row.reserved_bytes,
            "outside_bytes": row.outside_bytes,
            "command": command(gpus, row),
        })
    });
    let fields = json!({
        "schema": SCHEMA,
        "verdict": if rows[0].fits { "fits" } else { "out of memory" },
        "gpus": gpus.count,
        "gpu": gpus.gpu.name.trim_start_matches("sim:"),
        "limit_bytes": bound,
        "batch_size": job.batch_size,
        "rows": each.collect::<Vec<Value>>(),
    });
    pretty(&fields)
}
