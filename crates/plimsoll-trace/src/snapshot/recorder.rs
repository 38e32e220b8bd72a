//! The information that the module from `plimsoll record` adds to a snapshot: [`Recorder`].
//!
//! The information is stored in `allocator_settings`, which PyTorch's tools show but do not interpret.

use plimsoll_alloc::Addr;

use super::{Setting, Snapshot};

/// The name of the entry in `allocator_settings` that contains this information.
const NAME: &str = "plimsoll_record";

/// The information about the recording process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Recorder<'a> {
    /// The maximum number of events in the ring.
    pub max_entries: Option<u64>,
    /// The number of steps that GradScaler skipped. `None` if there was no GradScaler, or if the number is unknown.
    pub skipped_steps: Option<u64>,
    totals: Option<&'a [(String, Setting)]>,
    inputs: Option<&'a [(String, Setting)]>,
}

impl Recorder<'_> {
    /// The device's total memory, bytes.
    pub fn device_total_bytes(&self, device: i32) -> Option<u64> {
        let name = device.to_string();
        self.totals?.iter().find(|(known, _)| *known == name).and_then(|(_, total)| number(total))
    }

    /// Whether a tensor at this address, which has a gradient, is known not to be a parameter: no optimizer and no module
    /// held it when the snapshot was written.
    pub fn is_input(&self, addr: Addr) -> bool {
        let name = addr.0.to_string();
        self.inputs.is_some_and(|inputs| inputs.iter().any(|(known, _)| *known == name))
    }
}

impl Snapshot {
    /// The information that the recorder added; empty if PyTorch alone wrote the file.
    pub fn recorder(&self) -> Recorder<'_> {
        let Some(Setting::Map(entries)) = self.setting(NAME) else { return Recorder::default() };
        let entry = |name: &str| entries.iter().find(|(known, _)| known == name).map(|(_, entry)| entry);
        Recorder {
            max_entries: entry("max_entries").and_then(number),
            skipped_steps: match entry("skipped_steps") {
                Some(Setting::Int(steps)) => u64::try_from(*steps).ok(),
                _ => None,
            },
            totals: match entry("device_total_bytes") {
                Some(Setting::Map(totals)) => Some(totals),
                _ => None,
            },
            inputs: match entry("inputs") {
                Some(Setting::Map(inputs)) => Some(inputs),
                _ => None,
            },
        }
    }
}

/// A number above zero.
fn number(setting: &Setting) -> Option<u64> {
    match *setting {
        Setting::Int(number) => u64::try_from(number).ok().filter(|&number| number > 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_total_is_read_back_and_nonsense_is_left_aside() {
        let map = |entries: &[(&str, Setting)]| {
            Setting::Map(entries.iter().map(|(name, it)| ((*name).to_owned(), it.clone())).collect())
        };
        let totals = map(&[("0", Setting::Int(80 << 30)), ("1", Setting::Int(-1))]);
        let entry = map(&[
            ("max_entries", Setting::Int(1000)),
            ("skipped_steps", Setting::Int(0)),
            ("device_total_bytes", totals),
            ("inputs", map(&[("4096", Setting::Int(1))])),
        ]);
        let snapshot = Snapshot { settings: vec![(NAME.to_owned(), entry)], ..Snapshot::default() };
        let recorder = snapshot.recorder();
        assert_eq!((recorder.max_entries, recorder.skipped_steps), (Some(1000), Some(0)));
        assert_eq!([0, 1, 2].map(|device| recorder.device_total_bytes(device)), [Some(80 << 30), None, None]);
        assert_eq!([4096, 8192].map(|addr| recorder.is_input(Addr(addr))), [true, false]);
        assert_eq!(Snapshot::default().recorder(), Recorder::default());
    }
}
