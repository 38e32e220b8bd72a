//! The report about a prediction: [`report`]. The texts, the JSON and the page are made from it.

use plimsoll_trace::report::{Brief, Rank, Report, Section};

use super::limits::limits;
use super::{graphs, host, json, late, memory, next, outside, reads, sentences, traces, warnings, waste};
use crate::predict::analysis::verdict::Verdict;
use crate::predict::analysis::without::Without;
use crate::predict::answer::Outcome;
use crate::predict::args::PredictArgs;
use crate::predict::gpu::Target;
use crate::predicted::Predicted;
use crate::shown::Shown;
use crate::{bytes, explain};

/// The report, with its sections in reading order. `shown` determines how sizes are printed.
pub(crate) fn report(outcome: &Outcome, target: &Target, args: &PredictArgs, shown: Shown) -> Report {
    let size = |bytes: u64| shown.size(bytes);
    let verdict = sentences::verdict(outcome, target, size);
    let explanation = outcome.judged.as_ref().and_then(|judged| judged.analysis.as_ref());
    // Only the JSON and the full text contain the explanation; the page draws it from the recording.
    let explanation = explanation.filter(|_| args.json || args.full);
    let explanation = explanation.map(|it| explain::report::report(&it.explained, it.device(), shown));
    let explained = explanation.as_ref().map(Report::json);
    let mut sections = facts(outcome, target, &verdict);
    sections.push(Section::data("judged", json::judged(outcome, target, explained.as_ref())));
    let unused = graphs::sentences(outcome, size);
    sections.push(Section::lines("unused_graphs", Rank::Head, unused).valued(graphs::json(outcome)));
    let wasted = waste::sentences(outcome, size);
    sections.push(Section::lines("waste", Rank::Head, wasted).valued(waste::json(outcome)));
    sections.push(Section::command("next", "Next", next::command(outcome, target, args)));
    let kept_by = holders(outcome, size);
    sections.push(Section::lines("holders", Rank::Head, kept_by).valued(json::holders(outcome)));
    let falls = outcome.falls();
    let fallen = falls
        .iter()
        .map(|it| format!("{} have not been live since step {}: {}", size(it.bytes), it.step, it.text));
    sections.push(Section::lines("falls", Rank::Head, fallen).valued(json::falls(falls)));
    sections.push(Section::lines("not_seen", Rank::Head, late::lines(outcome)));
    sections.extend(other_runs(outcome, target, shown));
    let hint = if let Verdict::Failed { hint, .. } = &outcome.verdict { hint.clone() } else { None };
    sections.push(Section::lines("verdict", Rank::Head, hint).valued(json::verdict(&outcome.verdict)));
    let warnings =
        [reads::problems(&outcome.reports), warnings::lines(outcome, target.capacity_bytes(), size)];
    let warnings = warnings.concat();
    let said = warnings.iter().map(|warning| format!("warning: {warning}"));
    sections.push(Section::lines("warnings", Rank::Head, said).valued(warnings.clone()));
    sections.push(techniques(outcome));
    // If a program failed for another reason, the owners of memory do not help.
    let is_failed = matches!(outcome.verdict, Verdict::Failed { .. } | Verdict::Refused(_));
    let judged = outcome.measured();
    sections.extend(judged.map(|judged| memory::account(outcome, judged, target, size)));
    sections.push(host::section(outcome.host.as_ref().filter(|_| !is_failed), size));
    sections.push(memory::processes(outcome).valued(json::processes(&outcome.reports)));
    sections.extend(outside::sections(judged, target));
    sections.push(outside::advice(judged, target, size));
    if let Some(judged) = &outcome.judged {
        sections.push(memory::peaks(judged, outcome.is_exact(target), target, size));
    }
    let analysis = judged.and_then(|judged| judged.analysis.as_ref()).filter(|_| !is_failed);
    sections.extend(analysis.into_iter().flat_map(memory::owners));
    // Only the tables of the explanation are used, because the verdict already contains the rest.
    let tables = explanation.filter(|_| !is_failed).map_or_else(Vec::new, |it| it.sections);
    let tables = tables.into_iter().filter(|section| section.rank == Rank::Full);
    sections.extend(tables.map(|section| Section { key: "", ..section }));
    sections.extend(code_and_files(outcome, size));
    sections.push(not_included(outcome, target, size));
    let is_bad =
        !matches!(outcome.verdict, Verdict::Fits { .. }) || outcome.may_not_fit() || outcome.lacks_host();
    Report { verdict, is_bad, sections }
}

/// The objects that keep memory alive, if memory grew or ran out.
fn holders(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<String> {
    outcome.holders().map(|it| format!("kept by {}: {}", it.text, size(it.bytes))).collect()
}

/// What the recording should contain in addition to PyTorch's events.
pub(crate) fn predicted(outcome: &Outcome) -> Option<Predicted> {
    let size = |bytes| bytes::shown(bytes, false);
    let device = outcome.judged.as_ref()?.peaks.device;
    let waste = waste::json(outcome).unwrap_or_default();
    Predicted::of(
        device,
        (waste::sentences(outcome, size), waste),
        (holders(outcome, size), json::holders(outcome)),
    )
}

/// The facts of the verdict, for programs.
fn facts(outcome: &Outcome, target: &Target, verdict: &str) -> Vec<Section> {
    vec![
        Section::data("schema", "plimsoll.predict/2"),
        Section::data("gpu", json::gpu(target)),
        Section::data("summary", verdict),
        Section::data("need", json::need(outcome)),
        Section::data("growth", outcome.growth.as_ref().map(json::growth)),
        Section::data("exit", outcome.exit() as u8),
        Section::data("exact", outcome.is_exact(target)),
    ]
}

/// Sections with the peaks of other runs and replays, such as a run without workspaces.
fn other_runs(outcome: &Outcome, target: &Target, shown: Shown) -> Vec<Section> {
    let size = |bytes: u64| shown.size(bytes);
    let peaks = |what: &str, without: &Without| {
        format!(
            "{what} (leaves out {} requests, the largest of {}): peak {} allocated, {} reserved",
            without.left_out,
            size(without.largest_bytes),
            size(without.allocated_bytes),
            size(without.reserved_bytes)
        )
    };
    let workspaces = outcome.without_workspaces.as_ref();
    let modelled = outcome.modelled();
    let said = workspaces
        .zip(modelled)
        .map(|(without, modelled)| peaks(&format!("without {modelled} workspaces"), without));
    let warm = outcome.with_warm_caches.as_ref();
    let compiled = "with a warm compile cache, without the requests for compiling and timing kernels";
    let said_of_warm = warm.filter(|warm| outcome.differs(warm)).map(|warm| peaks(compiled, warm));
    let zero = outcome.without_assumptions.as_deref();
    let zero = zero.map(|zero| (zero, sentences::verdict(zero, target, size)));
    let said_of_zero = zero.iter().flat_map(|(zero, verdict)| {
        let range = outcome.reserved_bytes().zip(zero.reserved_bytes()).map(|(one, other)| {
            format!("range: {} to {} reserved", size(one.min(other)), size(one.max(other)))
        });
        std::iter::once(format!("with zero instead of the --assume values: {verdict}")).chain(range)
    });
    vec![
        Section::lines("without_cudnn_workspaces", Rank::Head, said).valued(workspaces.map(json::without)),
        Section::lines("with_warm_compile_cache", Rank::Head, said_of_warm).valued(warm.map(json::without)),
        Section::lines("with_zero_for_assumed", Rank::Head, said_of_zero)
            .valued(zero.as_ref().map(|(zero, verdict)| json::with_zero(zero, verdict))),
        Section::data("with_largest_values", outcome.with_largest.as_deref().map(json::peaks)),
        Section::data("with_least_values", outcome.with_least.as_deref().map(json::peaks)),
    ]
}

/// The techniques of `--with`.
fn techniques(outcome: &Outcome) -> Section {
    let effect = |applied| if applied { "applied" } else { "no effect" };
    let techniques = outcome.techniques();
    let lines = techniques.iter().map(|it| {
        let detail = if it.detail.is_empty() { String::new() } else { format!(": {}", it.detail) };
        format!("{:<16}  {}{detail}", it.name, effect(it.applied))
    });
    let names: Vec<String> =
        techniques.iter().map(|it| format!("{} {}", it.name, effect(it.applied))).collect();
    let brief = (!names.is_empty()).then(|| Brief::Line(format!("techniques: {}", names.join(", "))));
    Section::lines("techniques", Rank::Head, lines)
        .headed("Techniques")
        .briefly(brief)
        .valued(json::techniques(techniques))
}

/// Values that were read, code that did not run, and files that would have been written.
fn code_and_files(outcome: &Outcome, size: impl Fn(u64) -> String) -> Vec<Section> {
    let (reports, traces) = (&outcome.reports, &outcome.traces);
    let has_run = !matches!(outcome.verdict, Verdict::Failed { .. });
    let (rows, unseen) = (reads::rows(reports), reads::unseen(reports));
    let rows = rows.iter().filter(|_| has_run).map(reads::line);
    let more = if unseen.len() > 1 { format!(" ({} more)", unseen.len() - 1) } else { String::new() };
    let first = unseen.first().map(|first| Brief::Line(format!("Not run: {first}{more}")));
    let not_run = unseen.iter().filter(|_| has_run).cloned();
    vec![
        Section::lines("reads", Rank::Full, rows).headed(reads::HEADING).valued(reads::json(reports)),
        Section::lines("not_run", Rank::Screen, not_run)
            .headed("Not run")
            .briefly(first.filter(|_| has_run))
            .valued(unseen.clone()),
        Section::lines("writes", Rank::Screen, traces::lines(traces, &size))
            .headed("Would have been written")
            .briefly(traces::line(traces, &size).map(Brief::Line))
            .valued(traces::json(traces)),
        Section::lines("kept_in_caches", Rank::Full, traces::kept(traces)).headed("New files kept in caches"),
        Section::lines("hosts", Rank::Full, traces.hosts.iter().cloned()).headed("Hosts contacted"),
    ]
}

/// The kinds of memory that the figures leave out. The short text gives only the number of kinds.
fn not_included(outcome: &Outcome, target: &Target, size: impl Fn(u64) -> String) -> Section {
    let limits = limits(outcome, size);
    let exact = if outcome.is_exact(target) { "" } else { ", and why the figures are not exact" };
    let all = match limits.len() {
        0 => "--full: all tables, and other allocator settings".to_owned(),
        1 => format!("--full: all tables, other allocator settings, what is not included{exact}"),
        count => format!(
            "--full: all tables, other allocator settings, {count} things that are not included{exact}"
        ),
    };
    Section::lines("not_counted", Rank::Screen, limits).headed("Not included").briefly(Some(Brief::Line(all)))
}
