//! A finished or failed job for programs. All sizes are bytes. The schema's name contains its version.

use plimsoll::fit::{Techniques, Tried};
use plimsoll::memory::Report;
use plimsoll::parallel::Shard;
use plimsoll::{Category, CategoryBytes, OutOfMemory};
use serde_json::{Map, Value, json};

use super::job::{Job, Outcome, Together};
use super::report;
use super::saves::Saves;
use super::savings::Saving;
use super::smallest::Smallest;
use super::snapshot::SnapshotFile;
use super::stop::Signal;
use super::task::Metric;

/// The schema of a job, including failed ones. Changes of meaning raise the version; new fields do not.
pub(crate) const SCHEMA: &str = "plimsoll.train/1";

/// The result of a job that finished.
pub(crate) fn result(
    job: &Job,
    outcome: &Outcome,
    savings: &[Saving],
    file: Option<&SnapshotFile>,
    saves: Option<&Saves>,
) -> String {
    let tested = outcome.tested.max(1) as f64;
    let mut fields = json!({
        "schema": SCHEMA,
        "verdict": if outcome.signal.is_some() { "stopped" } else { "fits" },
        "signal": outcome.signal.map(Signal::name),
        "summary": report::verdict(job, outcome, saves),
        "job": of_job(job),
        "steps": outcome.steps,
        "planned_steps": outcome.planned_steps,
        "estimated_step_ms": outcome.estimated_step.map(|step| step.as_secs_f64() * 1e3),
        "elapsed_s": outcome.elapsed.as_secs_f64(),
        "losses": outcome.losses,
        "parameters": outcome.parameter_count,
        "parameter_bytes": outcome.parameters,
        "data_set_bytes": outcome.data_set_bytes,
        "batches_bytes": outcome.batches_bytes,
        "memory": of_memory(&outcome.memory),
        "snapshot": file.and_then(SnapshotFile::saved),
        "saved": saves.filter(|saves| saves.failure().is_none()).map(|saves| saves.folder().display().to_string()),
        "save_error": saves.and_then(Saves::failure).map(ToString::to_string),
        "ranks": outcome.together.as_ref().map(of_ranks),
        "sample": outcome.sample.as_ref().map(|sample| &sample.text),
        "techniques": savings.iter().map(Saving::json).collect::<Vec<_>>(),
        "fit": job.fitted.as_ref().map(|fitted| json!({
            "limit_bytes": fitted.limit_bytes,
            "options": job.techniques.beyond(&fitted.base).options(),
            "simulated_runs": fitted.runs,
            "times_as_long": fitted.times_as_long,
            "tried": fitted.tried.iter().map(|tried| of_tried(tried, &fitted.base)).collect::<Vec<_>>(),
        })),
    });
    fields[format!("{}_per_s", job.task.unit().plural)] = outcome.units_per_second.into();
    match job.task.metric() {
        Metric::Accuracy => {
            let correct = outcome.scores.iter().map(|&score| score as u64);
            fields["correct"] = correct.collect::<Vec<_>>().into();
            fields["accuracy"] = outcome.scores.last().map(|score| score / tested).into();
        }
        Metric::Loss => {
            let losses = outcome.scores.iter().map(|score| score / tested);
            fields["validation_losses"] = losses.collect::<Vec<_>>().into();
        }
    }
    pretty(&fields)
}

/// A job that ran out of memory.
pub(crate) fn out_of_memory(
    job: &Job,
    report: &OutOfMemory,
    smallest: Option<&Smallest>,
    file: Option<&SnapshotFile>,
) -> String {
    let n = &report.numbers;
    pretty(&json!({
        "schema": SCHEMA,
        "verdict": "out of memory",
        "summary": report.to_string(),
        "job": of_job(job),
        "asked": {
            "bytes": n.requested_bytes,
            "block_bytes": n.rounded_bytes,
            "segment_bytes": n.segment_bytes,
            "by": report.label,
            "category": n.category.name(),
            "op": report.op,
        },
        "device": report.device,
        "capacity_bytes": n.device_total_bytes,
        "device_free_bytes": n.device_free_bytes,
        "limit_bytes": n.limit_bytes,
        "allocated_bytes": n.allocated_bytes,
        "reserved_bytes": n.reserved_bytes,
        "largest_free_block_bytes": n.largest_free_block_bytes,
        "held_by_category": by_category(&n.by_category),
        "smallest_limit_bytes": smallest.map(|smallest| smallest.limit_bytes),
        "smallest_limit_fits_device": smallest.map(|smallest| smallest.fits_device),
        "snapshot": file.and_then(SnapshotFile::saved),
    }))
}

fn of_ranks(together: &Together) -> Value {
    let Together { shard, replicate, tensor, buckets, units, slot_bytes, sent_bytes_per_step, peaks } =
        together;
    let buckets =
        buckets.iter().map(|bucket| json!({ "bytes": bucket.bytes, "parameters": bucket.parameters }));
    let units = units
        .iter()
        .map(|unit| json!({ "name": unit.name, "bytes": unit.bytes, "parameters": unit.parameters }));
    let peaks = peaks
        .iter()
        .map(|(allocated, reserved)| json!({ "allocated_bytes": allocated, "reserved_bytes": reserved }));
    json!({
        "parallel": if *tensor > 1 { "tp" } else if *shard == Shard::Nothing { "ddp" } else { "shard" },
        "shard": shard.name(),
        "replicate": replicate,
        "tensor": tensor,
        "units": units.collect::<Vec<_>>(),
        "slot_bytes": slot_bytes,
        "size": peaks.len(),
        "buckets": buckets.collect::<Vec<_>>(),
        "sent_bytes_per_step": sent_bytes_per_step,
        "peaks": peaks.collect::<Vec<_>>(),
    })
}

fn of_tried(tried: &Tried, base: &Techniques) -> Value {
    let added = tried.techniques.beyond(base);
    json!({
        "options": added.options(),
        "numbers": added.numbers().name(),
        "fits": tried.fits,
        "reserved_bytes": tried.takes.reserved_bytes,
        "estimated_step_ms": tried.takes.seconds * 1e3,
    })
}

fn of_job(job: &Job) -> Value {
    let mut fields = job.task.describe();
    fields.insert("task".to_owned(), job.task.name().into());
    let (dtype, adamw) = (job.techniques.bfloat16, job.task.has_adamw());
    fields.insert("dtype".to_owned(), if dtype { "bfloat16" } else { "float32" }.into());
    if adamw {
        let name = if job.techniques.adamw_8bit { "adamw8bit" } else { "adamw" };
        fields.insert("optimizer".to_owned(), name.into());
    }
    fields.into()
}

fn of_memory(memory: &Report) -> Value {
    let owners = memory.owners.iter().map(|owner| {
        json!({
            "name": report::owner_name(&owner.label, owner.category),
            "label": owner.label,
            "category": owner.category.name(),
            "bytes": owner.bytes,
            "blocks": owner.blocks,
        })
    });
    let by_category: Map<String, Value> = memory
        .by_category
        .iter()
        .map(|share| (share.category.name().to_owned(), share.bytes.into()))
        .collect();
    json!({
        "device": memory.device,
        "capacity_bytes": memory.capacity_bytes,
        "limit_bytes": memory.limit_bytes,
        "spare_bytes": memory.spare_bytes(),
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "peak_by_category": by_category,
        "owners_at_peak": owners.collect::<Vec<_>>(),
        "outside_allocator_bytes": memory.outside_bytes,
        "workspace_bytes": memory.workspace_bytes,
    })
}

fn by_category(bytes: &CategoryBytes) -> Map<String, Value> {
    Category::ALL.iter().map(|&category| (category.name().to_owned(), bytes[category].into())).collect()
}

pub(super) fn pretty(value: &Value) -> String {
    // Serializing strings and numbers cannot fail. The alternate form of `Display` is indented.
    format!("{value:#}")
}
