//! A device's memory and its history in PyTorch's format: [`record_history`], then [`save_snapshot`].
//!
//! `plimsoll_trace::own` describes the contents of the file. This file gives the ids of a recording
//! the names of layers and operations.

use std::io;
use std::path::Path;

use plimsoll_tensor::history::{self, HistoryOptions, LabelId, StackId};
use plimsoll_tensor::{Device, label};
use plimsoll_trace::own::{self, Names, Place};
use plimsoll_trace::snapshot::Snapshot;
use plimsoll_trace::{Sharing, output};

/// Starts recording the device's history, with an empty history, for [`save_snapshot`]. Like
/// `torch.cuda.memory._record_memory_history(max_entries=…)`.
///
/// An entry takes about 100 bytes of host memory, outside the allocator; time is microseconds since 1970, or a
/// counter on a simulated device. [`Device::mark_step`] marks steps.
pub fn record_history(device: &Device, options: HistoryOptions) {
    device.record_history(options);
}

/// Stops recording, and drops the history. Like `torch.cuda.memory._record_memory_history(None)`.
pub fn stop_history(device: &Device) {
    device.stop_history();
}

/// Saves the device's segments and history in PyTorch's format: a pickle of
/// protocol 4 that [pytorch.org/memory_viz](https://pytorch.org/memory_viz) opens and
/// `python -m torch.cuda._memory_viz trace_plot FILE -o FILE.html` draws. Like
/// `torch.cuda.memory._dump_snapshot`. Without a history it has only segments and blocks.
///
/// Returns the saved snapshot.
///
/// ```
/// use plimsoll::memory::{self, HistoryOptions};
/// use plimsoll::{Device, SimConfig, Tensor};
///
/// let device = Device::sim(SimConfig::new(1 << 30));
/// memory::record_history(&device, HistoryOptions { max_entries: 100_000, ..HistoryOptions::default() });
/// let x = Tensor::zeros(&[1024, 1024], &device)?;
/// let path = std::env::temp_dir().join(format!("plimsoll-snapshot-{}.pickle", std::process::id()));
/// let saved = memory::save_snapshot(&device, &path)?;
/// assert_eq!((saved.segments.len(), saved.traces[0].len()), (1, 3)); // segment_alloc, alloc, snapshot
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// I/O errors. On an error an existing file is unchanged, and no partial file remains.
pub fn save_snapshot(device: &Device, path: impl AsRef<Path>) -> io::Result<Snapshot> {
    let snapshot = snapshot(device);
    output::save(&snapshot, path.as_ref(), Sharing::Equal)?;
    Ok(snapshot)
}

/// The snapshot of [`save_snapshot`], as a value. Like `torch.cuda.memory._snapshot`.
pub fn snapshot(device: &Device) -> Snapshot {
    own::snapshot(&device.recording(), &DeviceNames(device))
}

/// The names of a device's layers and operations.
pub(super) struct DeviceNames<'a>(pub(super) &'a Device);

impl Names for DeviceNames<'_> {
    fn label(&self, id: LabelId) -> String {
        label::text(id)
    }

    fn places(&self, id: StackId) -> Vec<Place> {
        vec![Place { filename: "<plimsoll>".to_owned(), name: history::operation(id), line: 0 }]
    }

    fn device(&self) -> String {
        self.0.name().to_owned()
    }
}
