//! The JSON report: `plimsoll.predict/2`.

use serde_json::{Value, json};

use super::graphs;
use super::limits::limits;
use super::reads;
use super::traces;
use super::{sentences, text, warnings};
use crate::bytes;
use crate::explain;
use crate::predict::analysis::growth::{Each, Growth};
use crate::predict::analysis::verdict::Verdict;
use crate::predict::analysis::without::Without;
use crate::predict::answer::Outcome;
use crate::predict::args::PredictArgs;
use crate::predict::gpu::{LEAST_CONTEXT_BYTES, Target};
use crate::protocol::{ProcessState, Report};

/// The whole answer.
pub(crate) fn render(outcome: &Outcome, target: &Target, args: &PredictArgs) -> String {
    format!("{:#}", value(outcome, target, args))
}

fn value(outcome: &Outcome, target: &Target, args: &PredictArgs) -> Value {
    let size = |bytes| bytes::shown(bytes, false);
    let judged = outcome.judged.as_ref().map(|judged| {
        json!({
            "process": process(&judged.report),
            "device": judged.peaks.device,
            "peak_allocated_bytes": judged.peaks.allocated_bytes,
            "peak_reserved_bytes": judged.peaks.reserved_bytes,
            "process_bytes": {
                "least": judged.peaks.reserved_bytes + LEAST_CONTEXT_BYTES.min(target.context_bytes),
                "most": judged.peaks.reserved_bytes + target.context_bytes,
            },
            "explanation": judged.analysis.as_ref().map(|analysis| explain::json::device(&analysis.explained, analysis.device())),
        })
    });
    json!({
        "schema": "plimsoll.predict/2",
        "gpu": { "name": target.name, "capability": target.capability,
            "total_bytes": target.total_bytes, "context_bytes": target.context_bytes },
        "verdict": verdict(&outcome.verdict),
        "summary": sentences::verdict(outcome, target, size),
        "next": text::next(outcome, target, args),
        "need": outcome.need.as_ref().map(|need| json!({
            "peak_allocated_bytes": need.judged.peaks.allocated_bytes,
            "peak_reserved_bytes": need.judged.peaks.reserved_bytes,
            "bytes": need.bytes,
            "more_bytes": need.more_bytes,
            "at_least": need.is_least,
            "computed": need.growth.as_ref().map(growth),
        })),
        "growth": outcome.growth.as_ref().map(growth),
        "warnings": warnings::lines(outcome, target.capacity_bytes(), size),
        "unused_graphs": graphs::json(outcome),
        "exit": outcome.exit() as u8,
        "exact": outcome.is_exact(target),
        "judged": judged,
        "without_cudnn_workspaces": outcome.without_workspaces.as_ref().map(without),
        "with_warm_compile_cache": outcome.with_warm_caches.as_ref().map(without),
        "with_zero_for_assumed": outcome.without_assumptions.as_ref().map(|zero| json!({
            "verdict": verdict(&zero.verdict),
            "summary": sentences::verdict(zero, target, size),
            "peak_allocated_bytes": zero.judged.as_ref().map(|judged| judged.peaks.allocated_bytes),
            "peak_reserved_bytes": zero.judged.as_ref().map(|judged| judged.peaks.reserved_bytes),
        })),
        "with_largest_values": outcome.with_largest.as_ref().map(|largest| json!({
            "peak_allocated_bytes": largest.judged.as_ref().map(|judged| judged.peaks.allocated_bytes),
            "peak_reserved_bytes": largest.judged.as_ref().map(|judged| judged.peaks.reserved_bytes),
        })),
        "techniques": outcome.techniques().iter().map(|it| json!({
            "name": it.name, "applied": it.applied, "detail": it.detail,
        })).collect::<Vec<_>>(),
        "reads": reads::json(&outcome.reports),
        "not_run": reads::unseen(&outcome.reports),
        "writes": traces::json(&outcome.traces),
        "hosts": outcome.traces.hosts,
        "processes": outcome.reports.iter().map(process).collect::<Vec<_>>(),
        "not_counted": limits(outcome, size),
    })
}

/// Memory that was still growing when the run was cut short.
fn growth(growth: &Growth) -> Value {
    json!({
        "each": if growth.each == Each::Step { "step" } else { "batch" },
        "bytes": growth.bytes,
        "seen": growth.seen,
        "total": growth.total,
        "line": growth.line,
        "end_bytes": growth.end_bytes,
        "out_at": growth.out_at,
    })
}

/// The peaks without some of the requests.
fn without(without: &Without) -> Value {
    json!({
        "peak_allocated_bytes": without.allocated_bytes,
        "peak_reserved_bytes": without.reserved_bytes,
        "left_out": without.left_out,
        "largest_bytes": without.largest_bytes,
    })
}

/// The verdict and its figures.
pub(crate) fn verdict(verdict: &Verdict) -> Value {
    match verdict {
        Verdict::Fits { spare_bytes, caught } => {
            json!({ "is": "fits", "spare_bytes": spare_bytes, "caught_requests": caught })
        }
        Verdict::Grows(growth) => {
            json!({ "is": "runs out", "cause": "growth", "line": growth.line, "caught": false })
        }
        Verdict::RunsOut(it) => json!({
            "is": "runs out",
            "step": it.step,
            "line": it.line,
            "asked_bytes": it.asked_bytes,
            "cause": it.cause.name(),
            "short_bytes": it.cause.short_bytes(),
            "caught": it.caught,
            "saved_by_warm_compile_cache": it.is_saved_by_caches,
        }),
        Verdict::Refused(refusal) => {
            json!({ "is": "refused", "technique": refusal.technique, "why": refusal.reason })
        }
        Verdict::Failed { how, hint } => json!({ "is": "failed", "how": how, "hint": hint }),
        Verdict::Unknown(why) => json!({ "is": "unknown", "why": why }),
    }
}

fn process(report: &Report) -> Value {
    let state = match report.state {
        ProcessState::Running => "killed",
        ProcessState::Ended => "ended",
        ProcessState::Stopped => "stopped",
        ProcessState::Failed => "failed",
        ProcessState::Refused => "refused",
        ProcessState::Expired => "expired",
    };
    let devices = report.devices.iter().map(|peaks| {
        json!({
            "device": peaks.device,
            "peak_allocated_bytes": peaks.allocated_bytes,
            "peak_allocated_step": peaks.allocated_step,
            "peak_reserved_bytes": peaks.reserved_bytes,
            "peak_reserved_step": peaks.reserved_step,
        })
    });
    json!({
        "pid": report.pid,
        "rank": report.rank,
        "state": state,
        "torch": report.torch,
        "cuda": report.cuda,
        "steps": report.steps,
        "requests_that_failed": report.failures,
        "devices": devices.collect::<Vec<_>>(),
    })
}
