//! The snapshot that a verb reads, with the name that the user gave, and the devices in question.

use std::path::Path;

use plimsoll_trace::SnapshotError;
use plimsoll_trace::input::{self, Found};
use plimsoll_trace::message::Pasted;
use plimsoll_trace::snapshot::Snapshot;

use crate::exit::{Exit, Failure};
use crate::output;

/// A snapshot that was read.
pub(crate) struct Recording {
    /// The name that the user gave.
    pub(crate) name: String,
    pub(crate) snapshot: Snapshot,
    /// The numbers of the devices in question, ascending; at least one.
    pub(crate) devices: Vec<i32>,
}

impl Recording {
    /// Reads a file; `-` is stdin. With a number, only that device is in question.
    ///
    /// # Errors
    /// If the file cannot be read or has no recording, or the device is not in it.
    pub(crate) fn open(file: &Path, device: Option<i32>) -> Result<Recording, Failure> {
        Recording::named(file, &name(file), device)
    }

    /// Reads a file under a more descriptive name than its own.
    ///
    /// # Errors
    /// The same errors as [`Recording::open`].
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

/// A snapshot, or another input that can be explained.
pub(crate) enum Opened {
    Recording(Box<Recording>),
    /// A text and its name.
    Pasted(String, Pasted),
}

impl Opened {
    /// Reads a file like [`Recording::open`], and also accepts other input that can be explained.
    ///
    /// # Errors
    /// The same errors as [`Recording::open`].
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

/// The file's name for the user.
fn name(file: &Path) -> String {
    if file == Path::new("-") { "stdin".to_owned() } else { file.display().to_string() }
}

fn unreadable(name: &str, why: &SnapshotError) -> Failure {
    Failure::new(Exit::Unreadable, format!("{name}: {why}"))
}
