//! `plimsoll explain` of several files: compares the ranks of one job, and says which one differs from the others.
//!
//! `names.rs` finds the rank of each file; `same.rs` chooses between several files of one rank. If a rank cannot be
//! read, the answer names it and is marked incomplete.

mod files;
mod json;
mod names;
mod same;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_trace::explain::DeviceExplanation;
use plimsoll_trace::render::html::About;
use plimsoll_trace::render::ranks::{RankTable, Unused};
use plimsoll_trace::render::{verdict, words};

use self::same::Judged;
use super::ExplainArgs;
use crate::bytes;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::sink::Sink;

pub(super) use self::files::listed;
pub(super) use self::json::place;
pub(super) use self::text::rows;

/// The files of a job, read.
struct Job {
    /// Each file with the name of its rank and its path.
    files: Vec<(String, PathBuf, Explained)>,
    /// Files that could not be read: the name of each file's rank, and the reason.
    unreadable: Vec<(String, String)>,
    /// Files that are ignored because another file represents their rank.
    unused: Vec<Unused>,
}

/// The files of each rank, in the order in which the ranks are first named.
fn by_rank(paths: &[PathBuf]) -> Vec<(String, Vec<&PathBuf>)> {
    let mut ranks: Vec<(String, Vec<&PathBuf>)> = Vec::new();
    let mut places = BTreeMap::new();
    for (path, name) in paths.iter().zip(names::names(paths)) {
        let place = *places.entry(name.clone()).or_insert_with(|| {
            ranks.push((name, Vec::new()));
            ranks.len() - 1
        });
        ranks[place].1.push(path);
    }
    ranks
}

impl Job {
    /// Reads every readable file, and fails only if no file is readable. Of several files of one rank, keeps one.
    fn open(paths: &[PathBuf], args: &ExplainArgs) -> Result<Job, Failure> {
        let mut job = Job { files: Vec::new(), unreadable: Vec::new(), unused: Vec::new() };
        let mut first = None;
        for (name, paths) in by_rank(paths) {
            let mut found = Vec::new();
            let several = paths.len() > 1;
            for path in paths {
                match Explained::open(path, args.device, args.options(), &args.categories) {
                    Ok(file) => found.push((path.clone(), file)),
                    Err(failure) => {
                        let of = if several { format!("{name}: {}", path.display()) } else { name.clone() };
                        job.unreadable.push((of, failure.message.clone()));
                        first.get_or_insert(failure);
                    }
                }
            }
            job.keep(&name, found);
        }
        match first {
            Some(failure) if job.files.is_empty() => Err(failure),
            _ => Ok(job),
        }
    }

    /// Keeps one file of a rank. If two processes recorded at the same time, keeps one file for each process.
    fn keep(&mut self, rank: &str, found: Vec<(PathBuf, Explained)>) {
        let recordings: Vec<&Explained> = found.iter().map(|(_, file)| file).collect();
        let judged = same::judged(&recordings);
        let processes = judged.iter().filter(|verdict| **verdict == Judged::Used).count();
        for ((_, file), verdict) in found.iter().zip(&judged) {
            let Judged::Unused { used, why } = *verdict else { continue };
            let gravest = file.devices.iter().max_by_key(|device| words::is_bad(device));
            let brief = gravest.map(|device| verdict::brief(device, |bytes| bytes::shown(bytes, false)));
            self.unused.push(Unused {
                rank: rank.to_owned(),
                file: file.file.clone(),
                used: found[used].1.file.clone(),
                why,
                brief: brief.unwrap_or_default(),
            });
        }
        for ((path, file), verdict) in found.into_iter().zip(judged) {
            if verdict == Judged::Used {
                let name = if processes > 1 { format!("{rank} ({})", file.file) } else { rank.to_owned() };
                self.files.push((name, path, file));
            }
        }
    }

    fn table(&self) -> RankTable<'_> {
        let files: Vec<_> = self.files.iter().map(|(name, _, file)| (name.as_str(), file.report())).collect();
        RankTable::of(&files, &self.unreadable, &self.unused)
    }

    /// The commands that show each rank by itself, in the order of the ranks.
    fn commands(&self, args: &ExplainArgs) -> Vec<String> {
        let commands = self.files.iter().flat_map(|(_, path, file)| {
            let number = |device: &DeviceExplanation| match file.devices.len() {
                1 => String::new(),
                _ => format!(" --device {}", device.timeline.device),
            };
            file.devices.iter().map(move |device| format!("{}{}", args.command(&[path]), number(device)))
        });
        commands.collect()
    }
}

/// Compares the ranks.
pub(super) fn run(paths: &[PathBuf], args: &ExplainArgs, sink: Option<Sink>) -> Result<Answer, Failure> {
    let job = Job::open(paths, args)?;
    let exit = if job.unreadable.is_empty() { Exit::Done } else { Exit::OutOfMemory };
    let table = job.table();
    if let Some(sink) = sink {
        let given: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        let title = match given.as_slice() {
            [first, _, _, _, ..] => format!("{first} and {} more", given.len() - 1),
            few => few.join(" "),
        };
        let commands = job.commands(args);
        let again = sink.again(&args.command(&args.files));
        sink.page(About::Ranks(&table, &commands), &title, &again)?;
        if sink.is_stdout() {
            return Ok(Answer { text: String::new(), exit });
        }
    }
    let text = if args.json { json::render(&table) } else { text::render(&table, args.shown) };
    Ok(Answer { text, exit })
}
