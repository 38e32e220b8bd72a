//! `plimsoll explain` of several files: the ranks of one job side by side, and which is odd.
//!
//! A rank that cannot be read is named, and the answer is incomplete without it.

mod files;
mod json;
mod text;

use std::path::PathBuf;

use plimsoll_trace::explain::{DeviceExplanation, Known, Options, Ranks};

use super::ExplainArgs;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;

pub(super) use self::files::listed;

/// The files of a job, read.
struct Job {
    files: Vec<Explained>,
    /// The devices of all files, as they are called, in the order of [`Job::devices`].
    ranks: Ranks,
    /// Files that could not be read, by the names of their ranks, and why.
    unreadable: Vec<(String, String)>,
}

impl Job {
    /// Reads all that can be read; fails only where nothing can.
    fn open(paths: &[PathBuf], device: Option<i32>, options: Options) -> Result<Job, Failure> {
        let names = files::names(paths);
        let (mut files, mut called, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = None;
        for (path, name) in paths.iter().zip(names) {
            match Explained::open(path, device, options) {
                Ok(file) => {
                    files.push(file);
                    called.push(name);
                }
                Err(failure) => {
                    unreadable.push((name, failure.message.clone()));
                    first.get_or_insert(failure);
                }
            }
        }
        if let (true, Some(failure)) = (files.is_empty(), first) {
            return Err(failure);
        }
        let known: Vec<(String, Known<'_>)> = files
            .iter()
            .zip(&called)
            .flat_map(|(file, name)| {
                let name = move |device: &DeviceExplanation| match file.devices.len() {
                    1 => name.clone(),
                    _ => format!("{name} device {}", device.timeline.device),
                };
                file.devices.iter().map(move |device| (name(device), file.known(device)))
            })
            .collect();
        let ranks = Ranks::of(&known);
        Ok(Job { files, ranks, unreadable })
    }

    /// The devices of all files, each with its file.
    fn devices(&self) -> impl Iterator<Item = (&Explained, &DeviceExplanation)> {
        self.files.iter().flat_map(|file| file.devices.iter().map(move |device| (file, device)))
    }
}

/// Puts the ranks side by side.
pub(super) fn run(paths: &[PathBuf], args: &ExplainArgs) -> Result<Answer, Failure> {
    let options = Options { infer: !args.no_infer, device_total_bytes: args.device_total };
    let job = Job::open(paths, args.device, options)?;
    let text = if args.json { json::render(&job) } else { text::render(&job, args) };
    let exit = if job.unreadable.is_empty() { Exit::Done } else { Exit::OutOfMemory };
    Ok(Answer { text, exit })
}
