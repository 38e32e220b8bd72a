//! The snapshot that a verb is about: read, with the name that its user gave it, and the devices in question.

use std::path::Path;

use plimsoll_trace::SnapshotError;
use plimsoll_trace::input::{self, Found};
use plimsoll_trace::message::Pasted;
use plimsoll_trace::snapshot::Snapshot;

use crate::exit::{Exit, Failure};
use crate::output;

/// A snapshot that was read.
pub(crate) struct Recording {
    /// As the user named it.
    pub(crate) name: String,
    pub(crate) snapshot: Snapshot,
    /// The numbers of the devices in question, ascending; at least one.
    pub(crate) devices: Vec<i32>,
}

impl Recording {
    /// Reads a file; `-` is stdin. With a number, only that device is in question.
    ///
    /// # Errors
    /// The file cannot be read or has no recording, or the device is not in it.
    pub(crate) fn open(file: &Path, device: Option<i32>) -> Result<Recording, Failure> {
        Recording::named(file, &name(file), device)
    }

    /// The same under a name that says more than the file's.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub(crate) fn named(file: &Path, name: &str, device: Option<i32>) -> Result<Recording, Failure> {
        output::progress(&format!("reading {name}"));
        let snapshot = input::open(file).map_err(|why| unreadable(name, &why))?;
        Recording::of(name, snapshot, device)
    }

    fn of(name: &str, snapshot: Snapshot, device: Option<i32>) -> Result<Recording, Failure> {
        let mut devices = snapshot.devices();
        if let Some(device) = device {
            if !devices.contains(&device) {
                let known: Vec<String> = devices.iter().map(ToString::to_string).collect();
                let message = format!("{name} has no device {device}; it has {}", known.join(", "));
                return Err(Failure::new(Exit::Usage, message));
            }
            devices = vec![device];
        }
        if devices.is_empty() {
            let message = format!(
                "{name} has no memory and no events: call torch.cuda.memory._record_memory_history() before \
                 the first tensor is created, and _dump_snapshot while tensors are alive"
            );
            return Err(Failure::new(Exit::Unreadable, message));
        }
        Ok(Recording { name: name.to_owned(), snapshot, devices })
    }
}

/// A snapshot, or what people have instead.
pub(crate) enum Opened {
    Recording(Box<Recording>),
    /// A text, and its name.
    Pasted(String, Pasted),
}

impl Opened {
    /// As [`Recording::open`], and what is no snapshot but can be explained.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub(crate) fn open(file: &Path, device: Option<i32>) -> Result<Opened, Failure> {
        let name = name(file);
        output::progress(&format!("reading {name}"));
        match input::open_any(file).map_err(|why| unreadable(&name, &why))? {
            Found::Snapshot(snapshot) => {
                Recording::of(&name, *snapshot, device).map(|it| Opened::Recording(Box::new(it)))
            }
            Found::Pasted(pasted) => Ok(Opened::Pasted(name, pasted)),
        }
    }
}

/// A file as its user names it.
fn name(file: &Path) -> String {
    if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() }
}

fn unreadable(name: &str, why: &SnapshotError) -> Failure {
    Failure::new(Exit::Unreadable, format!("{name}: {why}"))
}
