//! A snapshot with its explanation: [`Explained`], shared by the verbs that read one or two snapshots.

use std::path::Path;

use plimsoll_trace::explain::{DataQuality, DeviceAnalysis, DeviceExplanation, Options, Origins};
use plimsoll_trace::render::Report;
use plimsoll_trace::render::devices::worst_first;
use plimsoll_trace::snapshot::{FrameId, Snapshot};
use serde_json::{Value, json};

use crate::categories::Categories;
use crate::exit::Failure;
use crate::recording::Recording;

/// A snapshot and the explanation of each device in question.
pub(crate) struct Explained {
    /// The name that the user gave.
    pub(crate) file: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) origins: Origins,
    /// By number, or in the order of [`Explained::worst_first`]; at least one.
    pub(crate) devices: Vec<DeviceExplanation>,
}

impl Explained {
    /// Reads a file and explains it. With a device number, only that device.
    ///
    /// # Errors
    /// The same errors as [`Recording::open`].
    pub(crate) fn open(
        file: &Path,
        device: Option<i32>,
        options: Options,
        categories: &Categories,
    ) -> Result<Explained, Failure> {
        Ok(Explained::with_categories(Recording::open(file, device)?, options, categories))
    }

    /// Explains a recording.
    pub(crate) fn of(recording: Recording, options: Options) -> Explained {
        Explained::with_categories(recording, options, &Categories::default())
    }

    /// Explains a recording with user-defined categories.
    pub(crate) fn with_categories(
        recording: Recording,
        options: Options,
        categories: &Categories,
    ) -> Explained {
        let Recording { name, mut snapshot, devices } = recording;
        let origins = categories.origins(&mut snapshot);
        let explained = |number| DeviceExplanation::of(&snapshot, number, &origins, options);
        let devices = devices.into_iter().map(explained).collect();
        Explained { file: name, snapshot, origins, devices }
    }

    /// Puts the devices in the order in which every verb lists them: those that ran out of memory first.
    pub(crate) fn worst_first(mut self) -> Explained {
        worst_first(&self.snapshot, &mut self.devices);
        self
    }

    /// The input for texts and pages.
    pub(crate) fn report(&self) -> Report<'_> {
        let Explained { file, snapshot, origins, devices } = self;
        Report { file, snapshot, origins, devices }
    }

    /// One of the devices, as the input for comparisons.
    pub(crate) fn analysis<'a>(&'a self, device: &'a DeviceExplanation) -> DeviceAnalysis<'a> {
        self.report().analysis(device)
    }

    /// The data quality of one of the devices.
    pub(crate) fn quality(&self, device: &DeviceExplanation) -> DataQuality {
        DataQuality::of(self.analysis(device), &device.passes)
    }

    /// The prefix of a sentence about a device: empty if there is only one.
    pub(crate) fn prefix(&self, device: &DeviceExplanation) -> String {
        if self.devices.len() > 1 { format!("device {}: ", device.timeline.device) } else { String::new() }
    }

    /// A line of the program as JSON.
    pub(crate) fn line(&self, frame: FrameId) -> Value {
        let frame = self.snapshot.stacks.get_frame(frame);
        json!({
            "file": self.snapshot.texts.get(frame.filename),
            "line": frame.line,
            "function": self.snapshot.texts.get(frame.name),
        })
    }
}
