//! The report as JSON: `plimsoll.plan/1`.

use serde_json::{Value, json};

use super::candidate::{Candidate, limits};
use super::fit::{Fit, Limits};
use super::{Plan, text};
use crate::predict::trial::End;

/// The whole report.
pub(super) fn render(plan: &Plan) -> String {
    let (chosen, limits) = (plan.chosen(), limits(&plan.target));
    let value = json!({
        "schema": "plimsoll.plan/1",
        "gpu": { "name": plan.target.name, "total_bytes": plan.target.total_bytes,
            "context_bytes": plan.target.context_bytes, "timed_as": plan.target.listed.name },
        "summary": text::verdict(plan),
        "exit": plan.exit() as u8,
        "complete": !plan.is_interrupted && !plan.is_late,
        "devices": plan.devices,
        "chosen": chosen.map(|it| it.set.to_string()),
        "instead_of": plan.instead_of().map(|it| it.set.to_string()),
        "numbers": chosen.map(|it| it.set.numbers().name()),
        "checked": plan.checked,
        "planned": plan.planned.as_ref().map(|it| json!({
            "peak_allocated_bytes": it.allocated_bytes,
            "peak_reserved_bytes": it.reserved_bytes,
            "contents": it.contents,
            "peak": it.peak,
        })),
        "writes": plan.shown().map(|trial| trial.writes.iter().map(|file| json!({
            "path": file.path, "bytes": file.bytes,
        })).collect::<Vec<_>>()),
        "hosts": plan.shown().map(|trial| &trial.hosts),
        "batch": plan.batch,
        "largest_batch": plan.largest.iter().map(|it| json!({
            "set": it.set.to_string(), "from": it.range.0, "to": it.range.1, "batch": it.batch,
        })).collect::<Vec<_>>(),
        "command": chosen.map(|it| plan.command(it)),
        "lines": chosen.map(|it| it.trial.techniques.iter().flat_map(|it| it.lines.clone()).collect::<Vec<_>>()),
        "tried": plan.candidates.iter().map(|it| row(it, limits)).collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

fn row(candidate: &Candidate, limits: Limits) -> Value {
    let (trial, cost) = (&candidate.trial, candidate.cost);
    let ran = trial.end == End::Ran;
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
        "extra_flops": cost.map(|cost| cost.extra_flops),
        "pcie_bytes": cost.map(|cost| cost.pcie_bytes),
        "pinned_host_bytes": candidate.pinned_bytes(),
        "wire_bytes": cost.map(|cost| cost.wire_bytes),
        "techniques": trial.techniques.iter().map(|it| json!({
            "name": it.name, "applied": it.applied, "detail": it.detail,
        })).collect::<Vec<_>>(),
    })
}
