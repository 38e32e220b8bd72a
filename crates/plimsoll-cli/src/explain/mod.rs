//! `plimsoll explain`: explains a memory snapshot.

mod advice;
mod devices;
mod events;
mod holes;
mod job;
mod pasted;
mod peaks;
mod remaining;
pub(crate) mod report;
mod values;

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_trace::explain::Options;
use plimsoll_trace::render::html::About;

use self::events::EventsArgs;
use crate::bytes;
use crate::categories::Categories;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::limit::Limit;
use crate::page::{Page, quoted};
use crate::recording::Opened;
use crate::shown::Shown;

#[derive(Args)]
#[command(after_help = "Example: plimsoll explain snapshot.pickle")]
pub(crate) struct ExplainArgs {
    /// A log with an out-of-memory message, or a snapshot (pickle or JSON, plain, gzip or zstd); `-` is stdin. Also
    /// torch.cuda.memory_stats(), memory_summary(), a torch.profiler trace or an SQLite export of nsys with memory events. Several files, or a
    /// folder: the ranks of one job
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// The device's total memory, such as 80GiB; only snapshots of `plimsoll record` include it
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    device_total: Option<u64>,
    /// Show only what the file says: infer nothing from stacks, lifetimes or sizes
    #[arg(long)]
    no_infer: bool,
    #[command(flatten)]
    categories: Categories,
    #[command(flatten)]
    events: EventsArgs,
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

/// Reads and explains. Returns the text for stdout.
pub(crate) fn run(args: &ExplainArgs) -> Result<Answer, Failure> {
    let files = job::listed(&args.files)?;
    let sink = args.page.sink()?;
    args.limit.watch(&files, args.json);
    let [file] = files.as_slice() else {
        if args.events.is_asked() {
            let message = "--events is for one snapshot: name one of the files";
            return Err(Failure::new(Exit::Usage, message));
        }
        return job::run(&files, args, sink);
    };
    if pasted::nsys::is_database(file) {
        return pasted::of_database(file, args);
    }
    let recording = match Opened::open(file, args.device)? {
        Opened::Recording(recording) => *recording,
        Opened::Pasted(name, pasted) => return pasted::answer(&name, &pasted, args),
    };
    let explained = Explained::with_categories(recording, args.options(), &args.categories).worst_first();
    if args.events.is_asked() {
        return args.events.answer(&explained, args);
    }
    if let Some(sink) = sink {
        let command = sink.again(&args.command(&[file]));
        sink.page(About::Recording(explained.report()), &explained.file, &command)?;
        if sink.is_stdout() {
            return Ok(Answer::default());
        }
    }
    let answer = if args.json { report::as_json } else { report::text };
    Ok(Answer::from(answer(&explained, args.shown)))
}

impl ExplainArgs {
    fn options(&self) -> Options {
        Options { infer: !self.no_infer, device_total_bytes: self.device_total }
    }

    /// Whether an option was given that applies only to snapshots.
    fn is_for_snapshots(&self) -> bool {
        let of_a_device = self.device.is_some() || self.device_total.is_some() || self.no_infer;
        of_a_device || self.events.is_asked() || !self.categories.is_empty() || self.page.is_asked()
    }

    /// The command that explains these files in the same way, quoted for a shell.
    fn command<P: AsRef<Path>>(&self, files: &[P]) -> String {
        let mut words = vec!["plimsoll explain".to_owned()];
        words.extend(files.iter().map(|file| quoted(file.as_ref())));
        words.extend(self.device.map(|device| format!("--device {device}")));
        words.extend(self.device_total.map(|bytes| format!("--device-total {bytes}")));
        words.extend(self.categories.words());
        words.extend(self.no_infer.then(|| "--no-infer".to_owned()));
        words.join(" ")
    }
}
