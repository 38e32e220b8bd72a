//! `--limit`: bounds the memory and processor time of reading a file, so that a malicious file ends in an error.
//!
//! A thread watches the process. It stops when the answer is written, because the cost of the input is bounded by then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use rustix::time::{ClockId, clock_gettime};

use crate::bytes;
use crate::exit::{ERROR_SCHEMA, Exit, Failure};
use crate::output;

/// `--limit`.
#[derive(Args, Clone, Copy)]
pub(crate) struct Limit {
    /// Stop if reading a file takes more memory than this limit, such as 4GiB, or more than 10 s of CPU time for each
    /// 256 MiB of the limit; `none` turns both limits off [default: 256MiB, but none for files over 10 MB]
    #[arg(long, value_name = "SIZE", value_parser = parse)]
    limit: Option<Most>,
}

/// The maximum number of bytes.
#[derive(Clone, Copy)]
enum Most {
    Unlimited,
    Bytes(u64),
}

fn parse(text: &str) -> Result<Most, String> {
    if text == "none" {
        return Ok(Most::Unlimited);
    }
    let bytes = bytes::parse_positive(text)?;
    if bytes < LEAST_BYTES { Err("at least 64MiB".to_owned()) } else { Ok(Most::Bytes(bytes)) }
}

/// The lowest limit; below it, no file can be read.
const LEAST_BYTES: u64 = 64 << 20;
/// The default for files of up to [`SMALL_BYTES`].
const DEFAULT_BYTES: u64 = 256 << 20;
/// Larger files are assumed to be the user's own recordings.
const SMALL_BYTES: u64 = 10_000_000;
/// Processor time for each 256 MiB of memory. A debug build takes about ten times as long.
const TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 100 } else { 10 });
/// Memory may grow by some tens of MiB between two checks.
const MARGIN_BYTES: u64 = 24 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Whether the thread is still watching.
static WATCHING: AtomicBool = AtomicBool::new(false);

impl Limit {
    /// Starts to watch the cost of these files; called before they are read.
    pub(crate) fn watch<P: AsRef<Path>>(self, files: &[P], is_json: bool) {
        let schema = is_json.then_some(ERROR_SCHEMA);
        let sizes = files.iter().map(|file| fs::metadata(file).map(|it| (it.is_file(), it.len())));
        let stored = sizes.map(|size| size.unwrap_or((false, u64::MAX)));
        let stored = stored.map(|(is_file, bytes)| if is_file { bytes } else { u64::MAX });
        let stored = stored.fold(0_u64, u64::saturating_add);
        let most_bytes = match self.limit {
            Some(Most::Unlimited) => return,
            Some(Most::Bytes(bytes)) => bytes,
            None if stored <= SMALL_BYTES * files.len().max(1) as u64 => {
                DEFAULT_BYTES.max(stored.saturating_mul(4))
            }
            None => return,
        };
        let names: Vec<PathBuf> = files.iter().map(|file| file.as_ref().to_owned()).collect();
        let name = names.first().map(|name| name.display().to_string()).unwrap_or_default();
        WATCHING.store(true, Ordering::Relaxed);
        let most_time = TIME.mul_f64((most_bytes as f64 / DEFAULT_BYTES as f64).max(1.0));
        let watch = move || look(&name, most_bytes, most_time, schema);
        // If the thread cannot be started, there is no limit, as with `none`.
        let _ = thread::Builder::new().name("plimsoll-limit".to_owned()).spawn(watch);
    }
}

/// Turns the limit off: the cost of the input that was read so far is bounded.
pub(crate) fn lift() {
    WATCHING.store(false, Ordering::Relaxed);
}

fn look(name: &str, most_bytes: u64, most_time: Duration, schema: Option<&'static str>) {
    while WATCHING.load(Ordering::Relaxed) {
        let (bytes, time) = (resident_bytes().unwrap_or(0), processor_time());
        let most = most_bytes.saturating_sub(MARGIN_BYTES);
        let spent = match (bytes > most, time > most_time) {
            (true, _) => format!("{} of memory", bytes::shown(most_bytes, false)),
            (_, true) => format!("{} s of processor", most_time.as_secs()),
            _ => {
                thread::sleep(LOOK_EVERY);
                continue;
            }
        };
        let message = format!(
            "{name}: stopped: reading it would take more than {spent}, too much for a file of its size. If you trust it, add \
             --limit 4GiB, or --limit none"
        );
        output::failure(&Failure::new(Exit::Unreadable, message), schema);
        #[expect(clippy::exit, reason = "the thread that reads cannot be interrupted")]
        std::process::exit(Exit::Unreadable as i32);
    }
}

/// This process's resident memory according to Linux; `None` on other systems.
fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Processor time of this process's threads.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
