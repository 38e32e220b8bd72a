//! The report about a plan: [`report`]. The text and the JSON are made from it.

use plimsoll_trace::report::{Cell, Column, Rank, Report, Row, Section, Table};

use super::candidate::Candidate;
use super::fit::Fit;
use super::sentences::{code_change, micro_batch, named, offers, other, verdict};
use super::time::Cost;
use super::unmarked::Unmarked;
use super::{Plan, json};
use crate::bytes;
use crate::exit::Exit;
use crate::predict::render::{reads, traces};
use crate::techniques::Technique;

/// The report, with its sections in reading order.
pub(super) fn report(plan: &Plan, whole_bytes: bool) -> Report {
    let verdict = verdict(plan);
    let chosen = plan.chosen();
    let has_set = chosen.is_some_and(|it| !it.set.is_empty());
    let mut sections = facts(plan, &verdict);
    sections.push(Section::lines("checked", Rank::Head, plan.checked.clone()).valued(plan.checked.clone()));
    let lacks = plan.lacks_host().map(|lacks| format!("the program {lacks}; no technique changes that"));
    sections.push(Section::lines("host", Rank::Head, lacks.clone()).valued(lacks));
    let other = other(plan);
    sections.push(Section::lines("alternative", Rank::Head, other.clone()).valued(other));
    let change = Section::lines("code_change", Rank::Head, code_change(plan));
    sections.push(change.valued(json::code_change(plan)));
    let micro_batch = Section::lines("micro_batch", Rank::Head, micro_batch(plan));
    sections.push(micro_batch.valued(json::micro_batch(plan)));
    let offers = offers(plan);
    sections.push(Section::lines("offers", Rank::Head, offers).valued(json::offers(plan)));
    let found_by = plan.unmarked.as_ref().and_then(|it| it.as_ref().ok()).map(Unmarked::sentence);
    sections.push(Section::lines("batch_found_by", Rank::Head, found_by.clone()).valued(found_by));
    let unused = plan.candidates.first().map_or(&[][..], |base| &base.trial.graphs);
    let unused = unused.iter().map(|sentence| format!("as it is, {sentence}"));
    sections.push(Section::lines("unused_graphs", Rank::Head, unused));
    let peak = plan.planned.as_ref().and_then(|it| it.peak.as_ref()).filter(|_| has_set);
    let peak = peak.map(|peak| format!("the remaining peak is {peak}"));
    sections.push(Section::lines("", Rank::Head, peak));
    let ran: Vec<&Candidate> = plan.candidates.iter().filter(|it| it.objection().is_none()).collect();
    let notes = if ran.is_empty() { Vec::new() } else { notes(plan, &ran, whole_bytes) };
    sections.push(Section::data("notes", notes.clone()));
    let table = table(plan, &ran, notes, whole_bytes);
    sections.push(Section::table("tried", Rank::Screen, "", table).valued(json::tried(plan)));
    let decided = chosen.or(plan.candidates.first()).map_or(&[][..], |it| &it.trial.decided);
    sections.push(Section::lines("", Rank::Full, decided.iter().map(reads::line)).headed(reads::HEADING));
    let objections = if ran.is_empty() { Vec::new() } else { objections(plan) };
    sections.push(Section::lines("", Rank::Full, objections).headed("Not possible, or without effect"));
    let command = chosen.map(|it| plan.command(it));
    let without_edit = command.clone().filter(|_| has_set);
    sections.push(
        Section::lines("command", Rank::Screen, without_edit).headed("Without an edit").valued(command),
    );
    sections.push(code(chosen));
    sections.push(parallel(plan));
    let hints = Section::lines("hints", Rank::Full, plan.hints.clone());
    sections.push(hints.headed(format!("Faster on {}, with an edit", plan.target.name)));
    sections.extend(files(plan, whole_bytes));
    Report { verdict, is_bad: plan.exit() != Exit::Done, sections }
}

/// The files that the chosen set's run would have written, and the hosts that it contacted.
fn files(plan: &Plan, whole_bytes: bool) -> [Section; 2] {
    let shown = plan.shown();
    let said = shown.and_then(|trial| {
        let bytes = bytes::shown(trial.writes.iter().map(|file| file.bytes).sum(), whole_bytes);
        traces::sentence(trial.writes.len() as u64, &bytes, &trial.hosts)
    });
    let hosts = shown.map(|trial| trial.hosts.clone());
    [
        Section::lines("writes", Rank::Screen, said).valued(shown.map(json::writes)),
        Section::data("hosts", hosts),
    ]
}

/// The facts of the verdict, for programs.
fn facts(plan: &Plan, verdict: &str) -> Vec<Section> {
    let chosen = plan.chosen();
    vec![
        Section::data("schema", "plimsoll.plan/1"),
        Section::data("gpu", json::gpu(&plan.target)),
        Section::data("summary", verdict),
        Section::data("exit", plan.exit() as u8),
        Section::data("complete", !plan.is_interrupted && !plan.is_late),
        Section::data("devices", plan.devices),
        Section::data("chosen", chosen.map(|it| it.set.to_string())),
        Section::data("instead_of", plan.instead_of().map(|it| it.set.to_string())),
        Section::data("numbers", chosen.map(|it| it.set.numbers().name())),
        Section::data("planned", plan.planned.as_ref().map(json::planned)),
        Section::data("batch", plan.batch),
        Section::data("largest_batch", plan.largest.iter().map(json::largest).collect::<Vec<_>>()),
    ]
}

/// The sets that ran, with their memory and time.
fn table(plan: &Plan, ran: &[&Candidate], notes: Vec<String>, whole_bytes: bool) -> Table {
    let edited = plan.code.iter().flat_map(|code| code.tried.iter().map(|it| (edited(&code.what, it), it)));
    let offers = plan.offers.iter().filter(|it| it.objection().is_none());
    let rows = ran.iter().copied().chain(offers).map(|it| (named(it), it));
    let divided = plan.micro_batch.iter().flatten().flat_map(|it| {
        let name = |parts| format!("code change: micro-batch of {}", it.own / parts);
        it.tried.iter().map(move |division| (name(division.parts), &division.candidate))
    });
    let named: Vec<(String, &Candidate)> = rows.chain(edited).chain(divided).collect();
    let name_width = named.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let column = |title, width| Column { key: title, title, width, unit: "" };
    let columns = vec![
        column("set", name_width.max("set".len())),
        column("allocated", 12),
        column("reserved", 12),
        column("headroom", 17),
        column("extra FLOPs", 11),
        column("PCIe a step", 11),
        column("pinned host", 11),
        column("time", 9),
        column("numbers", 0),
        column("", 0),
    ];
    let is_chosen = |it: &Candidate| plan.chosen().is_some_and(|chosen| std::ptr::eq(chosen, it));
    let rows = named.iter().map(|(name, it)| row(plan, name, it, is_chosen(it), whole_bytes)).collect();
    Table { notes, ..Table::of(columns, rows) }
}

/// The name of the row for a run with lines of code that save memory.
fn edited(what: &str, it: &Candidate) -> String {
    let set = if it.set.is_empty() { String::new() } else { format!(" + {}", it.set) };
    format!("code change: {what}{set}")
}

fn row(plan: &Plan, name: &str, it: &Candidate, is_chosen: bool, whole_bytes: bool) -> Row {
    let size = |bytes| bytes::shown(bytes, whole_bytes);
    let taken = it.trial.reserved_bytes + it.trial.target(&plan.target).context_bytes;
    let headroom = match plan.target.limit_bytes().checked_sub(taken) {
        Some(spare) => format!("{}{}", size(spare), it.fit.word()),
        None => format!("-{}", size(taken - plan.target.limit_bytes())),
    };
    let cost = it.cost.unwrap_or_default();
    let figure = |number: u64, text: String| Cell::Figure(if number == 0 { "0".to_owned() } else { text });
    let time = match (it.cost, plan.base_cost()) {
        (Some(cost), Some(base)) if base.step_s > 0.0 => format!("×{:.2}", cost.step_s / base.step_s),
        _ => "unknown".to_owned(),
    };
    Row::of([
        Cell::text(name),
        Cell::Bytes(it.trial.allocated_bytes),
        Cell::Bytes(it.trial.reserved_bytes),
        Cell::Figure(headroom),
        figure(cost.extra_flops, format!("{:.1} T", cost.extra_flops as f64 / 1e12)),
        figure(cost.pcie_bytes, size(cost.pcie_bytes)),
        figure(it.pinned_bytes(), size(it.pinned_bytes())),
        Cell::Figure(time),
        Cell::text(it.set.numbers().name()),
        Cell::text(if is_chosen { "<" } else { "" }),
    ])
}

/// Explanations of the words and figures in the table.
fn notes(plan: &Plan, ran: &[&Candidate], whole_bytes: bool) -> Vec<String> {
    let size = |bytes| bytes::shown(bytes, whole_bytes);
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    if ran.iter().any(|it| it.fit.is_tight()) {
        note("tight: it fits only because the allocator releases cached memory when memory runs short, which takes time".to_owned());
    }
    if ran.iter().any(|it| matches!(it.fit, Fit::Close(_))) {
        note("close: on a real GPU the peak may exceed what is left, because addresses and cuDNN's kernels differ".to_owned());
    }
    if ran.iter().any(|it| it.caught.is_some()) {
        note("as it is: the memory that the program uses on a GPU with enough memory; on this GPU the program catches the out-of-memory error and uses less".to_owned());
    }
    for it in ran.iter().filter(|it| it.set.needs_ranks()) {
        let sent = it.cost.map_or(0, |cost| cost.wire_bytes);
        note(format!(
            "{}: sizes are per GPU; each of {} GPUs sends {} to the others per step",
            it.set,
            plan.devices,
            size(sent)
        ));
    }
    if let Some(code) = &plan.code {
        for line in &code.lines {
            note(format!("code change: the program was run with {}", line.said(true)));
        }
    }
    if let Some(batch) = plan.table_batch {
        note(format!("batch: all rows are for batch {batch}"));
    }
    let context = size(plan.target.context_bytes);
    note(format!(
        "headroom: the unused part of {}{}, after {context} for the context and libraries (--context)",
        size(plan.target.limit_bytes()),
        match plan.target.others_bytes {
            0 => String::new(),
            bytes => format!(" (other programs use {}: --others)", size(bytes)),
        }
    ));
    if let Some(Cost { step_s, host_s, is_measured, bound, .. }) = plan.base_cost() {
        note(format!(
            "time: estimated from a step's operators and the {}'s rates; {:.1} ms for the unchanged program, bound by {}; the host works {:.1} ms, {}",
            plan.target.listed.name,
            step_s * 1e3,
            bound.name(),
            host_s * 1e3,
            match (is_measured, plan.host_factor) {
                (true, None) => "if it is as fast as this one (--host-factor)".to_owned(),
                (true, Some(factor)) => format!("with host factor {factor}"),
                (false, _) => "assumed for each operator, not measured".to_owned(),
            }
        ));
    }
    for technique in Technique::all() {
        let has_run = |it: &&Candidate| it.cost.is_some() && it.set.has(technique);
        let is_there = ran.iter().copied().chain(&plan.offers).any(|it| has_run(&it));
        if let Some(text) = technique.row().note.filter(|_| is_there) {
            note(format!("{}: {text}", technique.name()));
        }
    }
    notes
}

/// The reasons why sets are not in the table. Each reason is given once, for the smallest set that has it.
fn objections(plan: &Plan) -> Vec<String> {
    let mut objections: Vec<(String, String)> = Vec::new();
    for it in plan.candidates.iter().chain(&plan.offers) {
        let fresh = it.objection().filter(|why| objections.iter().all(|(_, known)| known != why));
        objections.extend(fresh.map(|why| (named(it), why)));
    }
    let line = |(name, why): (String, String)| {
        let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why);
        format!("{name:<18}  {why}")
    };
    objections.into_iter().map(line).collect()
}

/// The code of the chosen set.
fn code(chosen: Option<&Candidate>) -> Section {
    let techniques = chosen.map_or(&[][..], |it| &it.trial.techniques).iter();
    let with_code = techniques.clone().filter(|it| !it.lines.is_empty());
    let lines =
        with_code.flat_map(|it| std::iter::once(format!("# {}", it.name)).chain(it.lines.iter().cloned()));
    let lines = lines.filter(|_| chosen.is_some_and(|it| !it.set.is_empty()));
    let value = chosen.map(|_| techniques.flat_map(|it| it.lines.clone()).collect::<Vec<_>>());
    let section = Section::lines("lines", Rank::Full, lines).valued(value);
    if section.body.is_empty() {
        return section;
    }
    section.headed("Or in the program").noted(
        " (`model` and `optimizer` stand for your own names; add this before the first step, unless a line says otherwise)",
    )
}

/// The code for tensor parallelism, if the program runs with tensor parallelism but this was not chosen.
fn parallel(plan: &Plan) -> Section {
    let technique = Technique::TensorParallel;
    let is_other = |it: &&Candidate| plan.chosen().is_none_or(|chosen| chosen.set != it.set);
    let mut found = plan.candidates.iter().filter(|it| it.set.has(technique) && it.is_effective());
    let effect = found.find(is_other).and_then(|it| it.trial.technique(technique.name()));
    let lines = effect.map_or(&[][..], |it| &it.lines);
    Section::lines("", Rank::Full, lines.iter().cloned()).headed("Tensor parallelism, in the program")
}
