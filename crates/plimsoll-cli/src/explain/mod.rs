//! `plimsoll explain`: what a memory snapshot means.

mod json;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_trace::explain::{DeviceExplanation, Options, Origins};
use plimsoll_trace::output::replace;
use plimsoll_trace::render::html::Report;
use plimsoll_trace::snapshot::Snapshot;

use crate::bytes;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::recording::Recording;

#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// What the whole device has, such as 80GiB: no snapshot tells it
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    device_total: Option<u64>,
    /// Only what the file says, nothing that is inferred from it
    #[arg(long)]
    no_infer: bool,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    rows: usize,
    /// Whole bytes instead of MiB and GiB
    #[arg(long)]
    bytes: bool,
    /// The result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a page for a browser: one file that needs no network
    #[arg(long, value_name = "OUT.html")]
    html: Option<PathBuf>,
}

/// A snapshot that was read, with what it tells.
struct Explained {
    /// As the user named it.
    file: String,
    snapshot: Snapshot,
    origins: Origins,
    /// By number; at least one.
    devices: Vec<DeviceExplanation>,
}

/// Reads and explains; the result is text for stdout.
pub(crate) fn run(args: &ExplainArgs) -> Result<String, Failure> {
    let options = Options { infer: !args.no_infer, device_total_bytes: args.device_total };
    let explained = explain(&args.file, args.device, options)?;
    if let Some(path) = &args.html {
        page(&explained, path, &command(args, path))?;
    }
    Ok(if args.json { json::render(&explained) } else { text::render(&explained, args) })
}

/// Writes the page for a browser.
fn page(explained: &Explained, path: &Path, command: &str) -> Result<(), Failure> {
    let Explained { file, snapshot, origins, devices } = explained;
    let page = Report { file, snapshot, origins, devices, command }.page();
    replace(path, |out| out.write_all(page.as_bytes()))
        .map_err(|why| Failure::new(Exit::Unreadable, format!("{}: {why}", path.display())))?;
    output::progress(&format!("wrote {}", path.display()));
    Ok(())
}

/// The command that writes the page again, as a shell takes it.
fn command(args: &ExplainArgs, page: &Path) -> String {
    let mut command = format!("plimsoll explain {}", quoted(&args.file));
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
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |char: char| char.is_alphanumeric() || "/._-+,:@%".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn explain(file: &Path, device: Option<i32>, options: Options) -> Result<Explained, Failure> {
    let Recording { name, snapshot, devices } = Recording::open(file, device)?;
    let origins = Origins::of(&snapshot);
    let devices =
        devices.into_iter().map(|number| DeviceExplanation::of(&snapshot, number, &origins, options));
    let devices = devices.collect();
    Ok(Explained { file: name, snapshot, origins, devices })
}
