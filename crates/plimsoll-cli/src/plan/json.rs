//! The values of the report for programs, with the keys of `plimsoll.plan/1`.

use serde_json::{Value, json};

use super::Plan;
use super::candidate::{Candidate, limits};
use super::fit::Fit;
use super::largest::Largest;
use crate::predict::analysis::waste::NewLine;
use crate::predict::gpu::Target;
use crate::predict::trial::{End, Trial};

/// The GPU that the plan is for.
pub(super) fn gpu(target: &Target) -> Value {
    json!({ "name": target.name, "total_bytes": target.total_bytes,
        "context_bytes": target.context_bytes, "timed_as": target.listed.name,
        "others_bytes": target.others_bytes, "assumed": target.assumed })
}

/// The chosen set's run at the GPU's size.
pub(super) fn planned(trial: &Trial) -> Value {
    json!({
        "peak_allocated_bytes": trial.allocated_bytes,
        "peak_reserved_bytes": trial.reserved_bytes,
        "contents": trial.contents,
        "peak": trial.peak,
    })
}

/// The files that a run would have written.
pub(super) fn writes(trial: &Trial) -> Value {
    trial.writes.iter().map(|file| json!({ "path": file.path, "bytes": file.bytes })).collect()
}

/// The largest batch of a set.
pub(super) fn largest(it: &Largest) -> Value {
    json!({ "set": it.set.to_string(), "from": it.range.0, "to": it.range.1, "batch": it.batch })
}

/// The sets that were tried, in order.
pub(super) fn tried(plan: &Plan) -> Value {
    plan.candidates.iter().map(|it| row(it, &plan.target)).collect()
}

/// The runs with techniques that change which parameters are trained.
pub(super) fn offers(plan: &Plan) -> Value {
    plan.offers.iter().map(|it| row(it, &plan.target)).collect()
}

/// The lines of code that save memory, and the runs of the program with these lines.
pub(super) fn code_change(plan: &Plan) -> Value {
    let Some(code) = &plan.code else { return Value::Null };
    let line = |it: &NewLine| json!({ "file": it.file, "after": it.after, "replaces": it.replaces, "indent": it.indent, "text": it.text });
    json!({
        "lines": code.lines.iter().map(line).collect::<Vec<_>>(),
        "tried": code.tried.iter().map(|it| row(it, &plan.target)).collect::<Vec<_>>(),
    })
}

/// The runs with a smaller micro-batch, or why there are none.
pub(super) fn micro_batch(plan: &Plan) -> Value {
    let found = match &plan.micro_batch {
        None => return Value::Null,
        Some(Err(why)) => return json!({ "why": why, "tried": [] }),
        Some(Ok(found)) => found,
    };
    let tried = found.tried.iter().map(|it| {
        let lines =
            it.lines.iter().map(|(file, line, text)| json!({ "file": file, "line": line, "text": text }));
        let lines: Vec<Value> = lines.collect();
        let mut row = row(&it.candidate, &plan.target);
        row["set"] = "".into();
        json!({ "parts": it.parts, "batch": found.own / it.parts, "lines": lines, "run": row })
    });
    json!({ "why": null, "tried": tried.collect::<Vec<_>>() })
}

fn row(candidate: &Candidate, target: &Target) -> Value {
    let (trial, cost) = (&candidate.trial, candidate.cost);
    let ran = trial.end == End::Ran;
    let limits = limits(&trial.target(target));
    let fits = (!matches!(candidate.fit, Fit::Unknown(_))).then(|| candidate.fit.fits());
    json!({
        "set": candidate.set.to_string(),
        "numbers": candidate.set.numbers().name(),
        "fits": fits,
        "tight": candidate.fit.is_tight(),
        "close": candidate.fit.fits() && limits.is_close(trial.reserved_bytes),
        "caught": candidate.caught.as_ref().map(|it| json!({
            "failures": it.caught,
            "peak_allocated_bytes": it.allocated_bytes,
            "peak_reserved_bytes": it.reserved_bytes,
            "steps": it.steps,
        })),
        "effective": candidate.is_effective(),
        "objection": candidate.objection(),
        "refused": matches!(trial.end, End::Refused(_)),
        "peak_allocated_bytes": ran.then_some(trial.allocated_bytes),
        "peak_reserved_bytes": ran.then_some(trial.reserved_bytes),
        "steps": trial.steps,
        "depends_on_values": trial.decided.iter().map(|[place, source, decides]| json!({
            "place": place, "source": source, "decides": decides,
        })).collect::<Vec<_>>(),
        "estimated_step_seconds": cost.map(|cost| cost.step_s),
        "estimated_host_seconds": cost.map(|cost| cost.host_s),
        "bound_by": cost.map(|cost| cost.bound.name()),
        "extra_flops": cost.map(|cost| cost.extra_flops),
        "pcie_bytes": cost.map(|cost| cost.pcie_bytes),
        "pinned_host_bytes": candidate.pinned_bytes(),
        "wire_bytes": cost.map(|cost| cost.wire_bytes),
        "techniques": trial.techniques.iter().map(|it| json!({
            "name": it.name, "applied": it.applied, "detail": it.detail,
        })).collect::<Vec<_>>(),
    })
}
