//! The values of the report for programs, with the keys of `plimsoll.predict/2`.

use serde_json::{Value, json};

use crate::predict::analysis::growth::Growth;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::analysis::without::Without;
use crate::predict::answer::Outcome;
use crate::predict::gpu::Target;
use crate::protocol::{Applied, Fall, Holder, ProcessState, Report};

/// The simulated GPU.
pub(super) fn gpu(target: &Target) -> Value {
    json!({ "name": target.name, "capability": target.capability,
        "total_bytes": target.total_bytes, "context_bytes": target.context_bytes,
        "others_bytes": target.others_bytes, "assumed": target.assumed, "shares_memory": target.shares_memory() })
}

/// The process and device that decide the verdict, with the explanation of the recording.
pub(super) fn judged(outcome: &Outcome, target: &Target, explanation: Option<&Value>) -> Option<Value> {
    outcome.judged.as_ref().map(|judged| {
        json!({
            "process": process(&judged.report),
            "device": judged.peaks.device,
            "peak_allocated_bytes": judged.peaks.allocated_bytes,
            "peak_reserved_bytes": judged.peaks.reserved_bytes,
            "process_bytes": {
                "least": judged.peaks.reserved_bytes + target.least_context_bytes,
                "most": judged.peaks.reserved_bytes + target.context_bytes,
            },
            "explanation": explanation,
        })
    })
}

/// How much memory the program needs.
pub(super) fn need(outcome: &Outcome) -> Option<Value> {
    outcome.need.as_ref().map(|need| {
        json!({
            "peak_allocated_bytes": need.judged.peaks.allocated_bytes,
            "peak_reserved_bytes": need.judged.peaks.reserved_bytes,
            "bytes": need.bytes,
            "more_bytes": need.more_bytes,
            "at_least": need.is_least,
            "computed": need.growth.as_ref().map(growth),
        })
    })
}

/// The objects that keep memory alive, if memory grew or ran out.
pub(super) fn holders(outcome: &Outcome) -> Value {
    let row =
        |it: &Holder| json!({ "kind": it.kind, "text": it.text, "tensors": it.tensors, "bytes": it.bytes });
    outcome.holders().map(row).collect()
}

/// Training memory that disappeared and never came back.
pub(super) fn falls(falls: &[Fall]) -> Value {
    falls.iter().map(|it| json!({ "text": it.text, "bytes": it.bytes, "step": it.step })).collect()
}

/// The peaks of a run under different conditions.
pub(super) fn peaks(outcome: &Outcome) -> Value {
    json!({
        "peak_allocated_bytes": outcome.judged.as_ref().map(|judged| judged.peaks.allocated_bytes),
        "peak_reserved_bytes": outcome.reserved_bytes(),
    })
}

/// The result of the run with zero in place of the assumed values.
pub(super) fn with_zero(zero: &Outcome, summary: &str) -> Value {
    let mut value = peaks(zero);
    value["verdict"] = verdict(&zero.verdict);
    value["summary"] = summary.into();
    value
}

/// The techniques of `--with`.
pub(super) fn techniques(techniques: &[Applied]) -> Value {
    let technique = |it: &Applied| json!({ "name": it.name, "applied": it.applied, "detail": it.detail });
    techniques.iter().map(technique).collect()
}

/// The processes that used CUDA.
pub(super) fn processes(reports: &[Report]) -> Value {
    reports.iter().map(process).collect()
}

/// Memory that was still growing when the run was cut short.
pub(super) fn growth(growth: &Growth) -> Value {
    json!({
        "each": growth.each.name(),
        "bytes": growth.bytes,
        "every": growth.every,
        "resets": growth.resets,
        "seen": growth.seen,
        "total": growth.total,
        "line": growth.line,
        "end_bytes": growth.end_bytes,
        "out_at": growth.out_at,
    })
}

/// The peaks without some of the requests.
pub(super) fn without(without: &Without) -> Value {
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
