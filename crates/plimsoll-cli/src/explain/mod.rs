//! `plimsoll explain`: what a memory snapshot means.

mod holes;
mod job;
pub(crate) mod json;
mod peaks;
pub(crate) mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_trace::explain::Options;
use plimsoll_trace::render::html::Report;

use crate::bytes;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::shown::Shown;
use crate::sink::Sink;

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin. Several, or a folder: the ranks of one job
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// What the whole device has, such as 80GiB: no snapshot tells it
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    device_total: Option<u64>,
    /// Only what the file says, nothing that is inferred from it
    #[arg(long)]
    no_infer: bool,
    #[command(flatten)]
    shown: Shown,
    /// The result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a page for a browser: one file that needs no network
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
    /// Replace a page that is there
    #[arg(short, long, requires = "html")]
    force: bool,
}

/// Reads and explains; the result is text for stdout.
pub(crate) fn run(args: &ExplainArgs) -> Result<Answer, Failure> {
    let files = job::listed(&args.files)?;
    let [file] = files.as_slice() else {
        if args.html.is_some() {
            let message = "--html is for one file; for several there is the text, and --json";
            return Err(Failure::new(Exit::Usage, message));
        }
        return job::run(&files, args);
    };
    let options = Options { infer: !args.no_infer, device_total_bytes: args.device_total };
    let sink = args.html.as_ref().map(|path| (path, Sink::new(path.clone(), args.force)));
    sink.as_ref().map_or(Ok(()), |(_, sink)| sink.check())?;
    let explained = Explained::open(file, args.device, options)?;
    if let Some((path, sink)) = sink {
        let page = page(&explained, &command(args, file, path));
        sink.write(|out| out.write_all(page.as_bytes()))?;
        if sink.is_stdout() {
            return Ok(Answer::default());
        }
    }
    Ok(Answer::from(if args.json { json::render(&explained) } else { text::render(&explained, args.shown) }))
}

/// The page for a browser. `command` writes it again.
pub(crate) fn page(explained: &Explained, command: &str) -> String {
    let Explained { file, snapshot, origins, devices } = explained;
    Report { file, snapshot, origins, devices, command }.page()
}

/// The command that writes the page again, as a shell takes it.
fn command(args: &ExplainArgs, file: &Path, page: &Path) -> String {
    let mut command = format!("plimsoll explain {}", quoted(file));
    if let Some(device) = args.device {
        command += &format!(" --device {device}");
    }
    if let Some(bytes) = args.device_total {
        command += &format!(" --device-total {bytes}");
    }
    if args.no_infer {
        command += " --no-infer";
    }
    command + " --html " + &quoted(page)
}

/// A path as one word of a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |char: char| char.is_alphanumeric() || "/._-+,:@%".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}
