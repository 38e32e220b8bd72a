//! `plimsoll explain` of several files: the ranks of one job side by side, and which is odd.
//!
//! A rank that cannot be read is named, and the answer is incomplete without it.

mod files;
mod json;
mod text;

use std::path::PathBuf;

use plimsoll_trace::explain::DeviceExplanation;
use plimsoll_trace::render::html::About;
use plimsoll_trace::render::ranks::Abreast;

use super::ExplainArgs;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::sink::Sink;

pub(super) use self::files::listed;

/// The files of a job, read.
struct Job {
    /// Each with the name of its rank and its path.
    files: Vec<(String, PathBuf, Explained)>,
    /// Files that could not be read, by the names of their ranks, and why.
    unreadable: Vec<(String, String)>,
}

impl Job {
    /// Reads all that can be read; fails only where nothing can.
    fn open(paths: &[PathBuf], args: &ExplainArgs) -> Result<Job, Failure> {
        let (mut files, mut unreadable) = (Vec::new(), Vec::new());
        let mut first = None;
        for (path, name) in paths.iter().zip(files::names(paths)) {
            match Explained::open(path, args.device, args.options()) {
                Ok(file) => files.push((name, path.clone(), file)),
                Err(failure) => {
                    unreadable.push((name, failure.message.clone()));
                    first.get_or_insert(failure);
                }
            }
        }
        match first {
            Some(failure) if files.is_empty() => Err(failure),
            _ => Ok(Job { files, unreadable }),
        }
    }

    fn abreast(&self) -> Abreast<'_> {
        let files: Vec<_> = self.files.iter().map(|(name, _, file)| (name.as_str(), file.report())).collect();
        Abreast::of(&files, &self.unreadable)
    }

    /// The commands that show each rank by itself, in their order.
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

/// Puts the ranks side by side.
pub(super) fn run(paths: &[PathBuf], args: &ExplainArgs, sink: Option<Sink>) -> Result<Answer, Failure> {
    let job = Job::open(paths, args)?;
    let exit = if job.unreadable.is_empty() { Exit::Done } else { Exit::OutOfMemory };
    let abreast = job.abreast();
    if let Some(sink) = sink {
        let given: Vec<String> = args.files.iter().map(|path| path.display().to_string()).collect();
        let title = match given.as_slice() {
            [first, _, _, _, ..] => format!("{first} and {} more", given.len() - 1),
            few => few.join(" "),
        };
        let commands = job.commands(args);
        let again = sink.again(&args.command(&args.files));
        sink.page(About::Ranks(&abreast, &commands), &title, &again)?;
        if sink.is_stdout() {
            return Ok(Answer { text: String::new(), exit });
        }
    }
    let text = if args.json { json::render(&abreast) } else { text::render(&abreast, args.shown) };
    Ok(Answer { text, exit })
}
