//! `run --check`: compares the peaks in a plan (from `plan --json`) with the measured peaks. `check.py` measures inside
//! the program.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use plimsoll_trace::explain::{Change, Options};
use plimsoll_trace::render::comparison::Listed;
use plimsoll_trace::render::words;
use serde::Deserialize;

use crate::bytes;
use crate::categories::Categories;
use crate::contents::Contents;
use crate::exit::{Exit, Failure};
use crate::explained::Explained;
use crate::protocol::Measured;
use crate::techniques::Set;

/// A difference that is smaller than this fraction of the planned figure is not explained.
const LEAST: f64 = 0.01;
/// The maximum number of rows of a table.
const ROWS: usize = 8;

/// The fields of a plan's JSON (`plimsoll.plan/1`) that are read.
#[derive(Debug, Deserialize)]
struct File {
    schema: String,
    chosen: Option<String>,
    planned: Option<Planned>,
}

#[derive(Debug, Deserialize)]
struct Planned {
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    contents: Option<Contents>,
}

/// A plan.
#[derive(Debug)]
pub(super) struct Plan {
    /// The chosen techniques.
    pub(super) set: Set,
    planned: Planned,
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// If the file cannot be read or is not a plan, or the plan chose no set.
    pub(super) fn read(path: &Path) -> Result<Plan, Failure> {
        let failed = |exit, why: String| Failure::new(exit, format!("--check {}: {why}", path.display()));
        let text = fs::read_to_string(path).map_err(|why| failed(Exit::Unreadable, why.to_string()))?;
        let no_plan = |why: String| {
            failed(
                Exit::Unreadable,
                format!("not a plan ({why}); `plimsoll plan --json -- … > plan.json` writes one"),
            )
        };
        let file: File = serde_json::from_str(&text).map_err(|why| no_plan(why.to_string()))?;
        if file.schema != "plimsoll.plan/1" {
            return Err(no_plan(format!("its schema is {}, not plimsoll.plan/1", file.schema)));
        }
        let Some((chosen, planned)) = file.chosen.zip(file.planned) else {
            let why = "it chose no set, so there is nothing to compare with".to_owned();
            return Err(failed(Exit::Usage, why));
        };
        let set = match chosen.as_str() {
            "" => Set::default(),
            chosen => Set::parse(chosen).map_err(|why| failed(Exit::Usage, why))?,
        };
        Ok(Plan { set, planned })
    }

    /// Compares the measured peaks with the planned peaks, and explains differences.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn compared(&self, measured: &Path) -> Result<String, Failure> {
        let failed = |why: String| Failure::new(Exit::Unreadable, format!("{}: {why}", measured.display()));
        let text = fs::read_to_string(measured).map_err(|why| failed(why.to_string()))?;
        let measured: Measured = serde_json::from_str(&text).map_err(|why| failed(why.to_string()))?;
        let contents = match &measured.snapshot {
            Some(snapshot) => {
                let categories = Categories::default();
                let explained =
                    Explained::open(snapshot, Some(measured.device), Options::default(), &categories)?;
                Some(Contents::of(&explained))
            }
            None => None,
        };
        Ok(self.report(&measured, contents.as_ref()))
    }

    fn report(&self, measured: &Measured, contents: Option<&Contents>) -> String {
        let planned = &self.planned;
        let mut out = String::from("planned and measured peak\n");
        let rows = [
            ("allocated", planned.peak_allocated_bytes, measured.allocated_bytes),
            ("reserved", planned.peak_reserved_bytes, measured.reserved_bytes),
        ];
        for (name, planned, measured) in rows {
            let (a, b) = (bytes::shown(planned, false), bytes::shown(measured, false));
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "  {name:<9}  {a:>12}  {b:>12}  {}", percent(planned, measured));
        }
        let [allocated, reserved] = rows.map(|(_, planned, measured)| differs(planned, measured));
        match (allocated, planned.contents.as_ref().zip(contents)) {
            (false, _) if reserved => out.push_str(
                "allocated bytes agree, but the amount of cached memory differs, because requests came in a different order or memory ran short\n",
            ),
            (false, _) => {}
            (true, Some((before, after))) => {
                table(&mut out, "by category", &Contents::changes(&before.by_category, &after.by_category));
                table(&mut out, "by line", &Contents::changes(&before.by_line, &after.by_line));
                let found: u64 = after.by_category.values().sum();
                if differs(measured.allocated_bytes, found) {
                    let found = bytes::shown(found, false);
                    let _ = writeln!(out, "the recording covers a peak of only {found}, because its older events were dropped");
                }
            }
            (true, None) if contents.is_some() => {
                out.push_str("not explained: the plan does not say what its peak consists of\n");
            }
            (true, None) => out.push_str("not explained: run without --no-watch and --light\n"),
        }
        out
    }
}

/// Whether two figures differ enough to need an explanation.
fn differs(planned: u64, measured: u64) -> bool {
    planned.abs_diff(measured) as f64 > LEAST * planned as f64
}

fn percent(planned: u64, measured: u64) -> String {
    if planned == measured {
        return "equal".to_owned();
    }
    format!("{:+.2} %", 100.0 * (measured as f64 / planned.max(1) as f64 - 1.0))
}

/// Writes a table of the changes from the planned to the measured peak.
fn table(out: &mut String, title: &str, rows: &[Change<String>]) {
    let size = |bytes| bytes::shown(bytes, false);
    let _ = writeln!(out, "{title}: change, planned, measured");
    let listed = Listed::of(rows, ROWS);
    for row in listed.rows.into_iter().chain(listed.rest.as_ref()) {
        let [before, after] = row.amounts.map(|amount| size(amount.bytes));
        let change = words::change(row.bytes(), size);
        let _ = writeln!(out, "  {change:>13}  {before:>13}  {after:>13}  {}", row.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(text: &str) -> Result<Plan, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        fs::write(&path, text).unwrap();
        Plan::read(&path)
    }

    #[test]
    fn what_is_no_plan_is_an_error_that_says_why() {
        for (text, said) in [
            ("{", "not a plan"),
            ("{\"schema\": \"plimsoll.diff/1\"}", "plimsoll.diff/1"),
            ("{\"schema\": \"plimsoll.plan/1\", \"chosen\": null}", "chose no set"),
        ] {
            let why = plan(text).unwrap_err();
            assert!(why.message.contains(said), "{text}: {}", why.message);
        }
        assert!(Plan::read(Path::new("absent.json")).unwrap_err().message.contains("absent.json"));
    }

    #[test]
    fn a_difference_of_more_than_a_hundredth_is_explained_by_category_and_line() {
        let plan = plan(
            r#"{"schema": "plimsoll.plan/1", "chosen": "checkpoint=2", "planned": {"peak_allocated_bytes": 1000,
                "peak_reserved_bytes": 2000, "contents": {"by_category": {"activations": 400, "parameters": 600},
                "by_line": {"train.py:7 step": 400, "train.py:3 <module>": 600}}}}"#,
        )
        .unwrap();
        assert_eq!(plan.set.to_string(), "checkpoint=2");
        let of = |rows: &[(&str, u64)]| rows.iter().map(|&(name, bytes)| (name.to_owned(), bytes)).collect();
        let contents = Contents {
            by_category: of(&[("activations", 500), ("parameters", 600)]),
            by_line: of(&[("train.py:7 step", 500), ("train.py:3 <module>", 600)]),
        };
        let of = |allocated_bytes, reserved_bytes| Measured {
            device: 0,
            allocated_bytes,
            reserved_bytes,
            snapshot: None,
        };
        let text = plan.report(&of(1100, 2000), Some(&contents));
        assert!(text.contains("+10.00 %") && text.contains("equal"), "{text}");
        assert!(text.contains("activations") && text.contains("train.py:7 step"), "{text}");
        assert!(!text.contains("  parameters") && text.contains("1 unchanged"), "{text}");
        assert!(plan.report(&of(1009, 2000), None).lines().count() == 3);
        assert!(plan.report(&of(1100, 2000), None).contains("without --no-watch"));
        assert!(plan.report(&of(1000, 2100), None).contains("allocated bytes agree"));
    }
}
