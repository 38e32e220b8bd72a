//! The rows of a plan: [`Row`].

use std::path::Path;

use plimsoll::fit::{Numbers, Simulated, Techniques, Tried};
use serde_json::{Value, json};

use super::super::job::Job;
use super::Gpus;
use crate::page::quoted;

/// A way to share the work and a set of techniques, with their memory and time.
#[derive(Clone)]
pub(super) struct Row {
    /// The options that choose this way of training.
    pub(super) options: Vec<String>,
    /// The techniques that the job does not have already.
    techniques: Techniques,
    /// How a Rust program uses them.
    pub(super) in_rust: Vec<String>,
    /// How much these techniques change losses and parameters.
    pub(super) numbers: Numbers,
    pub(super) batch_size: usize,
    pub(super) takes: Simulated,
    pub(super) fits: bool,
}

impl Row {
    pub(super) fn new(
        way: &[String],
        job: &Job,
        techniques: Techniques,
        takes: Simulated,
        bound: u64,
    ) -> Row {
        let added = techniques.beyond(&job.techniques);
        Row {
            options: way.iter().cloned().chain(added.options()).collect(),
            techniques: added,
            in_rust: added.code(),
            numbers: added.numbers(),
            batch_size: job.batch_size,
            takes,
            fits: takes.reserved_bytes + takes.outside_bytes <= bound,
        }
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.takes.reserved_bytes + self.takes.outside_bytes
    }

    /// See [`Tried::cost_s`].
    fn cost_s(&self) -> f64 {
        let Row { techniques, takes, fits, .. } = *self;
        Tried { techniques, takes, fits }.cost_s()
    }

    pub(super) fn shown(&self) -> String {
        if self.options.is_empty() { "one GPU".to_owned() } else { self.options.join(" ") }
    }

    /// Whether the other row differs only in the size of a budget, or in the number of parts.
    fn is_like(&self, other: &Row) -> bool {
        self.techniques.iter().eq(other.techniques.iter())
    }

    /// The command that trains in this way: the one that was given, with other options.
    pub(super) fn command(&self, gpus: &Gpus) -> String {
        let own: Vec<&str> = self.options.iter().flat_map(|option| option.split(' ')).collect();
        // Before `train` are the words of `plimsoll plan`, if the plan is made by it.
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let mut words = words.skip_while(|word| word != "train");
        let mut kept = vec!["plimsoll".to_owned()];
        while let Some(word) = words.next() {
            let name = word.split('=').next().unwrap_or_default();
            let is_dropped = OF_PLANS.contains(&name) || (name.starts_with("--") && own.contains(&name));
            if is_dropped && !FLAGS.contains(&name) && name == word {
                words.next(); // its value
            } else if !is_dropped {
                kept.push(quoted(Path::new(&word)));
            }
        }
        let ranks = if gpus.is_one() { String::new() } else { format!(" --ranks {}", gpus.count) };
        let plan = format!("{} --device cuda {}", kept.join(" "), self.options.join(" "));
        match gpus.count {
            0..=8 => format!("{}{ranks}", plan.trim_end()),
            _ => format!("srun --ntasks {} {plan}", gpus.count),
        }
    }

    pub(super) fn json(&self, gpus: &Gpus) -> Value {
        json!({
            "options": self.options,
            "in_rust": self.in_rust,
            "numbers": self.numbers.name(),
            "fits": self.fits,
            "batch_size": self.batch_size,
            "estimated_step_ms": self.takes.seconds * 1e3,
            "allocated_bytes": self.takes.allocated_bytes,
            "reserved_bytes": self.takes.reserved_bytes,
            "outside_bytes": self.takes.outside_bytes,
            "command": self.command(gpus),
        })
    }
}

/// The options of a plan, which the command of a row does not have.
const OF_PLANS: [&str; 5] = ["--plan", "--goal", "--numbers", "--json", "--checkpoint"];
/// Those of them, and of a row, that have no value.
const FLAGS: [&str; 4] = ["--json", "--checkpoint", "--step-in-backward", "--offload-optimizer"];

/// Sorts rows: the largest batch that fits first, and of these the fastest; of equally fast ones, the smallest. Rows that
/// do not fit follow, sorted by the memory that they need.
pub(super) fn sort(rows: &mut [Row]) {
    rows.sort_by(|a, b| {
        let fast = |row: &Row| if row.fits { (row.cost_s() * 1e4).round() } else { 0.0 };
        let batch = |row: &Row| if row.fits { row.batch_size } else { 0 };
        let by_size = || a.total_bytes().cmp(&b.total_bytes());
        (!a.fits)
            .cmp(&!b.fits)
            .then(batch(b).cmp(&batch(a)))
            .then(fast(a).total_cmp(&fast(b)))
            .then_with(by_size)
    });
}

/// Of each combination of techniques, the fastest that fits: at most this many. If nothing fits, the smallest.
pub(super) fn worth_printing(tried: &[Row], most: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for row in tried.iter().filter(|row| row.fits) {
        if rows.len() < most && !rows.iter().any(|other| other.is_like(row)) {
            rows.push(row.clone());
        }
    }
    if rows.is_empty() {
        rows.extend(tried.iter().min_by_key(|row| row.total_bytes()).cloned());
    }
    rows
}
