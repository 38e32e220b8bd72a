//! `plimsoll diff`: reports what changed at the peak between two recordings.

mod json;
mod text;

use std::path::PathBuf;

use clap::Args;
use plimsoll_trace::explain::Options;
use plimsoll_trace::render::comparison::SnapshotDiff;
use plimsoll_trace::render::html::About;

use crate::categories::Categories;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::limit::Limit;
use crate::page::{Page, quoted};
use crate::shown::Shown;

#[derive(Args)]
#[command(after_help = "Example: plimsoll diff before.pickle after.pickle")]
pub(crate) struct DiffArgs {
    /// The first snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The second snapshot
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    #[command(flatten)]
    categories: Categories,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    limit: Limit,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    page: Page,
}

/// Compares device by device. Returns the text for stdout.
pub(crate) fn run(args: &DiffArgs) -> Result<Answer, Failure> {
    let sink = args.page.sink()?;
    args.limit.watch(&[&args.before, &args.after], args.json);
    let open = |file| Explained::open(file, args.device, Options::default(), &args.categories);
    let files = [open(&args.before)?, open(&args.after)?];
    let diff = SnapshotDiff::of(files.each_ref().map(Explained::report));
    if diff.pairs.is_empty() {
        let [a, b] = diff.reports.map(|report| {
            let numbers = report.devices.iter().map(|device| device.timeline.device.to_string());
            format!("{} has {}", report.file, numbers.collect::<Vec<String>>().join(", "))
        });
        return Err(Failure::new(Exit::Usage, format!("the files have no device in common: {a}, {b}")));
    }
    if let Some(sink) = sink {
        let mut command = vec!["plimsoll diff".to_owned(), quoted(&args.before), quoted(&args.after)];
        command.extend(args.device.map(|device| format!("--device {device}")));
        command.extend(args.categories.words());
        let [a, b] = diff.reports.map(|report| report.file);
        sink.page(About::Comparison(&diff), &format!("{a} {b}"), &sink.again(&command.join(" ")))?;
        if sink.is_stdout() {
            return Ok(Answer::default());
        }
    }
    Ok(Answer::from(if args.json { json::render(&files, &diff) } else { text::render(&diff, args) }))
}
